"""Remarks that belong to a plan: when compression does not help, what public labels are worth, what to expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.algorithms.choice import Choice
from isthmus.algorithms.constants import CONSTANTS
from isthmus.algorithms.facts import Facts


def notes_of(facts: Facts, choices: Sequence[Choice]) -> tuple[str, ...]:
    """What a reader of the plan should know."""
    if not choices or not facts.private:
        return ()
    notes = []
    best = choices[0]
    whole = best.of is not None and best.of.direct and not best.of.needs
    if whole and len({choice.algorithm for choice in choices}) > 1:
        notes.append(
            "compression does not help here: noise counts only in the directions that rows have, so a compressed "
            "release is no quieter where it counts, and it loses a part of each gradient"
        )
    start = facts.public is not None and facts.public.labelled
    if start:
        notes.append(_labelled(facts, best, whole))
    if (expect := _expectation(facts)) is not None:
        than = "the model of the public rows" if start and whole else _trivial(facts)
        notes.append(
            f"for {facts.d:,} columns there are too few records at this epsilon (n mu = {facts.b:.3g}): expect results "
            f"{expect} than {than}; more records, a larger epsilon, fewer columns or labelled public rows would help, "
            "another algorithm would not"
        )
    if best.research:
        notes.append(f"{best.name} is for research: no case is known in which it is the best choice")
    return tuple(notes)


def _trivial(facts: Facts) -> str:
    """What is predicted without any column."""
    return "the majority class" if facts.of_loss.labelled() else "the mean"


def _labelled(facts: Facts, best: Choice, whole: bool) -> str:
    """What becomes of labelled public rows."""
    assert facts.public is not None
    used = "the run starts from a model of these rows, and private steps improve on it as far as the budget allows"
    unused = (
        f"{best.name} cannot start from a model: compare it with one trained on these rows alone, at no privacy cost"
    )
    return f"{facts.public.rows:,} public rows have labels: {used if whole else unused}"


def _expectation(facts: Facts) -> str | None:
    """What to say where n mu is too small; CSR rows have far fewer directions than columns."""
    columns = min(facts.d, CONSTANTS.sparse_columns) if facts.sparse else facts.d
    least, enough = CONSTANTS.nothing_b
    if facts.b < max(least, columns):
        return "no better"
    return "little better" if facts.b < max(enough, 3 * columns) else None


def energy_of(facts: Facts) -> dict[str, Any] | None:
    """The public energy curve, with the k that was chosen from it."""
    if facts.public is None or facts.public.curve is None:
        return None
    curve = facts.public.curve
    return {
        "k": list(curve.ks),
        "captured": list(curve.shares),
        "chosen": facts.public_size,
        "source": f"{curve.n_fit} public rows, judged on {curve.n_holdout} others",
    }
