"""What a pipeline may not be: fillings that could break their own guarantee, or cannot work, are refused when built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.base import validate
from isthmus.core.frank_wolfe import FrankWolfe
from isthmus.core.stops import GapBelow
from isthmus.privacy import accounting
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.clips import GroupClip
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.mechanisms import Mechanism, words_of

if TYPE_CHECKING:
    from isthmus.core.pipeline import Pipeline, Release, Stage


def claims(pipe: Pipeline) -> bool:
    """Whether a pipeline says anything about privacy: a promise, or a stage that adds noise."""
    return pipe.promise is not None or any(stage.private for stage in pipe.stages)


def check_sound(pipe: Pipeline) -> None:
    """Refuse fillings that could break their own guarantee or cannot work."""
    names = [stage.name for stage in pipe.stages]
    validate.one_of(("last", "average"), output=pipe.output)
    validate.check(len(names) > 0, "stages", names, "give at least one stage")
    validate.check(len(set(names)) == len(names), "stages", names, "give each stage its own name")
    for stage in pipe.stages:
        validate.positive_int(every=stage.every)
        releases = [release.name for release in stage.releases]
        validate.check(len(releases) > 0, "releases", releases, f"give stage {stage.name!r} at least one release")
        validate.check(len(set(releases)) == len(releases), "releases", releases, "give each release its own name")
        for release in stage.releases:
            _check_release(pipe, stage, release)
    if claims(pipe):
        _check_claim(pipe)
    gapless = isinstance(pipe.stop, GapBelow) and not isinstance(pipe.update, FrankWolfe)
    remedy = "use FirstOrderStationary: this one reads the gap of Frank-Wolfe steps"
    validate.check(not gapless, "stop", type(pipe.stop).__name__, remedy)
    remedy = "state epsilon, delta and adjacency: what is released before the loop is paid for"
    validate.check(not pipe.before or pipe.promise is not None, "promise", pipe.promise, remedy)


def _check_claim(pipe: Pipeline) -> None:
    """A pipeline that claims privacy holds no unnoised look at the data, whichever slot it would stand in."""
    promise = pipe.promise
    private = [stage.name for stage in pipe.stages if stage.private]
    validate.check(
        bool(private), "promise", promise, "give a private mechanism, or leave the promise out: nothing adds noise"
    )
    if promise is None:
        validate.refuse("promise", None, f"state epsilon, delta and adjacency: stage {private[0]!r} adds noise")
    bare = [
        f"{stage.name}/{release.name}"
        for stage in pipe.stages
        for release in stage.releases
        if not release.mechanism.private
    ]
    remedy = "give each of them a mechanism: they are released without noise, and the pipeline claims to be private"
    validate.check(not bare, "mechanism", bare, remedy)
    for stage in pipe.stages:
        for release in stage.releases:
            check_costs(release.mechanism, promise.adjacency)
        event = stage.event(promise.adjacency)
        hidden = "give the event of one round: this sampler hides what its releases cost"
        validate.check(bool(_parts(event)), "sampler", stage.sampler, hidden)
        accounting.check(event, promise.adjacency)
        _check_groups(stage, promise.adjacency)
    for slot in ("update", "average", "stop", "step"):
        _check_blind(slot, getattr(pipe, slot))


def _check_groups(stage: Stage, adjacency: Adjacency) -> None:
    """A record moves the mean of its micro-batch by 2C: a clip that says less is refused where that is not so."""
    for release in stage.releases:
        clip = release.clip
        grouped = stage.groups is None or isinstance(clip, GroupClip)
        validate.check(grouped, "clip", clip, f"give a GroupClip: stage {stage.name!r} clips means of micro-batches")
        whole = adjacency is Adjacency.REPLACE_ONE and getattr(stage.sampler, "rate", 0.0) == 1
        fits = not getattr(clip, "replaced", False) or whole
        remedy = "leave it out: a record counts C only where one is replaced and every round looks at all of them"
        validate.check(fits, "clip.replaced", True, remedy)


def check_costs(mechanism: Mechanism, adjacency: Adjacency) -> None:
    """Refuse a mechanism that calls itself private and has no finite cost, or none at all.

    One that runs as its paper prints it may have none: it says itself what it really gives, and epsilon is infinite.
    """
    event = mechanism.event(adjacency)
    parts = _parts(event)
    open_parts = [part for part in parts if isinstance(part, dpa.NonPrivateDpEvent) or accounting.noiseless(part)]
    remedy = (
        f"give a mechanism whose event costs something, and something finite: this one accounts for itself as {event}"
    )
    honest = not open_parts or bool(words_of(mechanism)[2])
    validate.check(mechanism.private and bool(parts) and honest, "mechanism", mechanism, remedy)


OTHERS = {
    "sampler": "draws records as its event says",
    "source": "gives each record a vector that depends on this record alone",
    "encode": "maps each record by itself, and states a bound of its sums that holds",
    "clip": "keeps every record's share of the sum below its bound",
    "mechanism": "hides what it releases as its event says",
    "update": "reads released values only",
    "average": "reads released values only",
    "stop": "reads released values only",
}
"""What a guarantee takes from parts that this library did not write."""


def assumed(pipe: Pipeline, before: Sequence[Stage] = ()) -> list[str]:
    """What a private pipeline rests on that no check can see: parts of somebody else's, and public examples."""
    others = others_parts((*before, *pipe.stages))
    after = [(kind, getattr(pipe, kind)) for kind in ("update", "average", "stop")]
    others += [f"{_name(part)}, which is not of this library, {OTHERS[kind]}" for kind, part in after if _foreign(part)]
    learned = any(getattr(release.encode, "data", None) is not None for s in pipe.stages for release in s.releases)
    return [
        *others,
        *(["the examples that a sketch learns from are public, and no private records"] if learned else []),
    ]


def others_parts(stages: Sequence[Stage]) -> list[str]:
    """What the guarantee takes from parts of stages that somebody else wrote."""
    names: dict[str, None] = {}
    for stage in stages:
        parts: list[tuple[str, object]] = [("sampler", stage.sampler)]
        for release in stage.releases:
            parts += [("encode", release.encode), ("clip", release.clip), ("mechanism", release.mechanism)]
        others = [(kind, type(part).__name__) for kind, part in parts if _foreign(part)]
        names |= {f"{name}, which is not of this library, {OTHERS[kind]}": None for kind, name in others}
        if not getattr(stage.source, "own_records", False):
            names[f"the source of stage {stage.name!r} {OTHERS['source']}"] = None
    return list(names)


def _name(part: object) -> str:
    """What the author of a part calls it."""
    return str(getattr(part, "__name__", type(part).__name__))


def _foreign(part: object) -> bool:
    """Whether somebody else wrote the class of a part."""
    return part is not None and type(part).__module__.split(".")[0] != __name__.split(".")[0]


def _parts(event: DpEvent) -> list[DpEvent]:
    return list(accounting.leaves_of(event))


def _check_blind(slot: str, part: object) -> None:
    """Refuse parts that hold the objective's own loss or gradient, as line searches and certified stops do."""
    for name in ("loss", "gradient"):
        value = getattr(part, name, None)
        remedy = (
            f"leave it out of a private run: it is a look of {type(part).__name__} at the data itself, without noise"
        )
        validate.check(value is None, f"{slot}.{name}", value, remedy)


def _check_release(pipe: Pipeline, stage: Stage, release: Release) -> None:
    where = f"release {release.name!r}"
    noisy, wire = release.mechanism.private, pipe.wire
    clip = release.clip
    validate.check(
        not noisy or clip is not None,
        "clip",
        clip,
        f"give a clip: {where} adds noise, which means nothing without a bound",
    )
    validate.check(
        not noisy or release.encode.settled_ord(release.clipped.ord) in release.mechanism.ords,
        "ord",
        getattr(clip, "ord", None),
        f"clip in one of the norms {release.mechanism.ords}, which the mechanism of {where} takes",
    )
    claimed = noisy and not getattr(release.encode, "proven", True)
    bare = claimed and all(isinstance(part, dpa.NonPrivateDpEvent) for part in _parts(release.mechanism.event()))
    validate.check(
        bare or not claimed,
        "mechanism",
        release.mechanism,
        f"run it as printed, with a mechanism that says so: in {where} the bound of "
        f"{type(release.encode).__name__} is a paper's claim and no fact, so that no noise on it has a finite "
        "epsilon",
    )
    validate.check(
        not (noisy and wire.codec),
        "codec",
        wire.codec,
        f"add the noise at the client: in {where} a codec before central noise lets one record move a whole message",
    )
    validate.check(
        not (wire.remembers and (noisy or clip is not None)),
        "feedback",
        True,
        f"leave it out: in {where} a memory of unclipped gradients has no bound; error feedback is for runs "
        "without clip or noise",
    )
    follows = getattr(clip, "release", None)
    names = [item.name for item in stage.releases]
    validate.check(
        follows is None or follows in names,
        "clip.release",
        follows,
        f"name a release of the stage, for the clip of {where}: it has {names}",
    )
