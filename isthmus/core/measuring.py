"""Where the data is: sample, take per-example rows, measure them, send.  Only `measure` reads per-example values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import exact_products
from isthmus.base.parallel import in_order
from isthmus.base.randomness import key
from isthmus.core.wire import Keys, Message
from isthmus.gradients import Rows
from isthmus.gradients.adding import kappa
from isthmus.gradients.layers.passes import private_records
from isthmus.privacy.clips import ClippedSum, Clipping, Rounding, encoded_sum, part_of_error, weighted_sum
from isthmus.problems.queries import Answered, Query
from isthmus.sketches import Sketch

if TYPE_CHECKING:
    from isthmus.core.parts import Records
    from isthmus.core.pipeline import Release, Round, Stage


@dataclass(frozen=True)
class Client:
    """One holder of records: its name, its problem, and how often it was asked in this round before.

    whole   how many records all holders have together; its own where it is the only one
    share   what it may use of the error that rounding may give the sum of all holders
    joint   finds what is no sum, together with the other holders: its value at one of them, 0 at the others
    """

    name: str
    problem: Records
    visit: int = 0
    whole: int | None = None
    share: float = 1.0
    joint: Callable[[Query], Tensor] | None = None

    @property
    def role(self) -> str:
        """What its draws are keyed by: a client asked twice draws twice."""
        return f"{self.name}/{self.visit}" if self.visit else self.name


def measure(
    release: Release,
    sketch: Sketch,
    bound: float,
    rows: Rows | Query | None,
    codes: Rows | None = None,
    rounding: Rounding | None = None,
) -> ClippedSum:
    """The only code that reads per-example values: the clipped sum of codes, with its bound.

    With no clip, or a clip before the sketch, the sum is encoded and never the rows (the map is linear).  What is no
    sum over records is a `Query`, whose proven bound must be within that of the clip.
    """
    clip, rounding = release.clip, rounding or Rounding()
    if isinstance(rows, Query):
        if clip is None or clip.ord != 2 or rows.bound > clip.total(bound):
            remedy = f"give a clip in the norm 2 of at least {rows.bound}, by which one record can move it"
            validate.refuse("clip", clip, f"{remedy}: {type(rows).__name__} is released with its bound only")
        return ClippedSum(rows.value(), clip.ord, clip.total(bound))
    whole = codes if rows is None else rows
    assert whole is not None
    if clip is None:
        return ClippedSum(sketch.forward(whole.sum()), 2, math.inf)
    with exact_products(whole.device):  # a bound means nothing in reduced precision
        if not clip.before:
            whole = sketch.encode(whole) if codes is None else codes
        exact = whole.exact and not clip.before  # counts are, and what a map makes of their sum is not
        extra = 0.0 if exact else rounding.kappa(whole, encoded=whole.d < sketch.d)
        total, weights = clip.total(bound) * (1 + extra), clip.weights(whole, bound)
        each, error = clip.each(bound), extra * rounding.share
        if clip.before:
            value = encoded_sum(sketch, whole, weights, each, error, clip.ord)
            return ClippedSum(value, clip.ord, total * sketch.gain(clip.ord), dtype=whole.dtype)
        return ClippedSum(weighted_sum(whole, weights, each, error, clip.ord), clip.ord, total, dtype=whole.dtype)


def measure_leaf(clip: Clipping, bound: float, name: str, rows: Rows, rounding: Rounding) -> ClippedSum:
    """The clipped sum of one leaf, where leaves are clipped by themselves: no other has to be known."""
    extra = rounding.kappa(rows, encoded=False)
    with exact_products(rows.device):
        weights, own = clip.leaf_weights(name, rows, bound)
        value = weighted_sum(rows, weights, own, extra * rounding.share, clip.ord)
    return ClippedSum(value, clip.ord, own * (1 + extra), dtype=rows.dtype)


def measured_leaves(clip: Clipping, bound: float, sums: Sequence[ClippedSum], rounding: Rounding) -> ClippedSum:
    """The sums of all leaves, in their order, as one that is bounded as `measure` says.

    The dtype is that of the rows: in what dtype they were added up depends on how many there are, and must not tell.
    """
    dtype = min((leaf.dtype for leaf in sums if leaf.dtype is not None), key=lambda kind: kind.itemsize)
    extra = kappa(rounding.batch, dtype, encoded=False)
    value = torch.cat([leaf.value for leaf in sums])
    return ClippedSum(value, clip.ord, clip.total(bound) * (1 + extra), dtype=dtype)


def fragment(
    round: Round,
    stage: Stage,
    rows: Rows | Query | None,
    codes: Mapping[str, Rows] | None = None,
    rounding: Rounding | None = None,
    ready: Mapping[str, ClippedSum] | None = None,
) -> Message:
    """The message of one physical batch; its divisor is set once for the whole stage.  What is `ready` was measured."""
    values = {}
    for release, slot in stage.slots:
        if ready is not None and release.name in ready:
            values[release.name] = ready[release.name]
        elif round.pipe.wire.remembers:  # the sender's memory lives in R^d: encoded when it is sent
            assert isinstance(rows, Rows)
            values[release.name] = ClippedSum(rows.sum(), 2, math.inf)
        else:
            own_codes = None if codes is None else codes.get(release.name)
            bound = round.bounds.get(slot, math.inf)
            values[release.name] = measure(release, round.sketches[slot], bound, rows, own_codes, rounding)
    return Message(values, 0.0)


def contribute(round: Round, stage: Stage, client: Client, keys: Keys, physical: int | None = None) -> Message:
    """Where the data is: sample, take the rows, measure them, send.  `physical` bounds the rows held at once."""
    problem, sampler = client.problem, stage.sampler
    n, linear = problem.n, bool(getattr(problem, "linear", False))  # a linear model draws nothing and keeps nothing
    index, times = sampler.draw(n, round.t, keys, client.role), None
    if index is not None and len(index) > n and not any(release.clip is not None for release in stage.releases):
        # more draws than records: how often each was drawn.  Copies that are clipped one by one stay apart
        times = torch.bincount(index, minlength=n)
        index = times.nonzero().reshape(-1)
    divisor = batch = sampler.divisor(n, round.t)
    if client.whole not in (None, n):
        batch = sampler.divisor(client.whole, round.t)
    parts, apart = _batches(problem, stage, index, physical)

    def measured(number: int) -> Message:
        rows = _rows(round, stage, client, parts[number], times, keys, physical)
        share = part_of_error(number + 1, number + 1 == len(parts)) * client.share
        return fragment(round, stage, rows, rounding=Rounding(None if linear else batch, share))

    with nullcontext() if keys.noise is None or linear else private_records(not keys.noise.seeded, len(parts) > 1):
        several = in_order if apart and len(parts) > 1 else map  # batches that do not touch each other, at a time
        total = reduce(add, several(measured, range(len(parts))))
    fixed = getattr(sampler, "expected", None) is not None
    total = replace(total, divisor=divisor, fixed=fixed, records=0 if stage.private else n)
    return _sent(round, stage, total, client)


def _rows(
    round: Round,
    stage: Stage,
    client: Client,
    part: Tensor | slice | None,
    times: Tensor | None,
    keys: Keys,
    physical: int | None,
) -> Rows | Query:
    """The rows of one physical batch: of what is no sum over records, the query; of micro-batches, their means."""
    rows, whole = stage.source(client.problem, round.w, part, round.held), client.whole in (None, client.problem.n)
    if isinstance(rows, Query):
        name = type(rows).__name__
        remedy = f"leave it out: {name} is no sum, and one record more would shift every batch after it"
        validate.check(physical is None, "physical_batch_size", physical, remedy)
        if client.joint is not None or not whole:  # ranks answer together, an empty one too
            remedy = f"give what follows from it (step=), or use ranks: {name} is no sum of several holders'"
            if client.joint is None or not rows.adds_up:
                validate.refuse("clients", client.name, remedy)
            rows = Answered(client.joint(rows), rows.bound)
    elif times is not None and isinstance(part, Tensor):
        rows = rows.mixed(torch.arange(len(part))[:, None], times[part][:, None])
    if stage.groups is None:
        return rows
    remedy = "leave out physical_batch_size, and let one process hold the records: a micro-batch is clipped whole"
    validate.check(physical is None and whole and isinstance(rows, Rows), "micro_batch", stage.groups, remedy)
    if keys.noise is None:
        validate.refuse("noise", None, "give a SecretSource as keys.noise: micro-batches are drawn secretly")
    assert isinstance(rows, Rows)
    return rows.regrouped(keys.noise.integers(stage.groups, rows.n))  # a record's own is drawn for it alone


def _batches(
    problem: Any, stage: Stage, index: Tensor | None, physical: int | None
) -> tuple[Sequence[Tensor | slice | None], bool]:
    """The records in batches of at most `physical`, or as many as the problem looks at together.

    Says besides whether batches of the problem can be measured at the same time.
    """
    apart, spans = hasattr(problem, "spans"), None
    count = problem.n if index is None else len(index)
    most = physical or count
    by_itself = getattr(stage.source, "own_records", False) and not getattr(stage.source, "whole", False)
    if apart and by_itself and stage.groups is None:  # a micro-batch is clipped whole
        spans = problem.spans() or None
    if spans is not None:
        widest = max(hi - lo for lo, hi in spans)
        if index is None and (physical is None or physical >= widest):
            return [slice(lo, hi) for lo, hi in spans], True
        most = min(most, widest)
    if count <= most:
        return [index], apart
    if index is None and spans is not None:
        return [slice(lo, min(lo + most, count)) for lo in range(0, count, most)], apart
    return (torch.arange(count) if index is None else index).split(most), apart


def _sent(round: Round, stage: Stage, message: Message, client: Client) -> Message:
    """Feedback and codec, and the count of what goes over the wire."""
    wire, values, dims, size = round.pipe.wire, dict(message.values), 0, 0
    coded: dict[str, bytes] = {}
    for release, slot in stage.slots:
        sketch, bounded = round.sketches[slot], values[release.name]
        value, name = bounded.value, f"{client.name}/{slot}"
        error, corrected = round.memory.get(name), value
        if wire.remembers:
            corrected = wire.corrected(value, error, message.divisor, round.eta)
            value = sketch.forward(corrected)
        dims += value.numel()
        if wire.codec is None:
            size += replace(bounded, value=value).size
        else:
            if wire.feedback:  # an unbiased codec is a contraction only after this shrink
                value = value / (1 + wire.codec.chi(value.numel()))
            data = wire.codec.encode(value, key(round.seed, round.t, "codec", client.role, slot))
            size += len(data)
            coded[release.name] = data
            value = wire.codec.decode(data, value)
        if wire.remembers:
            round.memory[name] = wire.remembered(corrected, value, sketch, error, message.divisor, round.eta)
        values[release.name] = replace(bounded, value=value)
    return replace(message, values=values, dims=dims, bytes=size, coded=coded)
