"""Losses by their names: every subclass of `LinearModel` that states one is known, wherever it was written."""

from __future__ import annotations

from isthmus.base import validate
from isthmus.base.class_registry import subclasses
from isthmus.objectives.linear import LinearModel

Loss = type[LinearModel]


def known_losses(labels: bool | None = None) -> dict[str, Loss]:
    """Names and classes; of classifiers or of regressions alone where `labels` says so.

    >>> {"huber", "poisson", "squared"} <= set(known_losses(labels=False)), "hinge" in known_losses(labels=False)
    (True, False)
    """
    losses: dict[str, Loss] = {}
    for kind in subclasses(LinearModel):  # type: ignore[type-abstract]
        if vars(kind).get("name") and labels in (None, kind.labelled()):
            losses.setdefault(kind.name, kind)  # the nearest one: nobody takes over a name by importing something
    return losses


def loss_of(loss: str | Loss, labels: bool | None = None) -> Loss:
    """The class of a loss that was given by its name or as a class.

    >>> loss_of("logistic") is loss_of(loss_of("logistic"))
    True
    """
    losses = known_losses(labels)
    if isinstance(loss, str):
        validate.check(loss in losses, "loss", loss, f"choose one of {list(losses)}, or give a subclass of LinearModel")
        return losses[loss]
    fits = isinstance(loss, type) and issubclass(loss, LinearModel)
    validate.check(fits, "loss", loss, f"choose one of {list(losses)}, or give a subclass of LinearModel")
    targets = "labels (reads = SignedLabels)" if labels else "numbers (reads = RealTargets)"
    validate.check(labels in (None, loss.labelled()), "loss", loss.__name__, f"give a loss of {targets}")
    return loss


def name_of(loss: str | Loss) -> str:
    """The name of a loss, or that of its class."""
    return loss if isinstance(loss, str) else vars(loss).get("name") or loss.__name__


def loss_for(loss: str | Loss, classes: int) -> Loss:
    """The classifier that takes so many classes: the loss itself, or the one that says it extends it.

    >>> loss_for("logistic", 2).__name__, loss_for("logistic", 3).__name__, loss_for("hinge", 3).__name__
    ('Logistic', 'Softmax', 'OneVsRest')
    """
    kind = loss_of(loss, labels=True)
    if classes == 2 or kind.outputs(classes) > 1:
        return kind
    every = subclasses(LinearModel)  # type: ignore[type-abstract]
    wider = [candidate for candidate in every if vars(candidate).get("extends") is kind]
    remedy = f"give two classes, or declare a loss with extends = {kind.__name__} for more: {name_of(kind)} is for two"
    validate.check(bool(wider), "classes", classes, remedy)
    return wider[0]
