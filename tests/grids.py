"""Grids of cases in which every two values meet once, instead of all of them together."""

import itertools
from collections.abc import Iterable
from typing import Any


def pairs(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows of one value of each list: any two values of two lists stand together in one row at least."""
    lists = [list(each) for each in values]
    rows = list(itertools.product(*(range(len(each)) for each in lists)))
    meetings = {row: set(itertools.combinations(enumerate(row), 2)) for row in rows}
    missing, chosen = set().union(*meetings.values()), []
    while missing:
        best = max(rows, key=lambda row: len(missing & meetings[row]))
        missing -= meetings[best]
        chosen.append(tuple(each[at] for each, at in zip(lists, best, strict=True)))
    return chosen
