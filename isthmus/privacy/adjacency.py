"""Adjacency: which two datasets an adversary may not tell apart, and what that does to a sensitivity."""

from __future__ import annotations

from enum import Enum

from isthmus.base import validate


class Adjacency(Enum):
    """Neighbouring datasets: a sum of records bounded by C moves by `factor * C`.

    | relation | neighbours | factor |
    |---|---|---|
    | ADD_REMOVE | one record more or less: the number of records is protected too | 1 |
    | REPLACE_ONE | one record exchanged, the number of records public | 2 |

    This is the only place where a relation becomes a sensitivity; noise is always stated relative to C.

    >>> Adjacency.ADD_REMOVE.sensitivity(3.0), Adjacency.REPLACE_ONE.sensitivity(3.0)
    (3.0, 6.0)
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    @classmethod
    def of(cls, adjacency: Adjacency | str) -> Adjacency:
        """A relation as its type; it may be given by its name.

        >>> Adjacency.of("replace-one") is Adjacency.REPLACE_ONE
        True
        """
        if isinstance(adjacency, Adjacency):
            return adjacency
        validate.one_of([member.value for member in cls], adjacency=adjacency)
        return cls(adjacency)

    @property
    def factor(self) -> int:
        """How many record bounds a sum moves by."""
        return 1 if self is Adjacency.ADD_REMOVE else 2

    def sensitivity(self, bound: float) -> float:
        """The most that a sum of records, each of norm at most `bound`, moves between neighbours."""
        validate.positive(bound=bound)
        return self.factor * bound

    def describe(self) -> str:
        """The relation in words."""
        return {
            Adjacency.ADD_REMOVE: "adding or removing one record",
            Adjacency.REPLACE_ONE: "replacing one record by another",
        }[self]
