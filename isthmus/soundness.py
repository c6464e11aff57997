"""What a pipeline may not be: fillings that could break their own guarantee, or cannot work, are refused when built."""

from __future__ import annotations

from typing import Any

from isthmus import _validate
from isthmus.privacy import accounting


def check_sound(pipe: Any) -> None:
    """Refuse fillings that could break their own guarantee or cannot work."""
    names = [stage.name for stage in pipe.stages]
    _validate.one_of(("last", "average"), output=pipe.output)
    _validate.check(len(names) > 0, "stages", names, "give at least one stage")
    _validate.check(len(set(names)) == len(names), "stages", names, "give each stage its own name")
    for stage in pipe.stages:
        _validate.positive_int(every=stage.every)
        releases = [release.name for release in stage.releases]
        _validate.check(len(releases) > 0, "releases", releases, f"give stage {stage.name!r} at least one release")
        _validate.check(len(set(releases)) == len(releases), "releases", releases, "give each release its own name")
        for release in stage.releases:
            _check_release(pipe, release)
        if stage.private:
            _check_private(pipe, stage)


def _check_private(pipe: Any, stage: Any) -> None:
    """A private stage hides everything it releases, and the accountant knows its event."""
    promise = pipe.promise
    if promise is None:
        _validate.refuse("promise", None, f"stage {stage.name!r} adds noise: state epsilon, delta and adjacency")
    open_releases = [release.name for release in stage.releases if not release.mechanism.private]
    _validate.check(not open_releases, "mechanism", open_releases, f"stage {stage.name!r} releases these without noise")
    accounting.check(stage.event(promise.adjacency), promise.adjacency)


def _check_release(pipe: Any, release: Any) -> None:
    where = f"release {release.name!r}"
    noisy, wire = release.mechanism.private, pipe.wire
    clip = release.clip
    _validate.check(
        not noisy or clip is not None, "clip", clip, f"{where} adds noise: clip it, or its noise means nothing"
    )
    _validate.check(
        not noisy or bool(release.between) or clip.ord in release.mechanism.ords,
        "ord",
        getattr(clip, "ord", None),
        f"the mechanism of {where} takes sums clipped in one of the norms {release.mechanism.ords}",
    )
    _validate.check(
        not (noisy and wire.codec),
        "codec",
        wire.codec,
        f"{where}: a codec before central noise lets one record move a whole message; add the noise at the client",
    )
    _validate.check(
        not (wire.feedback and (noisy or clip is not None)),
        "feedback",
        True,
        f"{where}: a memory of unclipped gradients has no bound; error feedback is for runs without clip or noise",
    )
    _validate.check(not release.between or clip is not None, "between", release.between, f"{where}: needs a clip")
