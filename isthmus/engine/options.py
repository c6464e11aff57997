"""From the engine's options to one stage of a pipeline: encode, clip, noise, lift, nothing of it written anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.core.pipeline import Release
from isthmus.lifts import Lift, ProjectAndLift, discard
from isthmus.lifts.parts import ModuleLift
from isthmus.privacy import AdaptiveClip, Clip, Gaussian, Mechanism, PerLeafClip
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.clips import COUNT_SHARE, ClipCountEncoder, ClippedSum, Clipping, GroupClip
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.noise import Source
from isthmus.privacy.plan import split
from isthmus.sets import ConvexSet
from isthmus.sketches import Encoder, Identity, Residual

Norm = float | Sequence[float] | Mapping[str, float]


# ---------------------------------------------------------------- which options there are

_MODES = ("hooks", "functorch", "ew", "ghost")
"""Opacus' ways to the same sums: here there is one, which takes norms from the factors as its "ghost" does."""
SHARDED = "give the bare module, and make_private(group=) for several ranks: sharded modules are not supported"
_ADAPTIVE = {"target_unclipped_quantile": "quantile", "clipbound_learning_rate": "rate"}
REFUSED = {
    "max_clipbound": "leave it out: the bound stays within a factor 10^6 of its start",
    "min_clipbound": "leave it out: the bound stays within a factor 10^6 of its start",
    "unclipped_num_std": "leave it out: the noise of the count follows from its share of the budget",
    "noise_scheduler": (
        "leave it out: the noise multiplier is fixed when training is made private, and is what the ledger charges"
    ),
    "grad_clip_scheduler": 'leave it out, or give clipping="adaptive", whose bound is paid for',
    "n_splits": "leave it out: a pipeline-parallel module is not supported",
    "strict": "leave it out: modules are always validated",
}


def _check_options(
    grad_sample_mode: str, rand_on_empty: bool, clipping: str, more: Mapping[str, float]
) -> dict[str, float]:
    """The options of adaptive clipping; everything else unknown or unsupported is refused by its name.

    >>> _check_options("hooks", False, "adaptive", {"target_unclipped_quantile": 0.7})
    {'quantile': 0.7}
    """
    validate.check(grad_sample_mode != "ghost_fsdp", "grad_sample_mode", grad_sample_mode, SHARDED)
    validate.one_of(_MODES, grad_sample_mode=grad_sample_mode)
    remedy = "leave it out: an empty batch is released as noise here and paid for, and random data would be wrong"
    validate.check(not rand_on_empty, "rand_on_empty", rand_on_empty, remedy)
    for name, value in more.items():
        if name not in _ADAPTIVE:
            validate.refuse(name, value, REFUSED.get(name, "check its name: make_private has no such option"))
        remedy = 'leave it out, or give clipping="adaptive", to which it belongs'
        validate.check(clipping == "adaptive", name, value, remedy)
    return {_ADAPTIVE[name]: value for name, value in more.items()}


def _check_loss(criterion: object, reduction: str) -> None:
    """A mean over the batch that is not one over examples would let one record move the others' shares.

    >>> from torch import nn
    >>> _check_loss(nn.CrossEntropyLoss(reduction="sum"), "mean")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: loss_reduction='mean' is not allowed: give 'sum', which is the ...
    """
    validate.one_of(("mean", "sum"), loss_reduction=reduction)
    own = getattr(criterion, "reduction", "none")
    remedy = f"give {own!r}, which is the criterion's reduction"
    validate.check(own in (reduction, "none"), "loss_reduction", reduction, remedy)
    weighted = reduction == "mean" and getattr(criterion, "weight", None) is not None
    remedy = "use reduction='sum' with class weights: a mean with them divides by the weights of the whole batch"
    validate.check(not weighted, "criterion", type(criterion).__name__, remedy)


# ---------------------------------------------------------------- what fills the slots


@dataclass(frozen=True, eq=False)
class GradientEmbedding:
    """Two releases of one sample: the code V_k' g, and the residual g - V_k V_k' g with a clip of its own.

    The residual is smaller than the gradient, so its clip, and with it the noise in R^d, can be smaller.  `share` is
    the code's share of the budget: with the stage's multiplier z the two have z / sqrt(share) and
    z / sqrt(1 - share), which together cost what z costs.

    encoder    the map of the code, tight: `PublicSubspace`, `KroneckerSubspace`, ...
    clip_rest  the clip bound of residuals

    """

    encoder: Encoder
    clip_rest: float
    share: float = 0.5

    def __post_init__(self) -> None:
        validate.check(isinstance(self.encoder, Encoder), "encoder", self.encoder, "give a sketch of isthmus")
        validate.positive(clip_rest=self.clip_rest)
        validate.open_unit(share=self.share)


@dataclass(frozen=True)
class _Unnoised(Mechanism):
    """No noise, to look for mistakes with (`noise_multiplier=0`): NOT private, and charged as what has no epsilon.

    Everything else of a private round stays, so that what is tried is what will run: tickets, clips, guards, ledger.

    >>> import torch
    >>> _Unnoised().release(ClippedSum(torch.ones(2), 2, 1.0), None).tolist(), _Unnoised().event()
    ([1.0, 1.0], NonPrivateDpEvent())
    """

    multiplier: ClassVar[float] = 0.0
    source = "nowhere, for none was added (noise_multiplier=0, to look for mistakes with)"
    guarantee = "nothing: no noise was added (noise_multiplier=0)"

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The clipped sum itself."""
        return bounded.value

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
        """A release without any guarantee."""
        return dpa.NonPrivateDpEvent()

    def describe(self) -> str:
        """The release in words."""
        return "none"


def _noise_of(z: float) -> Mechanism:
    """Gaussian noise of z times the bound of one record, or none where z is 0."""
    return Gaussian(z) if z > 0 else _Unnoised()


def releases(
    z: float,
    space: Space,
    *,
    sketch: Encoder | GradientEmbedding | None,
    clipping: str,
    max_grad_norm: Norm,
    micro: int,
    constraint: ConvexSet | None,
    **adaptive: float,
) -> list[Release]:
    """The releases of a round whose noise, taken together, has the multiplier z."""
    validate.one_of(("flat", "per_layer", "adaptive"), clipping=clipping)
    remedy = "use clipping='flat': micro-batches have one clip"
    validate.check(micro == 1 or clipping == "flat", "micro_batch_size", micro, remedy)
    if clipping != "per_layer":
        validate.positive(max_grad_norm=max_grad_norm)  # type: ignore[arg-type]
    flat = GroupClip if micro > 1 else Clip
    if isinstance(sketch, GradientEmbedding):  # the code, and what it left
        remedy = "use clipping='flat', which a gradient embedding needs"
        validate.check(clipping == "flat", "clipping", clipping, remedy)
        remedy = "leave it out: a gradient embedding takes no constraint"
        validate.check(constraint is None, "constraint", constraint, remedy)
        remedy = 'give it with clip="after": a gradient embedding clips the code'
        validate.check(not sketch.encoder.clips_before, "sketch", sketch.encoder, remedy)
        first, second = split(z, sketch.share, 1 - sketch.share)
        rest = Residual(sketch.encoder)
        return [
            Release("code", sketch.encoder, flat(max_grad_norm), mechanism=_noise_of(first)),  # type: ignore[arg-type]
            Release("rest", rest, flat(sketch.clip_rest), mechanism=_noise_of(second)),
        ]
    is_sketch = sketch is None or isinstance(sketch, Encoder)
    validate.check(is_sketch, "sketch", sketch, "give a sketch of isthmus, a GradientEmbedding, or None")
    encode = sketch or Identity()
    lift: Lift = ModuleLift() if constraint is None or sketch is None else ProjectAndLift(constraint)
    if clipping == "adaptive":  # the count of norms within the bound, which moves the bound, is paid for too
        moving = AdaptiveClip(max_grad_norm, **adaptive, before=encode.clips_before)  # type: ignore[arg-type]
        count = ClipCountEncoder(encode, moving, "main/gradient")
        first, second = split(z, 1 - COUNT_SHARE, COUNT_SHARE)
        return [
            Release(encode=encode, clip=moving, mechanism=_noise_of(first), lift=lift),
            Release(moving.release, count, Clip(0.5), mechanism=_noise_of(second), lift=discard),
        ]
    if clipping == "per_layer":
        remedy = "give Kronecker, KroneckerSubspace, PerLeaf or no sketch: the code of this one mixes layers"
        validate.check(encode.keeps_layers, "sketch", encode, f'use clipping="flat", or {remedy}')
        bounds = _shares(max_grad_norm, [leaf.name for leaf in space.leaves])
        clip: Clipping = PerLeafClip(bounds) if len(bounds) > 1 else Clip(next(iter(bounds.values())))
    else:
        clip = flat(max_grad_norm, before=encode.clips_before)  # type: ignore[arg-type]
    return [Release(encode=encode, clip=clip, mechanism=_noise_of(z), lift=lift)]


def _shares(norm: Norm, names: list[str]) -> dict[str, float]:
    """A bound for each leaf: given by name or in order, or one bound C shared as C / sqrt(L)."""
    if isinstance(norm, (int, float)):
        validate.positive(max_grad_norm=norm)
        return dict.fromkeys(names, norm / math.sqrt(len(names)))
    remedy = f"give one bound, or one for each of the {len(names)} layers {names}"
    if not isinstance(norm, Mapping):
        validate.check(len(norm) == len(names), "max_grad_norm", list(norm), remedy)
        norm = dict(zip(names, norm, strict=True))
    validate.check(set(norm) == set(names), "max_grad_norm", dict(norm), remedy)
    for bound in norm.values():
        validate.positive(max_grad_norm=bound)
    return {name: float(bound) for name, bound in norm.items()}
