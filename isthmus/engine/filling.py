"""From the engine's options to one stage of a pipeline: encode, clip, noise, lift, nothing of it written anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.core.pipeline import Release
from isthmus.engine.embedding import GradientEmbedding
from isthmus.lifts import Lifted, ProjectAndLift, adjoint, discard, pinv, unbiased
from isthmus.privacy import AdaptiveClip, Clip, Gaussian, Mechanism, PerLeafClip
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.clips import COUNT_SHARE, ClipCountEncoder, ClippedSum, GroupClip
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.noise import Noise
from isthmus.privacy.plan import split
from isthmus.sets import ConvexSet
from isthmus.sketches import Encoder, Identity, Residual, Sketch
from isthmus.sketches.selection import SelectionMap

CLIPPINGS = ("flat", "per_layer", "adaptive")
Norm = float | Sequence[float] | Mapping[str, float]


@dataclass(frozen=True)
class Unnoised(Mechanism):
    """No noise, to look for mistakes with (`noise_multiplier=0`): NOT private, and charged as what has no epsilon.

    Everything else of a private round stays, so that what is tried is what will run: tickets, clips, guards, ledger.

    >>> import torch
    >>> Unnoised().release(ClippedSum(torch.ones(2), 2, 1.0), None).tolist(), Unnoised().event()
    ([1.0, 1.0], NonPrivateDpEvent())
    """

    multiplier: ClassVar[float] = 0.0
    source = "nowhere, for none was added (noise_multiplier=0, to look for mistakes with)"
    guarantee = "nothing: no noise was added (noise_multiplier=0)"

    def release(self, bounded: ClippedSum, noise: Noise | None) -> Tensor:
        """The clipped sum itself."""
        return bounded.value

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
        """A release without any guarantee."""
        return dpa.NonPrivateDpEvent()

    def describe(self) -> str:
        """The release in words."""
        return "none"


def noise_of(z: float) -> Mechanism:
    """Gaussian noise of z times the bound of one record, or none where z is 0."""
    return Gaussian(z) if z > 0 else Unnoised()


@dataclass(frozen=True)
class ModuleLift:
    """What a module's sketches lift by: unbiased for chosen coordinates, else the pseudo-inverse, else the adjoint."""

    reads_w: ClassVar[bool] = False

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor | None, eta: Any) -> Lifted:
        """Lift a code."""
        if isinstance(sketch, SelectionMap):
            return unbiased(sketch, y, w, eta)
        if sketch.tight:
            return pinv(sketch, y, w, eta)
        return adjoint(sketch, y, w, eta)


@dataclass(frozen=True)
class LiftIntoSet(ProjectAndLift):
    """`ProjectAndLift` whose step size a scheduler may set to 0, as warm-ups do: nothing moves then."""

    def __call__(self, sketch: Sketch, y: Tensor, w: Tensor, eta: Any) -> Lifted:
        """Lift a code onto the set."""
        still = not isinstance(eta, Tensor) and eta == 0
        return Lifted(w.new_zeros(w.shape), w) if still else super().__call__(sketch, y, w, eta)


@dataclass(frozen=True)
class Filling:
    """The private choices of `make_private`."""

    sketch: Encoder | GradientEmbedding | None
    clipping: str
    max_grad_norm: Norm
    micro: int = 1
    quantile: float = 0.5
    rate: float = 0.2
    constraint: ConvexSet | None = None

    def __post_init__(self) -> None:
        validate.one_of(CLIPPINGS, clipping=self.clipping)
        validate.positive_int(micro_batch_size=self.micro)
        single = isinstance(self.max_grad_norm, (int, float)) and not isinstance(self.max_grad_norm, bool)
        if self.clipping == "per_layer":
            values = self.max_grad_norm.values() if isinstance(self.max_grad_norm, Mapping) else self.max_grad_norm
            for value in [self.max_grad_norm] if single else values:  # type: ignore[union-attr]
                validate.positive(max_grad_norm=value)  # type: ignore[arg-type]
        else:
            validate.check(
                single,
                "max_grad_norm",
                self.max_grad_norm,
                f"give one number, which is what clipping={self.clipping!r} takes",
            )
            validate.positive(max_grad_norm=self.max_grad_norm)  # type: ignore[arg-type]
        is_sketch = self.sketch is None or isinstance(self.sketch, (Encoder, GradientEmbedding))
        validate.check(is_sketch, "sketch", self.sketch, "give a sketch of isthmus, a GradientEmbedding, or None")
        if self.micro > 1:
            validate.check(
                self.clipping == "flat",
                "micro_batch_size",
                self.micro,
                "use clipping='flat': micro-batches have one clip",
            )

    def releases(self, z: float, space: Space) -> list[Release]:
        """The releases of a round whose noise, taken together, has the multiplier z."""
        validate.non_negative(noise_multiplier=z)
        if isinstance(self.sketch, GradientEmbedding):
            return self._embedding(self.sketch, z)
        encode = Identity() if self.sketch is None else self.sketch
        lift = ModuleLift() if self.constraint is None or self.sketch is None else LiftIntoSet(self.constraint)
        if self.clipping == "adaptive":
            return self._adaptive(encode, z, lift)
        return [Release(encode=encode, clip=self._clip(encode, space), mechanism=noise_of(z), lift=lift)]

    def _clip(self, encode: Encoder, space: Space) -> Any:
        if self.clipping == "per_layer":
            remedy = (
                'use clipping="flat", or give Kronecker, KroneckerSubspace, PerLeaf or no sketch: the code of this '
                "one mixes layers"
            )
            validate.check(encode.keeps_layers, "sketch", encode, remedy)
            bounds = _shares(self.max_grad_norm, [leaf.name for leaf in space.leaves])
            return PerLeafClip(bounds) if len(bounds) > 1 else Clip(next(iter(bounds.values())))
        bound = float(self.max_grad_norm)  # type: ignore[arg-type]
        clip = GroupClip if self.micro > 1 else Clip
        return clip(bound, before=encode.clips_before)

    def _adaptive(self, encode: Encoder, z: float, lift: Any) -> list[Release]:
        """The gradient, and the count of norms within the bound that moves the bound; both are paid for."""
        clip = AdaptiveClip(float(self.max_grad_norm), self.quantile, self.rate, before=encode.clips_before)  # type: ignore[arg-type]
        count = ClipCountEncoder(encode, clip, "main/gradient")
        first, second = split(z, 1 - COUNT_SHARE, COUNT_SHARE)
        return [
            Release(encode=encode, clip=clip, mechanism=noise_of(first), lift=lift),
            Release(clip.release, count, Clip(0.5), mechanism=noise_of(second), lift=discard),
        ]

    def _embedding(self, sketch: GradientEmbedding, z: float) -> list[Release]:
        validate.check(
            self.clipping == "flat", "clipping", self.clipping, "use clipping='flat', which a gradient embedding needs"
        )
        validate.check(
            self.constraint is None,
            "constraint",
            self.constraint,
            "leave it out: a gradient embedding takes no constraint",
        )
        validate.check(
            not sketch.encoder.clips_before,
            "sketch",
            sketch.encoder,
            'give it with clip="after": a gradient embedding clips the code',
        )
        first, second = sketch.multipliers(z)
        clip = GroupClip if self.micro > 1 else Clip
        return [
            Release("code", sketch.encoder, clip(float(self.max_grad_norm)), mechanism=noise_of(first), lift=pinv),  # type: ignore[arg-type]
            Release("rest", Residual(sketch.encoder), clip(sketch.clip_rest), mechanism=noise_of(second), lift=pinv),
        ]


def _shares(norm: Norm, names: list[str]) -> dict[str, float]:
    """A bound for each leaf: given by name or in order, or one bound C shared as C / sqrt(L)."""
    remedy = f"give one bound, or one for each of the {len(names)} layers {names}"
    if isinstance(norm, Mapping):
        validate.check(set(norm) == set(names), "max_grad_norm", dict(norm), remedy)
        return dict(norm)
    if isinstance(norm, (int, float)):
        return dict.fromkeys(names, norm / math.sqrt(len(names)))
    validate.check(len(norm) == len(names), "max_grad_norm", list(norm), remedy)
    return dict(zip(names, (float(value) for value in norm), strict=True))


def looks_at_public(sketch: Encoder | GradientEmbedding | None) -> bool:
    """Whether a sketch, or a part of it, is learned from public examples."""
    encoder = sketch.encoder if isinstance(sketch, GradientEmbedding) else sketch
    return isinstance(encoder, Encoder) and encoder.public
