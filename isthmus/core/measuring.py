"""Where the data is: sample, take per-example rows, measure them, send.  Only `measure` reads per-example values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import exact_products
from isthmus.base.parallel import in_order
from isthmus.base.randomness import key
from isthmus.core.aggregators import Client
from isthmus.core.opened import Round
from isthmus.core.pipeline import Release, Stage, slots
from isthmus.core.wire import Keys, Message
from isthmus.gradients import Rows
from isthmus.gradients.adding import kappa
from isthmus.gradients.layers.passes import private_records
from isthmus.privacy.clips import ClippedSum, Clipping, Rounding, encoded_sum, part_of_error, weighted_sum
from isthmus.problems.queries import Answered, Query
from isthmus.sketches import Sketch


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
    clip = release.clip
    if isinstance(rows, Query):
        validate.check(
            clip is not None,
            "clip",
            clip,
            f"give the clip {rows.bound}: {type(rows).__name__} is released with its bound only",
        )
        assert clip is not None
        proven = clip.ord == 2 and rows.bound <= clip.total(bound)
        validate.check(
            proven,
            "clip",
            clip,
            f"give a clip in the norm 2 of at least {rows.bound}, by which one record can move {type(rows).__name__}",
        )
        return ClippedSum(rows.value(), clip.ord, clip.total(bound))
    whole = codes if rows is None else rows
    assert whole is not None
    if clip is None:
        return ClippedSum(sketch.forward(whole.sum()), 2, math.inf)
    with exact_products(whole.device):  # a bound means nothing in reduced precision
        if not clip.before:
            whole = sketch.encode(whole) if codes is None else codes
        return _clipped(clip, sketch, bound, whole, rounding or Rounding())


def _clipped(clip: Clipping, sketch: Sketch, bound: float, rows: Rows, rounding: Rounding) -> ClippedSum:
    exact = rows.exact and not clip.before  # counts are, and what a map makes of their sum is not
    extra = 0.0 if exact else rounding.kappa(rows, encoded=rows.d < sketch.d)
    share, weights = clip.total(bound) * (1 + extra), clip.weights(rows, bound)
    if clip.before:
        value = encoded_sum(sketch, rows, weights, clip.each(bound), extra * rounding.share, clip.ord)
        return ClippedSum(value, clip.ord, share * sketch.gain(clip.ord), dtype=rows.dtype)
    value = weighted_sum(rows, weights, clip.each(bound), extra * rounding.share, clip.ord)
    return ClippedSum(value, clip.ord, share, dtype=rows.dtype)


def measure_leaf(clip: Clipping, bound: float, name: str, rows: Rows, rounding: Rounding) -> ClippedSum:
    """The clipped sum of one leaf, where leaves are clipped by themselves: no other has to be known."""
    extra = rounding.kappa(rows, encoded=False)
    with exact_products(rows.device):
        weights, own = clip.leaf_weights(name, rows, bound)
        value = weighted_sum(rows, weights, own, extra * rounding.share, clip.ord, wait=False)
    return ClippedSum(value, clip.ord, own * (1 + extra), dtype=rows.dtype)


def measured_leaves(clip: Clipping, bound: float, sums: Sequence[ClippedSum], rounding: Rounding) -> ClippedSum:
    """The sums of all leaves, in their order, as one that is bounded as `measure` says.

    The dtype is that of the rows: in what dtype they were added up depends on how many there are, and must not tell.
    """
    dtype = min((leaf.dtype for leaf in sums if leaf.dtype is not None), key=lambda kind: kind.itemsize)
    extra = kappa(rounding.batch, dtype, encoded=False)
    value = torch.cat([leaf.value for leaf in sums])
    return ClippedSum(value, clip.ord, clip.total(bound) * (1 + extra), dtype=dtype)


def contribute(
    round: Round, stage: Stage, client: Client, keys: Keys, memory: dict[str, Tensor], physical: int | None = None
) -> Message:
    """Where the data is: sample, take the rows, measure them, send.  `physical` bounds the rows held at once."""
    n, whole = client.problem.n, client.problem.n if client.whole is None else client.whole
    clipped = any(release.clip is not None for release in stage.releases)
    index, times = _drawn(stage.sampler.draw(n, round.t, keys, client.role), n, clipped)
    divisor = stage.sampler.divisor(n, round.t)
    batch = None if getattr(client.problem, "linear", False) else stage.sampler.divisor(whole, round.t)
    parts = _batches(client.problem, stage, index, physical)

    def one(number: int) -> Message:
        part = parts[number - 1]
        rows = stage.source(client.problem, round.w, part, round.held)
        if times is not None and isinstance(part, Tensor) and isinstance(rows, Rows):
            rows = rows.take(torch.arange(len(part)), times[part])
        split = physical is not None and isinstance(rows, Query)  # whatever the number of records: it may be private
        rows = jointly(rows, client)
        if stage.groups is not None:
            rows = _grouped(rows, stage.groups, client, keys, physical)
        remedy = f"leave it out: {type(rows).__name__} is no sum, and one record more would shift every batch after it"
        validate.check(not split, "physical_batch_size", physical, remedy)
        share = part_of_error(number, number == len(parts))
        return fragment(round, stage, rows, rounding=Rounding(batch, share * client.share))

    total, numbers = None, range(1, len(parts) + 1)
    several = hasattr(client.problem, "spans")  # batches of a linear model do not touch each other
    linear = bool(getattr(client.problem, "linear", False))  # draws nothing and keeps nothing
    with nullcontext() if keys.noise is None or linear else private_records(not keys.noise.seeded, len(parts) > 1):
        for message in in_order(one, numbers) if several else map(one, numbers):
            total = message if total is None else total + message
    assert total is not None
    total = replace(total, divisor=divisor, fixed=getattr(stage.sampler, "expected", None) is not None)
    if not stage.private:
        total = replace(total, records=n)
    return _send(round, stage, total, client, memory)


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
    for _, release, slot in slots([stage]):
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


def jointly(rows: Rows | Query, client: Client) -> Rows | Query:
    """What is no sum over records is no sum over their holders either: they answer together, where they can."""
    alone = client.joint is None and client.whole in (None, client.problem.n)  # ranks answer together, an empty one too
    if not isinstance(rows, Query) or alone:
        return rows
    name = type(rows).__name__
    remedy = (
        f"give what follows from it (step=), or use ranks: {name} is no sum over records, and several holders have them"
    )
    validate.check(client.joint is not None and rows.adds_up, "clients", client.name, remedy)
    assert client.joint is not None
    return Answered(client.joint(rows), rows.bound)


def _grouped(rows: Rows | Query, groups: int, client: Client, keys: Keys, physical: int | None) -> Rows:
    """The means of micro-batches: a record's own is drawn for it alone, so that it moves no other."""
    whole = physical is None and client.whole in (None, client.problem.n)
    remedy = "leave out physical_batch_size, and let one process hold the records: a micro-batch is clipped whole"
    validate.check(whole and isinstance(rows, Rows), "micro_batch", groups, remedy)
    if keys.noise is None:
        validate.refuse("noise", None, "give a SecretSource as keys.noise: micro-batches are drawn secretly")
    assert isinstance(rows, Rows)
    return rows.regrouped(keys.noise.integers(groups, rows.n))


def _send(round: Round, stage: Stage, message: Message, client: Client, memory: dict[str, Tensor]) -> Message:
    """Feedback and codec, and the count of what goes over the wire."""
    wire, values, dims, size = round.pipe.wire, dict(message.values), 0, 0
    coded: dict[str, bytes] = {}
    for _, release, slot in slots([stage]):
        sketch, bounded = round.sketches[slot], values[release.name]
        value, name = bounded.value, f"{client.name}/{slot}"
        error, corrected = memory.get(name), value
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
            memory[name] = wire.remembered(corrected, value, sketch, error, message.divisor, round.eta)
        values[release.name] = replace(bounded, value=value)
    return replace(message, values=values, dims=dims, bytes=size, coded=coded)


def _drawn(index: Tensor | None, n: int, clipped: bool) -> tuple[Tensor | None, Tensor | None]:
    """The records that were drawn and, where there are more draws than records, how often each one was.

    Copies that are clipped one by one are not a row of so many times the length: they stay apart.
    """
    if index is None or len(index) <= n or clipped:
        return index, None
    times = torch.bincount(index, minlength=n)
    return times.nonzero().reshape(-1), times


def _batches(problem: Any, stage: Stage, index: Tensor | None, physical: int | None) -> list[Tensor | slice | None]:
    """The records in batches of at most `physical`, or as many as the problem looks at together."""
    alone = getattr(stage.source, "own_records", False) and not getattr(stage.source, "whole", False)
    apart = alone and stage.groups is None  # a micro-batch is clipped whole
    count = problem.n if index is None else len(index)
    spans = (problem.spans() or None) if apart and hasattr(problem, "spans") else None
    if spans is not None and index is None and (physical is None or physical >= max(hi - lo for lo, hi in spans)):
        return [slice(lo, hi) for lo, hi in spans]
    most = physical if spans is None else min(physical or count, max(hi - lo for lo, hi in spans))
    if most is None or count <= most:
        return [index]
    if index is None and spans is not None:
        return [slice(lo, min(lo + most, count)) for lo in range(0, count, most)]
    return list((torch.arange(count) if index is None else index).split(most))
