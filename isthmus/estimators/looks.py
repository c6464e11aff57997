"""Paid looks at rows outside a training: noisy counts and sums, each charged to a ledger before it is released."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from isthmus import privacy
from isthmus.base import validate
from isthmus.core.group import ALONE, Group
from isthmus.core.parts import FixedRows
from isthmus.core.pipeline import Local, Promise, Release, RunContext, Stage, look
from isthmus.core.wire import Keys
from isthmus.estimators.linear import LedgerLike
from isthmus.gradients import Counts, Dense, Rows
from isthmus.lifts import discard
from isthmus.privacy.event_json import dpa
from isthmus.privacy.ledger import RunLedger, opened
from isthmus.privacy.statement import Account

_ROOT = 1 + 2.0**-40
"""Room for the rounding of a norm that all rows have."""


@dataclass
class Looks:
    """The looks of one measurement: each is a stage, charged to the ledger before it is released.

    multiplier   of the noise of all looks together
    ranks, whole  who has the rows, and how many they have together where that is public
    covered      the rows are apart from those of a release that is already charged and at least as costly: the
                 ledger notes the looks, and they add nothing (see `covers`)
    """

    multiplier: float
    promise: Promise
    ledger: Any
    covered: bool = False
    noise_seed: int | None = None
    ranks: Group = ALONE
    whole: int | None = None
    taken: list[Stage] = field(default_factory=list)
    _run: RunLedger | None = None

    def __post_init__(self) -> None:
        self.source: privacy.Source = privacy.SecretSource()
        if self.noise_seed is not None:
            self.source = privacy.SeededSource(self.noise_seed)

    @classmethod
    def paid_from(cls, ledger: LedgerLike, epsilon: float, delta: float, adjacency: str, **others: Any) -> Looks:
        """Looks that cost so much together, charged to a ledger, its path, or to one of their own."""
        validate.positive(epsilon=epsilon)
        validate.one_of([member.value for member in privacy.Adjacency], adjacency=adjacency)
        own = privacy.Adjacency(adjacency)
        ledger = opened(ledger, own) or privacy.Ledger(budget=(epsilon, delta), adjacency=own)
        remedy = f"give adjacency={ledger.adjacency.value!r}, for which the ledger counts its charges"
        validate.check(ledger.adjacency is own, "adjacency", adjacency, remedy)
        multiplier = privacy.noise_multiplier(epsilon=epsilon, delta=delta, adjacency=own)
        return cls(multiplier, Promise(epsilon, delta, own), ledger, **others)

    def statement(self, assumptions: Sequence[str]) -> privacy.PrivacyStatement:
        """What the looks that were taken cost together."""
        adjacency = self.promise.adjacency
        account = Account(self.promise.delta, adjacency, self.whole, self.noise_seed is not None, assumptions)
        for stage in self.taken:
            mechanisms = [release.mechanism for release in stage.releases]
            names, how = [stage.name] * len(mechanisms), stage.sampler.describe()
            account.add(stage.event(adjacency), *mechanisms, names=names, sampler=how, noise=self.source.describe())
        return account.statement()

    @contextmanager
    def announced(self, shares: Mapping[str, float]) -> Iterator[None]:
        """A hold on the ledger for these looks, by their names, with shares of the budget that sum to 1."""
        events: dict[str, dpa.DpEvent] = dict.fromkeys(shares, dpa.NoOpDpEvent())
        if not self.covered:
            adjacency = self.promise.adjacency
            events = {name: self._gaussian(share).event(adjacency) for name, share in shares.items()}
        self.ranks.on_leader(lambda: self.ledger.require(privacy.compose(events.values())))  # all of it or nothing
        hold: AbstractContextManager[RunLedger | None] = nullcontext()
        if not self.ranks.rank:
            hold = self.ledger.run(events, seeded=self.noise_seed is not None)
        with hold as self._run:
            yield

    def counts(self, name: str, bins: np.ndarray, width: int, share: float) -> tuple[np.ndarray, float]:
        """How many rows have each cell, for each of the columns of `bins`; and the noise's standard deviation."""
        places, columns = torch.from_numpy(np.ascontiguousarray(bins)), bins.shape[1]
        rows = Counts(lambda lo, hi: places[lo:hi], len(bins), columns, width)
        noisy, noise = self._noisy_sum(name, rows, math.sqrt(columns) * _ROOT, share)
        return noisy.reshape(columns, width), noise

    def sums(self, name: str, terms: np.ndarray, length: float, share: float) -> tuple[np.ndarray, float]:
        """The sum of the rows' terms, each of at most this length; and the noise's standard deviation."""
        return self._noisy_sum(name, Dense(torch.from_numpy(terms)), length * _ROOT, share)

    def noise(self, length: float, share: float) -> float:
        """The standard deviation of the noise in each number of a look."""
        return self._gaussian(share).multiplier * length

    def take(self, name: str, rows: Rows, clip: privacy.Clip, mechanism: privacy.Mechanism) -> np.ndarray:
        """One look that was announced: what a mechanism releases of the clipped sum of some rows."""
        stage = Stage(privacy.FullBatch(1.0), [Release("sums", clip=clip, mechanism=mechanism, lift=discard)], name)
        sheet = FixedRows(rows)
        holders, keys = Local(sheet, self.ranks), Keys(0, self.source)
        context = RunContext(holders, sheet.space, keys, ledger=self._run, whole=self.whole)
        released = look(stage, context, self.promise)["sums"].numpy()
        self.taken.append(stage)
        return released

    def _gaussian(self, share: float) -> privacy.Gaussian:
        return privacy.Gaussian(self.multiplier / math.sqrt(share))

    def _noisy_sum(self, name: str, rows: Rows, length: float, share: float) -> tuple[np.ndarray, float]:
        return self.take(name, rows, privacy.Clip(length), self._gaussian(share)), self.noise(length, share)


def covers(event: dpa.DpEvent, multiplier: float) -> bool:
    """Whether what was released of some rows is at least as costly as Gaussian looks of this multiplier at others.

    A record is in one of two parts, drawn by coins that look at no record.  Seen with the coins fixed, one part is as
    it was and the other is moved by one record: so both releases together are as private as the dearer of them
    (parallel composition), and composed with anything else too where one is Gaussian with at least as much noise as
    the other, for its trade-off is then nowhere worse.
    """
    whole = privacy.joint([event])
    return isinstance(whole, dpa.GaussianDpEvent) and whole.noise_multiplier <= multiplier * (1 + 1e-12)
