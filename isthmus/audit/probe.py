"""What a pipeline hands to its mechanisms, seen before the noise: through the pipeline's own code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from isthmus.audit.records import LinearRecords
from isthmus.base import validate
from isthmus.base.space import Space, as_space
from isthmus.core.pipeline import Pipeline, Release, Round, Stage, bind_stage, close_stage, fragment, slots, start
from isthmus.core.wire import Keys
from isthmus.gradients import Rows
from isthmus.lifts import discard
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.mechanisms import Exact
from isthmus.privacy.noise import SeededSource, Source
from isthmus.sketches import Sketch

Values = dict[str, ClippedSum]


@dataclass(frozen=True)
class _Intercept(Exact):
    """A mechanism that keeps what it is handed and adds no noise.  For audits: nothing here is private."""

    handed: list[ClippedSum] = field(default_factory=list)

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """The value itself."""
        self.handed.append(bounded)
        return bounded.value


class _Free:
    """A ledger for what is released about no records: it costs nothing."""

    def charge(self, stage: object, t: int) -> None:
        """Nothing."""


class Probe:
    """One round of a private pipeline at a public seed, stopped in front of its mechanisms.

    Maps and clip bounds are those of round `t` of a run with `seed`.  A later stage sees what the stages before it
    release on a record that is zero: one fixed public transcript for every dataset.

    >>> from isthmus.core.pipeline import Promise
    >>> from isthmus.privacy import Clip, FullBatch, Gaussian
    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(4.0))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> value = Probe(pipe, 2).values(pipe.stages[0], LinearRecords([[3.0, 4.0], [0.0, 0.5]]))["main/gradient"]
    >>> [round(v, 6) for v in value.value.tolist()], value.bound
    ([0.6, 1.3], 1.0009765625)
    """

    def __init__(self, pipe: Pipeline, space: Space | int, *, seed: int = 0, t: int = 0) -> None:
        validate.check(pipe.private, "pipe", pipe, "give a private pipeline: there is nothing else to audit")
        assert pipe.promise is not None
        self.space, self.promise = as_space(space), pipe.promise
        state = replace(start(pipe, torch.zeros(self.space.d, dtype=torch.float64), seed), t=t)
        read, rows = lambda: state.w, self._public_rows
        self.round = Round(pipe, state, space=self.space, seed=seed, epoch=0, read=read, public_rows=rows)
        nobody = LinearRecords(torch.zeros(1, self.space.d, dtype=torch.float64), self.space)
        for stage in self.round.active:
            bind_stage(self.round, stage)
            silent = [replace(release, lift=discard) for release in stage.releases]
            self._close(replace(stage, releases=silent), nobody, None, Keys(noise=SeededSource(seed)))

    @property
    def stages(self) -> list[Stage]:
        """The private stages of the round."""
        return [stage for stage in self.round.active if stage.private]

    def sketch(self, slot: str) -> Sketch:
        """The map of a release."""
        return self.round.sketches[slot]

    def share(self, release: Release, slot: str) -> float:
        """The bound of one record's share right after the clip."""
        return float(release.clipped.total(self.round.bounds[slot]))

    def values(self, stage: Stage, records: LinearRecords, index: Tensor | None = None) -> Values:
        """What each release of a stage hands to its mechanism, by slot, for the records of an index (None: all)."""
        held, released = dict(self.round.held), dict(self.round.released)
        taps = {slot: _Intercept() for *_, slot in slots([stage])}
        releases = [replace(release, mechanism=taps[slot], lift=discard) for _, release, slot in slots([stage])]
        try:
            self._close(replace(stage, releases=releases), records, index, Keys())
        finally:  # the transcript stays what it was, whatever the records are
            self.round.held, self.round.released = held, released
        return {slot: tap.handed[0] for slot, tap in taps.items()}

    def _close(self, stage: Stage, records: LinearRecords, index: Tensor | None, keys: Keys) -> None:
        """Release what the holder of the records sends, at no cost."""
        rows = stage.source(records, self.round.w, index, self.round.held)
        message = replace(fragment(self.round, stage, rows), divisor=1.0)
        close_stage(self.round, stage, message, keys, _Free())

    def _public_rows(self, w: Tensor, data: object) -> Rows:
        """Public data as rows: rows as they are, vectors as linear records."""
        if isinstance(data, Rows):
            return data
        return LinearRecords(data, self.space).rows(w)
