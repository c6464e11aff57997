"""Remarks that belong to a plan: when compression does not help, what public labels are worth, what to expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.algorithms.choice import Choice
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
            "compression does not help here: noise in directions that no row has never reaches a margin, so a narrow "
            "release is not quieter where it counts, and it sees less of each gradient"
        )
    if facts.public is not None and facts.public.labelled:
        notes.append(
            f"{facts.public.rows:,} public rows have labels: also fit a model to them alone (epsilon=inf, no private "
            "row), and use the private one only where it does better"
        )
    if facts.b < 100:
        notes.append(
            f"n mu = {facts.b:.3g} is very small: expect little more than the majority class or the mean; more "
            "records, a larger epsilon or public rows help, another algorithm does not"
        )
    if best.research:
        notes.append(f"{best.name} is for research: no case is known in which it is the best choice")
    return tuple(notes)


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
