"""What the report says first: whether the run is private, how far that goes, and on what it rests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.report import _words, svg
from isthmus.report._card import fact
from isthmus.report.record import Record, rounded_up

STRONG, REASONABLE = 1.0, 10.0
RULE = (
    "A common rule of thumb (Ponomareva et al., How to DP-fy ML, 2023): an epsilon of at most 1 is a strong promise, "
    "of at most 10 a reasonable one, above 10 a weak one."
)
_CHANGES = {
    "add-remove": ("Adding or removing one record", "whether one given record was used"),
    "replace-one": ("Replacing one record by another", "which of two given records was used"),
}

_EXCEPT = "That holds for what was released with noise. It does not hold for what was read from the data without any:"


@dataclass(frozen=True)
class KeyFigure:
    """A key figure: its name, its value, one sentence about it; `wide` where the value is words."""

    name: str
    value: str
    meaning: str
    wide: bool = False


@dataclass(frozen=True)
class Verdict:
    """`tone` is "good", "weak" or "bad"; `cautions` are what a reader must know beside the headline."""

    tone: str
    headline: str
    summary: str
    cautions: tuple[str, ...]
    figures: tuple[KeyFigure, ...]
    chart: str


def verdict(record: Record) -> Verdict:
    """The verdict of a record."""
    privacy = record.privacy
    if privacy is None:
        summary = (
            "The run was made without privacy: no noise was added and nothing is promised. What was released may "
            "reveal records that it was trained on."
        )
        return Verdict("bad", "NOT private", summary, (), (), "")
    if not privacy["private"]:
        return Verdict("bad", "NOT private", _reason(privacy), (), _figures(privacy), "")
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    weak = epsilon > REASONABLE
    degree = "weak" if weak else "strong" if epsilon <= STRONG else "reasonable"
    headline = "Private, but the promise is weak" if weak else f"Private: a {degree} promise"
    guess = _words.at_most(_words.best_guess(epsilon, delta))
    _, question = _changes(privacy)
    summary = (
        f"Somebody who knows everything else and guesses, from even odds, {question} is right at most {guess} of the "
        "time, whatever they compute from the results. Tossing a coin is right 50% of the time."
    )
    leaked = bool(privacy["leaks"])
    headline += ", but not all that was read is covered" if leaked else ""
    return Verdict(
        "weak" if weak or leaked or record.warnings else "good",
        headline + (", subject to the warnings below" if record.warnings else ""),
        f"{summary} {_EXCEPT}" if leaked else summary,
        _cautions(privacy),
        _figures(privacy),
        _odds(epsilon, delta, guess),
    )


def _changes(privacy: Mapping[str, Any]) -> tuple[str, str]:
    relation = privacy["adjacency"]
    return _CHANGES.get(relation, (relation, "which of two neighbouring sets of records was used"))


def _reason(privacy: Mapping[str, Any]) -> str:
    """Why nothing holds."""
    if privacy["noise"] and "seeded" in privacy["noise"]:
        return (
            "The noise was drawn from a seed. Whoever knows the seed can repeat the noise and subtract it, so the "
            "results protect nobody. This is a test run: do not publish its results."
        )
    if privacy["guarantee"]:
        return (
            "The mechanism was run as it was published, and that one does not keep its promise. Nothing holds for the "
            "people in the data."
        )
    return "Something computed from the data was released without noise that hides it: no finite epsilon holds."


def _cautions(privacy: Mapping[str, Any]) -> tuple[str, ...]:
    cautions = [f"Not covered by epsilon: {fact(leak)}." for leak in privacy["leaks"]]
    if privacy["epsilon"] > REASONABLE:
        cautions.append(
            "At this epsilon an attacker can be nearly certain: the guarantee exists on paper and says little."
        )
    if privacy["n"] and privacy["delta"] >= 1 / privacy["n"]:
        cautions.append(
            f"delta is not below 1 in {privacy['n']:,}, the number of records: publishing a record picked at random "
            "would be allowed by it. It should be smaller."
        )
    return tuple(cautions)


def _figures(privacy: Mapping[str, Any]) -> tuple[KeyFigure, ...]:
    figures = _holding(privacy) if privacy["private"] else _void(privacy)
    if privacy["sampler"]:
        sentence = "How a round chose the records it looked at (the sampler)"
        sentence += "; epsilon was computed for exactly this." if privacy["private"] else "."
        figures.append(KeyFigure("records taken", _words.first_up(privacy["sampler"]), sentence, wide=True))
    return tuple(figures)


def _holding(privacy: Mapping[str, Any]) -> list[KeyFigure]:
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    factor = rounded_up(math.exp(epsilon)) if epsilon < 700 else "1e304 or more"
    loss = f"The privacy loss: one record makes no result more than {factor} times as likely. Less is better."
    slack = f"The slack in that promise: roughly a chance of {_words.one_in(delta)} that it fails. Less is better."
    sentence = "The change of the data that must not show: with one record a person, this protects each person."
    return [
        KeyFigure("epsilon", rounded_up(epsilon), loss),
        KeyFigure("delta", _words.decimals(delta), slack),
        KeyFigure("protected against", _changes(privacy)[0], sentence, wide=True),
    ]


def _void(privacy: Mapping[str, Any]) -> list[KeyFigure]:
    loss = "There is no limit to what the results may reveal about one record."
    if privacy["nominal"] is not None and math.isfinite(privacy["nominal"]):
        loss += f" With secret noise the same releases would have epsilon {rounded_up(privacy['nominal'])}."
    slack = "The slack that the run was planned with: it helps nobody where there is no epsilon."
    sentence = "The change of the data that the noise was meant to hide, and does not."
    return [
        KeyFigure("epsilon", "\u221e", loss),
        KeyFigure("delta", _words.decimals(privacy["delta"]), slack),
        KeyFigure("not protected against", _changes(privacy)[0], sentence, wide=True),
    ]


def _odds(epsilon: float, delta: float, guess: str) -> str:
    gain = _words.best_guess(epsilon, delta) - 0.5
    parts = [
        svg.Part(0.5, "a coin toss: 50%", "soft"),
        svg.Part(gain, f"what the results add, at most: up to {guess}"),
    ]
    return svg.meter("odds", "How often a guess about one record can be right", parts, 1.0, ("never", "always right"))
