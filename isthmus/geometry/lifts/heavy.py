"""FetchSGD's lift: what was not applied yet is remembered as a code, where the codes are added (Rothchild et al. 2020).

    u = rho u + y,    e = e + eta u,    delta = a top_k(Phi' e),    w+ = w - delta,    e = e - Phi delta

FetchSGD takes a = 1.  Where the vector behind e has no k large entries, that adds more than it takes away: an estimate
is off by ||e|| / sqrt(m), whatever its entry is.  Here a = <e, Phi d> / ||Phi d||^2 with d = top_k(Phi' e), which
leaves least of e, and so never makes it longer.

Nobody keeps d numbers: the memory has m, and is post-processing of what was released.  A code means something while Phi
stays the same (`refresh` of the encoder): with another map the memory is empty again.  One map for all rounds shows the
same m of d dimensions for ever, and what lies in the others is never corrected; some five to twenty rounds a map are a
good start.  Phi must tell coordinates apart, as `SparseJL` with several non-zeros a column does and a count-sketch (one
bucket a coordinate) does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.geometry.lifts.parts import Lift, Lifted, Step
from isthmus.geometry.sketches.base import Sketch

Memory = Mapping[str, Any]


@dataclass(frozen=True)
class HeavyHitters(Lift):
    """The k largest coordinates of all that has not been applied, with a memory in the sketch domain.

    >>> import torch
    >>> from isthmus.geometry.sketches import Identity
    >>> phi, lift = Identity().draw(3), HeavyHitters(1)
    >>> first, memory = lift.remember(phi, torch.tensor([0.0, 2.0, 1.5]), None, 1.0, None)
    >>> second, _ = lift.remember(phi, torch.tensor([0.0, 0.1, 0.1]), None, 1.0, memory)
    >>> first.direction, second.direction
    (tensor([0., 2., 0.]), tensor([0.0000, 0.0000, 1.6000]))
    """

    k: int
    momentum: float = 0.0
    reads_w: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate.positive_int(k=self.k)
        validate.check(0 <= self.momentum < 1, "momentum", self.momentum, "give a number of at least 0 and below 1")

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Step) -> Lifted:
        """The first round: nothing is remembered."""
        return self.remember(sketch, y, w, eta, None)[0]

    def remember(
        self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Step, memory: Memory | None
    ) -> tuple[Lifted, Memory]:
        """Lift a code together with what was left before, and what is left now."""
        validate.check(
            not isinstance(eta, Tensor) or eta.numel() == 1,
            "step",
            "a vector",
            "give one number as the step of a round",
        )
        nothing, same = torch.zeros_like(y), memory is not None and memory["map"] == sketch.fingerprint
        old = memory if memory is not None and same else {"velocity": nothing, "error": nothing}
        velocity = self.momentum * old["velocity"] + y
        error = old["error"] + eta * velocity
        estimate = sketch.adjoint(error)
        places = estimate.abs().topk(min(self.k, sketch.d)).indices
        change = torch.zeros_like(estimate).index_copy_(0, places, estimate[places])
        code = sketch.forward(change)
        share = (error @ code) / (code @ code).clamp(min=torch.finfo(y.dtype).tiny)
        following = {"map": sketch.fingerprint, "velocity": velocity, "error": error - share * code}
        return Lifted(share * change / eta), following
