"""A case: data with one record that comes and goes, and a training that looks at it.  Deterministic by its number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from attack.data import Rng, mutated
from attack.probes import Arrays, Movement, movement
from isthmus.audit.replays import _Place


@dataclass(frozen=True)
class Case:
    """One attack.

    family   what is attacked: the worst ratio is reported for each
    label    everything that was drawn, in words
    arrays   the records, first axis; the one that comes and goes is at the place `at`
    other    what replaces that record (replace-one), or None (add/remove)
    train    one training through the library's own code; what it returns is public
    free     the arrays that the search may change
    counted  whether the number of records is public, as declared: a neighbour has as many then
    share    of the others that are in a batch
    """

    family: str
    label: str
    arrays: Arrays
    at: int
    train: Callable[[Arrays], object]
    free: tuple[str, ...]
    seed: int
    share: float = 1.0
    other: Arrays | None = None
    counted: bool = False

    def moved(self) -> Movement | None:
        """How far the record moves what is released, in units of the stated bound."""
        if self.other is not None:
            rows = {name: _with(values, self.at, self.other[name]) for name, values in self.arrays.items()}
        else:
            rows = {name: np.delete(values, self.at, 0) for name, values in self.arrays.items()}
        place = _Place(self.at, self.n, more=int(self.other is None))
        return movement(self.train, self.arrays, rows, place, self.seed, self.share)

    def mutated(self, rng: Rng) -> Case:
        """The same attack with other data or another place."""
        if rng.random() < 0.2:
            order = np.insert(np.delete(np.arange(self.n), self.at), at := int(rng.integers(self.n)), self.at)
            return replace(self, arrays={name: values[order] for name, values in self.arrays.items()}, at=at)
        name = str(rng.choice(self.free))
        return replace(self, arrays={**self.arrays, name: mutated(rng, self.arrays[name], self.at)})

    @property
    def n(self) -> int:
        """The number of records, the one that comes and goes included."""
        return len(next(iter(self.arrays.values())))


def _with(values: np.ndarray, at: int, row: np.ndarray) -> np.ndarray:
    out = values.copy()
    out[at] = row
    return out


def size(rng: Rng, most: int, kind: str) -> int:
    """How many records: mostly few, now and then very many; a power of two is crossed with effect by many only."""
    if kind == "power_of_two" and rng.random() < 0.3:
        return int(rng.integers(most // 2, most + 1))
    top = np.log2(most if rng.random() < 0.06 else min(most, 512))
    return max(2, int(2 ** rng.uniform(1, top)) + int(rng.integers(-1, 2)))


FAMILIES = [0.45, 0.25, 0.3]
"""How often recipes, modules and kinds of rows are drawn."""


def draw(seed: int, number: int, most: int) -> Case:
    """The case of a number; `most` bounds its records."""
    from attack import kinds, modules, recipes

    rng = np.random.default_rng([seed, number])
    family = rng.choice(3, p=FAMILIES)
    return (recipes, modules, kinds)[family].draw(rng, most)


def replay(seed: int, number: int, most: int, path: tuple[int, ...] = ()) -> Case:
    """The case of a number after the changes of the search."""
    case = draw(seed, number, most)
    for step in path:
        case = case.mutated(np.random.default_rng([seed, number, step]))
    return case
