"""A plan as text."""

import math
from typing import Any

import numpy as np
import pytest
from cells import rows, targets

from isthmus import L1Ball, plan

PLANS = [
    {"n": 30_000, "d": 124, "epsilon": 1.0},
    {"n": 3_000_000_000, "d": 5_000_000, "epsilon": 0.01, "sparse": True, "loss": "softmax", "classes": 1000},
    {"n": 30_000, "d": 40, "epsilon": 1.0, "smoothness": np.ones(40), "max_dims": 20},
    {"n": 30, "d": 3, "epsilon": math.inf, "constraint": L1Ball(1.0)},
]


@pytest.mark.parametrize("facts", PLANS)
def test_tables_are_aligned_and_narrow(facts: dict) -> None:
    ranked = plan(**facts, exact=False)
    lines = ranked.table().splitlines()
    assert len(lines) == 2 + len(ranked.choices) and max(map(len, lines)) <= 120
    head = lines[0]
    assert head.index("algorithm") == lines[2].index(ranked.best.algorithm)
    assert all(len(line) == len(lines[1]) for line in (head, *lines[2:]))  # nothing is cut off at the right
    for name in ("noise mult.", "in a score", "bytes", "memory", "time", "passes"):
        assert name in head


def test_words_say_what_why_and_what_not() -> None:
    ranked = plan(n=30_000, d=124, epsilon=1.0, exact=False)
    text = ranked.words()
    said = ["Use dp_gd (shapes and statistics bought)", "epsilon 1", "one core", "estimates", "Evidence: measured"]
    for part in (*said, "dp_fw", "compression does not help here"):
        assert part in text, part
    assert "compression does not help" not in plan(n=30_000, d=124, epsilon=1.0, max_dims=20, exact=False).words()


def test_notes_on_public_labels_and_tiny_budgets() -> None:
    x = rows(40, 6)
    ranked = plan(n=300, d=6, epsilon=0.1, public=(x, targets(x, "logistic")), exact=False)
    notes = " ".join(ranked.notes)
    assert "40 public rows have labels: the run starts from a model of these rows" in notes
    assert "too few records" in notes and "expect results no better than the model of the public rows" in notes
    few = plan(n=3000, d=60, epsilon=1.0, max_dims=5, public=(rows(40, 60), np.arange(40) % 2), exact=False)
    assert "cannot start from a model" in " ".join(few.notes)
    quiet = " ".join(plan(n=30_000, d=6, epsilon=1.0, public=x, exact=False).notes)
    assert "labels" not in quiet and "too few records" not in quiet
    named = plan(n=300, d=6, epsilon=1.0, algorithms=["rpdp_sgd"], exact=False)
    assert named.best.research and "research" in " ".join(named.notes)


SMALL = [
    ({"n": 400, "d": 6, "epsilon": 0.1}, "expect results no better than the majority class"),
    ({"n": 400, "d": 6, "epsilon": 0.1, "loss": "squared"}, "expect results no better than the mean"),
    ({"n": 1000, "d": 6, "epsilon": 0.1}, "expect results perhaps no better than the majority class"),
    ({"n": 4000, "d": 200, "epsilon": 0.1}, "expect results perhaps no better than the majority class"),
    ({"n": 4000, "d": 60, "epsilon": 0.1}, None),
    ({"n": 4000, "d": 20, "epsilon": 0.1}, None),
    ({"n": 25_000, "d": 10_000, "epsilon": 0.1, "sparse": True}, None),
]


@pytest.mark.parametrize(("facts", "said"), SMALL)
def test_a_budget_that_is_too_small_is_said_to_be(facts: dict[str, Any], said: str | None) -> None:
    """n mu is compared with the columns: 4,000 records are enough for 20 of them, and not for 200."""
    notes = " ".join(plan(**facts, exact=False).notes)
    assert said in notes if said is not None else "expect" not in notes
