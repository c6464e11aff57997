"""The options of Opacus: which are supported, which are refused, and why."""

from __future__ import annotations

from typing import Any

from isthmus.base import validate

MODES = ("hooks", "functorch", "ew", "ghost")
"""Opacus' ways to the same sums: here there is one, which takes norms from the factors as its "ghost" does."""
SHARDED = "give the bare module, and make_private(group=) for several ranks: sharded modules are not supported"
ADAPTIVE = {"target_unclipped_quantile": "quantile", "clipbound_learning_rate": "rate"}
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


def check_loss(criterion: Any, reduction: str) -> None:
    """A mean over the batch that is not one over examples would let one record move the others' shares.

    >>> from torch import nn
    >>> check_loss(nn.CrossEntropyLoss(reduction="sum"), "mean")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: loss_reduction='mean' is not allowed: give 'sum', which is the ...
    """
    validate.one_of(("mean", "sum"), loss_reduction=reduction)
    own = getattr(criterion, "reduction", reduction)
    validate.check(
        own in (reduction, "none"), "loss_reduction", reduction, f"give {own!r}, which is the criterion's reduction"
    )
    weighted = reduction == "mean" and getattr(criterion, "weight", None) is not None
    remedy = "use reduction='sum' with class weights: a mean with them divides by the weights of the whole batch"
    validate.check(not weighted, "criterion", type(criterion).__name__, remedy)


def check_budget(noise_multiplier: float, budget: tuple[float, float] | None) -> None:
    """What has no noise has no finite epsilon: no budget pays for it."""
    remedy = (
        "give a number above 0, or use a ledger without a budget to look for mistakes: 0 adds no noise, for which "
        "no budget is enough"
    )
    validate.check(noise_multiplier > 0 or budget is None, "noise_multiplier", noise_multiplier, remedy)


def check(*, grad_sample_mode: str, rand_on_empty: bool, clipping: str, more: dict[str, Any]) -> dict[str, Any]:
    """The options of adaptive clipping; everything else unknown or unsupported is refused by its name.

    >>> check(grad_sample_mode="hooks", rand_on_empty=False, clipping="adaptive",
    ...       more={"target_unclipped_quantile": 0.7})
    {'quantile': 0.7}
    """
    validate.check(grad_sample_mode != "ghost_fsdp", "grad_sample_mode", grad_sample_mode, SHARDED)
    validate.one_of(MODES, grad_sample_mode=grad_sample_mode)
    validate.check(
        not rand_on_empty,
        "rand_on_empty",
        rand_on_empty,
        "leave it out: an empty batch is released as noise here and paid for, and random data would be wrong",
    )
    options = {}
    for name, value in more.items():
        if name not in ADAPTIVE:
            validate.refuse(name, value, REFUSED.get(name, "check its name: make_private has no such option"))
        validate.check(
            clipping == "adaptive", name, value, 'leave it out, or give clipping="adaptive", to which it belongs'
        )
        options[ADAPTIVE[name]] = value
    return options
