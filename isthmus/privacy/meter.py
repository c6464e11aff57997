"""What a ledger's totals cost, asked of the accountant seldom."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from isthmus.base.validate import refuse
from isthmus.privacy import accounting, event_json
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import Json, Keyed

Totals = Mapping[str, int]
"""How often each release was made, by the canonical JSON of its event."""


class Meter:
    """Epsilon of totals, computed seldom.

    Epsilon grows with every count, so totals found within the budget vouch for all smaller ones.  A check looks
    ahead, to totals grown by a factor that doubles with success and halves with failure: a run of T
    reservations asks the accountant about log T times.
    """

    def __init__(self, budget: tuple[float, float] | None, adjacency: Adjacency) -> None:
        self.budget, self.adjacency = budget, adjacency
        self._cache: dict[tuple[frozenset[tuple[str, int]], float], float] = {}
        self._within: Totals = {}
        self._beyond: Totals | None = None
        self._ahead = 1.0

    def check_supported(self, events: Iterable[Json]) -> None:
        """Refuse events the accountant cannot compose, before a run begins."""
        for event in events:
            if not accounting.supports(event_json.from_json(event), self.adjacency):
                refuse(
                    "event",
                    event,
                    f"use a mechanism that an accountant composes for {self.adjacency.value}: none composes this event",
                )

    def epsilon(self, totals: Totals, delta: float) -> float:
        """By the accountant, remembered."""
        if not any(totals.values()):
            return 0.0
        key = (frozenset(totals.items()), delta)
        if key not in self._cache:
            if len(self._cache) >= 256:
                self._cache.clear()
            event = event_json.composed((json.loads(leaf), count) for leaf, count in totals.items())
            self._cache[key] = float(accounting.epsilon_of(event, delta, self.adjacency))
        return self._cache[key]

    def affordable(self, totals: Totals, event: Keyed, rounds: int, least: int) -> int:
        """The most of `rounds` that fit into the budget on top of `totals`; 0 where not even `least` do."""
        if self._affords(plus(totals, event, rounds)):
            return rounds
        if rounds == least or not self._affords(plus(totals, event, least)):
            return 0
        low, high = least, rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._affords(plus(totals, event, middle)) else (low, middle)
        return low

    def fits(self, totals: Totals) -> bool:
        """Whether the budget holds these totals: then it holds all smaller ones, and nobody asks again.

        What a run has planned is asked for before it begins.  A bound of fewer rounds can be the larger number where
        the grid that it is computed on is another one, and must not refuse the last rounds of what was found to fit.
        """
        return _covers(self._within, totals) or self._try(totals)

    def _affords(self, totals: Totals) -> bool:
        if _covers(self._within, totals):
            return True
        if self._beyond is not None and _covers(totals, self._beyond):
            return False
        ahead = {key: count + int(count * self._ahead) for key, count in totals.items()}
        if self._try(ahead):
            self._ahead = min(1.0, 2 * self._ahead)
            return True
        self._ahead = max(1e-4, self._ahead / 2)
        return self._try(totals)

    def _try(self, totals: Totals) -> bool:
        assert self.budget is not None
        if self._beyond is not None and _covers(totals, self._beyond):
            return False
        fits = self.epsilon(totals, self.budget[1]) <= self.budget[0]
        if fits:
            self._within = totals
        else:
            self._beyond = totals
        return fits


def plus(totals: Totals, event: Keyed, rounds: int = 1) -> dict[str, int]:
    """The totals with so many rounds of an event more."""
    new = Counter(totals)
    for key, count in event:
        new[key] += count * rounds
    return {key: count for key, count in new.items() if count}


def _covers(large: Totals, small: Totals) -> bool:
    return all(large.get(key, 0) >= count for key, count in small.items())
