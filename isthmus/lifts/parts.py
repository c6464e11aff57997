"""The lift slot of a pipeline: from a released code y in R^m back to R^d or onto the constraint set.

Every lift is a `Lift`, called as `lift(sketch, y, w, eta)`.  One that says `reads_w = False` is given None for the
iterate, which then need not be gathered.

FetchSGD's lift: what was not applied yet is remembered as a code, where the codes are added (Rothchild et al. 2020).

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.lifts.project_lift import cosamp, solve_lift
from isthmus.sets import ConvexSet
from isthmus.sketches.base import Sketch, take_pinv
from isthmus.sketches.compose import IdentityMap
from isthmus.sketches.selection import SelectionMap

Step = float | Tensor

Columns = Callable[[str, int, int], Tensor]


class Lifted:
    """A direction g of R^d (the update is w - eta g) and, where the lift has one, the next point itself.

    The point keeps exact zeros and membership, which w - eta (w - point)/eta would lose.  A direction may be given
    as a function, and by columns of leaves: whoever takes one parameter at a time never builds the whole vector.
    `code` has, where the direction is Phi^+ y of a sketch that can add it to parameters in place, that sketch and y.
    `stretch` is how much longer than eta the step of a coordinate really is: the diagonal of C = I_S P^-1 where an
    unbiased lift moves drawn coordinates only (0 on the others), else 1.  A proximal map takes the same steps.

    >>> import torch
    >>> Lifted(torch.ones(2)).point is None
    True
    """

    def __init__(
        self,
        direction: Tensor | Callable[[], Tensor],
        point: Tensor | None = None,
        columns: Columns | None = None,
        code: tuple[Sketch, Tensor] | None = None,
        stretch: Step | Callable[[], Step] = 1.0,
    ) -> None:
        self.given, self.point, self._columns, self.code, self._stretch = direction, point, columns, code, stretch

    @cached_property
    def direction(self) -> Tensor:
        """The whole direction."""
        if isinstance(self.given, Tensor):
            return self.given
        return self.given()

    @cached_property
    def stretch(self) -> Step:
        """How much longer than eta the step of each coordinate is."""
        if callable(self._stretch):
            return self._stretch()
        return self._stretch

    def columns(self, space: Space, name: str, lo: int, hi: int) -> Tensor:
        """Columns lo..hi-1 of one leaf of the direction, as a matrix."""
        if self._columns is not None:
            return self._columns(name, lo, hi)
        return self.direction[space.slice(name)].reshape(space.shape(name)[0], -1)[:, lo:hi]


class Lift(Protocol):
    """From a released code y back to R^d: a `Lifted`, or None where there is nothing to step with."""

    reads_w: ClassVar[bool] = True
    """Whether the iterate is asked for; else `w` may be None."""

    def __call__(self, sketch: Sketch, y: Tensor, w: Any, eta: Step) -> Lifted | None: ...


class _CodeLift(Lift):
    """A lift of the code alone, whatever the iterate is."""

    reads_w: ClassVar[bool] = False


@dataclass(frozen=True)
class Adjoint(_CodeLift):
    """Phi' y: for any sketch.

    >>> import torch
    >>> from isthmus.sketches import CountSketch
    >>> Adjoint()(CountSketch(2).draw(4), torch.ones(2), torch.zeros(4), 0.1).direction.shape
    torch.Size([4])
    """

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Step) -> Lifted:
        """Lift a code."""
        return Lifted(lambda: sketch.adjoint(y), None, lambda name, lo, hi: sketch.adjoint_columns(name, y, lo, hi))


@dataclass(frozen=True)
class Pinv(_CodeLift):
    """Phi^+ y: for tight sketches; Phi^+ Phi is an orthogonal projector.

    >>> import torch
    >>> from isthmus.sketches import CountSketch
    >>> sketch, g = CountSketch(4).draw(4), torch.arange(4.0)
    >>> bool(torch.allclose(Pinv()(sketch, sketch.forward(g), g, 0.1).direction, g))
    True
    """

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Step) -> Lifted:
        """Lift a code."""
        if not sketch.tight:
            return Lifted(sketch.pinv(y))  # refused here, not when the direction is read
        if isinstance(sketch, IdentityMap):
            return Lifted(y)

        code = None
        if sketch.in_place:
            code = sketch, y
        return Lifted(
            lambda: take_pinv(sketch, y), None, lambda name, lo, hi: sketch.pinv_columns(name, y, lo, hi), code
        )


@dataclass(frozen=True)
class Unbiased(_CodeLift):
    """Phi^+ y / coverage: its mean over the sketch is the gradient itself; for tight sketches.

    >>> import torch
    >>> from isthmus.sketches import Blocks, CountSketch
    >>> sketch, y = CountSketch(2).draw(4), torch.ones(2)
    >>> bool(torch.allclose(Unbiased()(sketch, y, torch.zeros(4), 0.1).direction, 2 * sketch.pinv(y)))
    True
    >>> sorted(Unbiased()(Blocks(2).draw(4), y, torch.zeros(4), 0.1).stretch.tolist())  # I_S P^-1 of one block of two
    [0.0, 0.0, 2.0, 2.0]
    """

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Step) -> Lifted:
        """Lift a code."""
        coverage = sketch.coverage
        if isinstance(coverage, Tensor):
            coverage = coverage.to(y)

        def columns(name: str, lo: int, hi: int) -> Tensor:
            share = coverage
            if isinstance(share, Tensor):
                share = share[sketch.space.slice(name)].view(sketch.space.shape(name)[0], -1)[:, lo:hi]
            return sketch.pinv_columns(name, y, lo, hi) / share

        stretch: Step | Callable[[], Step] = 1.0
        if isinstance(sketch, SelectionMap):
            stretch = lambda: sketch.stretch(y)  # noqa: E731
        return Lifted(lambda: sketch.pinv(y) / coverage, None, columns, stretch=stretch)


@dataclass(frozen=True)
class ProjectAndLift(Lift):
    """w+ in C with Phi w+ the projection of Phi w - eta y onto Phi C, near w (`isthmus.lifts.solve_lift`).

    A step for each coordinate (a vector eta, tight sketches) has the target Phi (w - eta Phi^+ y).  The defaults are
    those of an optimisation loop, where a more exact solve does not help.

    >>> import torch
    >>> from isthmus.sets import L1Ball
    >>> from isthmus.sketches import CountSketch
    >>> lifted = ProjectAndLift(L1Ball(1.0))(CountSketch(2).draw(4), torch.ones(2), torch.zeros(4), 0.5)
    >>> lifted.point is not None and L1Ball(1.0).contains(lifted.point)
    True
    """

    constraint: ConvexSet
    pick: str = "nearest"
    tol: float = 1e-2
    max_iter: int = 50

    def __post_init__(self) -> None:
        validate.one_of(("nearest", "min_gauge"), pick=self.pick)
        validate.positive(tol=self.tol)
        validate.positive_int(max_iter=self.max_iter)

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor, eta: Step) -> Lifted:
        """Lift a code onto the set; steps of length 0, as warm-ups have them, stay where they are."""
        if not isinstance(eta, Tensor) and eta == 0:
            return Lifted(w.new_zeros(w.shape), w)
        if isinstance(eta, Tensor) and eta.numel() > 1:
            target = sketch.forward(w - eta * sketch.pinv(y))
        else:
            target = sketch.forward(w) - eta * y
        point = solve_lift(self.constraint, sketch, target, w, self.pick, tol=self.tol, max_iter=self.max_iter).point
        return Lifted((w - point) / eta, point)


@dataclass(frozen=True)
class ModuleLift(_CodeLift):
    """What a module's sketches lift by: unbiased for chosen coordinates, else the pseudo-inverse, else the adjoint."""

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Step) -> Lifted:
        """Lift a code."""
        if isinstance(sketch, SelectionMap):
            return unbiased(sketch, y, w, eta)
        if sketch.tight:
            return pinv(sketch, y, w, eta)
        return adjoint(sketch, y, w, eta)


@dataclass(frozen=True)
class CoSaMP(_CodeLift):
    """The k-sparse decode of y (`isthmus.lifts.cosamp`).

    >>> import torch
    >>> from isthmus.sketches import Identity
    >>> CoSaMP(1)(Identity().draw(3), torch.tensor([0.0, 2.0, 1.0]), torch.zeros(3), 0.1).direction
    tensor([0., 2., 0.])
    """

    k: int
    iterations: int | None = None

    def __post_init__(self) -> None:
        validate.positive_int(k=self.k)
        if self.iterations is not None:
            validate.positive_int(iterations=self.iterations)

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Step) -> Lifted:
        """Decode a code."""
        return Lifted(cosamp(sketch, y, self.k, self.iterations))


@dataclass(frozen=True)
class Discard(_CodeLift):
    """No direction: for releases that only feed an adaptive clip.

    >>> Discard()(None, None, None, 0.1) is None
    True
    """

    def __call__(self, sketch: Sketch | None, y: Tensor | None, w: Tensor | None, eta: Step) -> None:
        """Drop a code."""
        return None


adjoint = Adjoint()

pinv = Pinv()

unbiased = Unbiased()

discard = Discard()

Memory = Mapping[str, Any]


@dataclass(frozen=True)
class HeavyHitters(_CodeLift):
    """The k largest coordinates of all that has not been applied, with a memory in the sketch domain.

    >>> import torch
    >>> from isthmus.sketches import Identity
    >>> phi, lift = Identity().draw(3), HeavyHitters(1)
    >>> first, memory = lift.remember(phi, torch.tensor([0.0, 2.0, 1.5]), None, 1.0, None)
    >>> second, _ = lift.remember(phi, torch.tensor([0.0, 0.1, 0.1]), None, 1.0, memory)
    >>> first.direction, second.direction
    (tensor([0., 2., 0.]), tensor([0.0000, 0.0000, 1.6000]))
    """

    k: int
    momentum: float = 0.0

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
        if isinstance(eta, Tensor) and eta.numel() > 1:
            validate.refuse("step", "a vector", "give one number as the step of a round")
        old: Memory = {"velocity": torch.zeros_like(y), "error": torch.zeros_like(y)}
        if memory is not None and memory["map"] == sketch.fingerprint:
            old = memory
        velocity = self.momentum * old["velocity"] + y
        error = old["error"] + eta * velocity
        estimate = sketch.adjoint(error)
        places = estimate.abs().topk(min(self.k, sketch.d)).indices
        change = torch.zeros_like(estimate).index_copy_(0, places, estimate[places])
        code = sketch.forward(change)
        share = (error @ code) / (code @ code).clamp(min=torch.finfo(y.dtype).tiny)
        following = {"map": sketch.fingerprint, "velocity": velocity, "error": error - share * code}
        return Lifted(share * change / eta), following
