"""What the backward pass of one physical batch tells: the rows of every leaf, until all of a record is known.

A leaf's rows come from every use of its weight.  Where a release clips codes they are encoded at once, and only codes
are kept; where leaves are clipped by themselves a leaf is summed as soon as its last use has spoken, and nothing is
kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from isthmus.base import validate
from isthmus.base.recording import recording_now
from isthmus.core.measuring import fragment, measure_leaf, measured_leaves
from isthmus.core.pipeline import Release, Round, Stage, slots
from isthmus.core.wire import Message
from isthmus.gradients.base import Rows
from isthmus.gradients.computed import Computed
from isthmus.gradients.stack import Stack
from isthmus.objectives.module import merged
from isthmus.privacy.clips import ClippedSum, Rounding
from isthmus.sketches.base import Sketch, join_codes, leaf_code


@dataclass
class Gathering:
    """Rows and codes by leaf, in the order they came.

    fast   whether rows are what the device computes, or sums of exact products
    """

    stage: Stage
    fast: bool
    rows: dict[str, list[Rows]] = field(default_factory=dict)
    codes: dict[str, dict[str, list[Rows | None]]] = field(default_factory=dict)
    sums: dict[str, dict[str, ClippedSum]] = field(default_factory=dict)
    _watched: str | None = ""
    """The leaf whose two passes are compared in this round; all of them are (None) in what is recorded."""

    def __bool__(self) -> bool:
        return bool(self.rows or self.codes or self.sums)

    def clear(self) -> None:
        """Forget everything."""
        self.rows, self.codes, self.sums = {}, {}, {}

    def take(self, round: Round, name: str, rows: Rows, uses: int, factor: float, rounding: Rounding) -> None:
        """One use's rows; the leaf was used `uses` times in the passes of this batch; `factor` is as in `message`."""
        keep = False
        for _, release, slot in slots([self.stage]):
            sketch = round.sketches[slot]
            if not encodes_rows(release, sketch):
                keep = True
                continue
            self._check_open(release, name)
            codes = self.codes.setdefault(release.name, {}).setdefault(name, [])
            codes.append(self._smaller(leaf_code(sketch, name, rows)))
            if len(codes) == uses and self._early(release, sketch):
                self._close(round, release, slot, name, factor, rounding)
        if keep:
            smaller = self._smaller(rows)
            assert smaller is not None
            self.rows.setdefault(name, []).append(smaller)

    def missing(self, names: Sequence[str]) -> list[str]:
        """The leaves of these that nothing has come of."""
        tables: list[Collection[str]] = [self.rows, *self.codes.values(), *self.sums.values()]
        return [name for name in names if not any(name in table for table in tables)]

    def size(self, otherwise: int) -> int:
        """The number of examples whose rows are held; `otherwise` where none are."""
        tables: list[Mapping[str, Sequence[Rows | None]]] = [self.rows, *self.codes.values()]
        sizes = (piece.n for table in tables for pieces in table.values() for piece in pieces if piece is not None)
        return next(sizes, otherwise)

    def message(
        self, round: Round, names: Sequence[str], rounding: Rounding, factor: float = 1.0, groups: Tensor | None = None
    ) -> Message:
        """The sum of the batch; rows are multiplied by `factor`, and micro-batches made, before they are clipped."""

        def whole(rows: Rows) -> Rows:  # when all of a record is known: what overflows anywhere counts as zero
            rows = rows.scaled(factor) if factor != 1.0 else rows
            return rows if groups is None else rows.regrouped(groups)

        self._watched = None if recording_now() else names[round.t % len(names)]
        stack = [(name, self._joined(name, self.rows.get(name, []))) for name in names] if self.rows else []
        rows, codes, ready = whole(Stack(_all(stack))) if stack else None, {}, {}
        for _, release, slot in slots([self.stage]):
            sketch = round.sketches[slot]
            if not encodes_rows(release, sketch):
                continue
            if self._early(release, sketch):
                for name in [name for name in names if name not in self.sums.get(release.name, {})]:
                    self._close(round, release, slot, name, factor, rounding)
                sums = [self.sums[release.name][name] for name in names]
                ready[release.name] = measured_leaves(release.clipped, round.bounds[slot], sums, rounding)
                continue
            bounds = release.clipped.each(round.bounds[slot])
            by_leaf = self.codes[release.name]
            pieces = {name: self._joined(name, by_leaf.get(name, []), _of_leaf(bounds, name)) for name in names}
            codes[release.name] = whole(join_codes(sketch, pieces))
        return fragment(round, self.stage, rows, codes, rounding, ready)

    # ------------------------------------------------------------ one leaf

    def _close(self, round: Round, release: Release, slot: str, name: str, factor: float, rounding: Rounding) -> None:
        """Sum a leaf that is clipped by itself, and forget its rows."""
        pieces = self.codes.get(release.name, {}).pop(name, [])
        rows = self._joined(name, pieces, _of_leaf(release.clipped.each(round.bounds[slot]), name))
        assert rows is not None
        if isinstance(rows, Computed):
            rows.hold = True
        rows = rows.scaled(factor) if factor != 1.0 else rows
        measured = measure_leaf(release.clipped, round.bounds[slot], name, rows, rounding)
        self.sums.setdefault(release.name, {})[name] = measured

    def _check_open(self, release: Release, name: str) -> None:
        if name in self.sums.get(release.name, {}):
            raise validate.InvalidInput(
                f"a gradient of leaf {name!r} arrived after the leaf was summed: with per-layer clipping a batch goes "
                'through the module and back once (call backward() once, on the whole loss), or use clipping="flat"'
            )

    def _early(self, release: Release, sketch: Sketch) -> bool:
        """Whether leaves are summed one by one: clipped by themselves, and too large to keep."""
        return self.fast and release.clipped.by_leaf and sketch.m == sketch.d

    def _smaller(self, rows: Rows | None) -> Rows | None:
        """Products in place of their factors, where they take less room until the backward pass has ended."""
        if rows is None or not self.fast:
            return None if rows is None else rows.compact()
        computed = rows.computed()
        return rows if isinstance(computed, Computed) else computed

    def _joined(self, name: str, pieces: Sequence[Rows | None], bound: float | None = None) -> Rows | None:
        """All that a leaf's rows are the sum of, as they are added up; weighted ones are within `bound`."""
        rows = merged(name, pieces)
        computed = rows.computed(bound) if self.fast and rows is not None else rows
        if isinstance(computed, Computed):
            computed.watched = self._watched in (None, name)
        return computed


def _all(items: Sequence[tuple[str, Rows | None]]) -> list[tuple[str, Rows]]:
    return [(name, rows) for name, rows in items if rows is not None]


def _of_leaf(bounds: float | Mapping[str, float], name: str) -> float:
    return bounds[name] if isinstance(bounds, Mapping) else bounds


def encodes_rows(release: Release, sketch: Sketch) -> bool:
    """Whether a release needs only the codes of the rows, leaf by leaf, and never the rows themselves."""
    return sketch.leafwise and release.clip is not None and not release.clip.before
