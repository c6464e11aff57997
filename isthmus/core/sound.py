"""What a pipeline may not be: fillings that could break their own guarantee, or cannot work, are refused when built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.base import validate
from isthmus.core.parts import FrankWolfe, GapBelow, said
from isthmus.privacy import accounting
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.clips import GroupClip
from isthmus.privacy.event_json import DpEvent, dpa
from isthmus.privacy.mechanisms import Mechanism
from isthmus.privacy.sampling import rate_of

if TYPE_CHECKING:
    from isthmus.core.pipeline import Pipeline, Release, Stage


def _check_sound(pipe: Pipeline) -> None:
    """Refuse fillings that could break their own guarantee or cannot work."""
    validate.one_of(("last", "average"), output=pipe.output)
    _check_names("stages", "stage", [stage.name for stage in pipe.stages])
    for stage in pipe.stages:
        validate.positive_int(every=stage.every)
        _check_names("releases", "release", [release.name for release in stage.releases])
        for release in stage.releases:
            _check_release(pipe, stage, release)
    if pipe.promise is not None or pipe.private:
        _check_claim(pipe)
    gapless = isinstance(pipe.stop, GapBelow) and not isinstance(pipe.update, FrankWolfe)
    remedy = "use FirstOrderStationary: this one reads the gap of Frank-Wolfe steps"
    validate.check(not gapless, "stop", type(pipe.stop).__name__, remedy)
    remedy = "state epsilon, delta and adjacency: what is released before the loop is paid for"
    validate.check(not pipe.before or pipe.promise is not None, "promise", pipe.promise, remedy)


def _check_names(argument: str, kind: str, names: list[str]) -> None:
    validate.check(len(names) > 0, argument, names, f"give at least one {kind}")
    validate.check(len(set(names)) == len(names), argument, names, f"give each {kind} its own name")


def _check_release(pipe: Pipeline, stage: Stage, release: Release) -> None:
    where, wire, clip, mechanism = f"release {release.name!r}", pipe.wire, release.clip, release.mechanism
    names = [item.name for item in stage.releases]
    if clip is not None and clip.release is not None:
        remedy = f"name a release of the stage, for the clip of {where}: it has {names}"
        validate.check(clip.release in names, "clip.release", clip.release, remedy)
    remedy = f"leave it out: in {where} a memory of unclipped gradients has no bound: it is for runs without"
    validate.check(not wire.remembers or (clip is None and not mechanism.private), "feedback", True, remedy)
    if not mechanism.private:
        return
    if clip is None:
        validate.refuse("clip", None, f"give a clip: {where} adds noise, which means nothing without a bound")
    remedy = f"clip in one of the norms {mechanism.ords}, which the mechanism of {where} takes"
    validate.check(release.encode.settled_ord(clip.ord) in mechanism.ords, "ord", clip.ord, remedy)
    remedy = (
        f"run it as printed, with a mechanism that says so: in {where} the bound of {type(release.encode).__name__} is "
        "a paper's claim and no fact, so that no noise on it has a finite epsilon"
    )
    adjacency = Adjacency.ADD_REMOVE if pipe.promise is None else pipe.promise.adjacency
    bare = all(isinstance(part, dpa.NonPrivateDpEvent) for part in accounting.leaves_of(mechanism.event(adjacency)))
    validate.check(release.encode.proven or bare, "mechanism", mechanism, remedy)
    remedy = f"add the noise at the client: in {where} a codec before central noise lets a record move a whole sum"
    validate.check(not wire.codec, "codec", wire.codec, remedy)


def _check_claim(pipe: Pipeline) -> None:
    """A pipeline that claims privacy holds no unnoised look at the data, whichever slot it would stand in."""
    promise = pipe.promise
    private = [stage.name for stage in pipe.stages if stage.private]
    remedy = "give a private mechanism, or leave the promise out: nothing adds noise"
    validate.check(bool(private), "promise", promise, remedy)
    if promise is None:
        validate.refuse("promise", None, f"state epsilon, delta and adjacency: stage {private[0]!r} adds noise")
    bare = [slot for stage in pipe.stages for release, slot in stage.slots if not release.mechanism.private]
    remedy = "give each of them a mechanism: they are released without noise, and the pipeline claims to be private"
    validate.check(not bare, "mechanism", bare, remedy)
    for stage in pipe.stages:
        whole = promise.adjacency is Adjacency.REPLACE_ONE and rate_of(stage.sampler, 0.0) == 1
        for release in stage.releases:  # a record moves the mean of its micro-batch by 2C
            _check_costs(release.mechanism, promise.adjacency)
            clip = release.clip
            remedy = f"give a GroupClip: stage {stage.name!r} clips means of micro-batches"
            validate.check(stage.groups is None or isinstance(clip, GroupClip), "clip", clip, remedy)
            remedy = "leave it out: a record counts C only where one is replaced and every round looks at all of them"
            validate.check(whole or not (isinstance(clip, GroupClip) and clip.replaced), "clip.replaced", True, remedy)
        event = stage.event(promise.adjacency)
        remedy = "give the event of one round: this sampler hides what its releases cost"
        validate.check(any(True for _ in accounting.leaves_of(event)), "sampler", stage.sampler, remedy)
        accounting.check(event, promise.adjacency)
    for slot, part in {"update": pipe.update, "average": pipe.average, "stop": pipe.stop, "step": pipe.step}.items():
        for name in ("loss", "gradient"):  # as line searches and certified stops hold them
            held, remedy = said(part, name), f"leave it out of a private run: in {type(part).__name__}"
            validate.check(held is None, f"{slot}.{name}", held, f"{remedy} it is a look at the data without noise")


def _check_costs(mechanism: Mechanism, adjacency: Adjacency) -> None:
    """Refuse a mechanism that calls itself private and has no finite cost, or none at all.

    One that runs as its paper prints it may have none: it says itself what it really gives, and epsilon is infinite.
    """
    event: DpEvent = mechanism.event(adjacency)
    parts = list(accounting.leaves_of(event))
    bare = any(isinstance(part, dpa.NonPrivateDpEvent) or accounting.noiseless(part) for part in parts)
    honest = mechanism.private and bool(parts) and (not bare or bool(mechanism.guarantee))
    remedy = f"give one whose event costs something, and something finite: this one accounts for itself as {event}"
    validate.check(honest, "mechanism", mechanism, remedy)


OTHERS = {
    "sampler": "draws records as its event says",
    "source": "gives each record a vector that depends on this record alone",
    "encode": "maps each record by itself, and states a bound of its sums that holds",
    "clip": "keeps every record's share of the sum below its bound",
    "mechanism": "hides what it releases as its event says",
    **dict.fromkeys(("update", "average", "stop"), "reads released values only"),
}
"""What a guarantee takes from parts that this library did not write."""


def assumed(pipe: Pipeline, before: Sequence[Stage] = ()) -> list[str]:
    """What a private pipeline rests on that no check can see: parts of somebody else's, and public examples."""
    others = others_parts((*before, *pipe.stages))
    others += _foreign({"update": pipe.update, "average": pipe.average, "stop": pipe.stop})
    if any(said(release.encode, "data") is not None for stage in pipe.stages for release in stage.releases):
        others.append("the examples that a sketch learns from are public, and no private records")
    return others


def others_parts(stages: Sequence[Stage]) -> list[str]:
    """What the guarantee takes from parts of stages that somebody else wrote."""
    names: list[str] = []
    for stage in stages:
        names += _foreign({"sampler": stage.sampler})
        for release in stage.releases:
            names += _foreign({"encode": release.encode, "clip": release.clip, "mechanism": release.mechanism})
        if not said(stage.source, "own_records"):
            names.append(f"the source of stage {stage.name!r} {OTHERS['source']}")
    return list(dict.fromkeys(names))


def stopped(planned: int, done: int) -> list[str]:
    """What a statement says of a run that was stopped before its last round.

    >>> stopped(10, 10), len(stopped(10, 4))
    ([], 1)
    """
    if done >= planned:
        return []
    return [
        f"{done} of {planned} planned rounds were made, and all planned rounds are counted: earlier results may have "
        "decided when to stop"
    ]


def _foreign(parts: Mapping[str, object]) -> list[str]:
    """What is taken from those parts whose class somebody else wrote."""
    found, ours = [], __name__.split(".")[0]
    for kind, part in parts.items():
        if part is not None and type(part).__module__.split(".")[0] != ours:
            name = getattr(part, "__name__", type(part).__name__)
            found.append(f"{name}, which is not of this library, {OTHERS[kind]}")
    return found
