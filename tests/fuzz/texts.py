"""Texts of the package: read as what they say and written the same, or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache

from fuzz.edits import scripts, text_of
from fuzz.target import Target, a_file, check
from isthmus.codecs import QSGD
from isthmus.codecs import from_json as codec_of
from isthmus.privacy import Gaussian, PrivacyPlan, PrivacyStatement, event_json
from isthmus.privacy.accounting import UnsupportedEvent, epsilon_of
from isthmus.privacy.plan import Charge
from isthmus.privacy.statement import SECRET, Account
from isthmus.report import Record, render

EVENTS = [
    {"event": "PoissonSampled", "sampling_probability": 0.01, "inner": {"event": "Gaussian", "noise_multiplier": 1.5}},
    {"event": "SelfComposed", "inner": {"event": "Laplace", "noise_multiplier": 2.0}, "count": 4},
    {"event": "Composed", "events": [{"event": "NoOp"}, {"event": "ZC", "rho": 0.1, "xi": 0.0}]},
]


def _text(data: bytes, bases: Callable[[], list[bytes]]) -> str:
    return text_of(data, bases()).decode("utf-8", "replace")


def statement(data: bytes) -> None:
    """A statement that is read has words, and is written the same."""
    read = PrivacyStatement.from_json(_text(data, _statements))
    check(PrivacyStatement.from_json(read.to_json()) == read, "a statement changes on the way through its text")
    check(bool(read.words()) and bool(str(read)), "a statement without words")
    check(not math.isnan(read.epsilon) and read.epsilon >= 0, "a statement with no epsilon")


def event(data: bytes) -> None:
    """An event that is read is written the same, and has a price or a reason why not."""
    try:
        tree = json.loads(_text(data, _events))
    except (ValueError, RecursionError):
        return
    if not isinstance(tree, dict):
        return
    made = event_json.from_json(tree)
    again = event_json.to_json(made)
    check(event_json.to_json(event_json.from_json(again)) == again, "an event changes on the way through its text")
    leaves = list(event_json.flatten(again))
    for leaf, _ in leaves:
        event_json._words(leaf)
    if len(leaves) <= 3 and all(count < 1000 for _, count in leaves) and not _sampled(again):
        try:
            epsilon = epsilon_of(made, 1e-5)
        except UnsupportedEvent:
            return
        check(epsilon >= 0, "a negative epsilon")


def _sampled(data: dict[str, object]) -> bool:
    return "Sampled" in json.dumps(data) or "Mixture" in json.dumps(data)  # their accountants take seconds


def plan(data: bytes) -> None:
    """A plan of a budget that is read is written the same."""
    read = PrivacyPlan.from_json(_text(data, _plans))
    check(PrivacyPlan.from_json(read.to_json()) == read, "a plan changes on the way through its text")


def codec(data: bytes) -> None:
    """A codec that is read is written the same."""
    read = codec_of(_text(data, _codecs))
    check(codec_of(read.to_json()) == read, "a codec changes on the way through its text")


def record(data: bytes) -> None:
    """The record of a run that is read is written the same, and has a page."""
    with a_file("run.json", text_of(data, _records())) as path:
        read = Record.from_file(path)
    check(Record.from_dict(read.to_dict()) == read, "a record changes on the way through its text")
    check("<script>alert" not in render(read), "a text of the record became code")


@cache
def _statements() -> list[bytes]:
    account = Account(1e-5, assumptions=["one record per person"])
    account.add(Gaussian(4.0).event(), Gaussian(4.0), count=2, sampler="every record, twice", noise=SECRET)
    return [account.statement().to_json().encode()]


@cache
def _plans() -> list[bytes]:
    return [PrivacyPlan(1.0, 1e-5, items=[Charge("main", rounds=3)]).to_json().encode()]


@cache
def _records() -> list[bytes]:
    data = json.loads(_statements()[0])
    words = PrivacyStatement.from_json(_statements()[0].decode()).words()
    whole = {
        "format": "isthmus-run-1",
        "title": "<script>alert(1)</script>",
        "data": {"name": "census", "features": ["a", "b"]},
        "model": {"task": "classification", "algorithm": "gd", "rounds": 3},
        "privacy": data | {"private": True},
        "words": words,
        "created": "2026-05-04T10:30:00+00:00",
        "budget": {"epsilon": 1.0, "delta": 1e-5, "curve": [[0, 0.0], [3, 0.5]]},
        "history": [{"t": 1, "moved": 0.5, "noise": 0.1}, {"t": 2, "moved": 0.25, "noise": 0.1}],
        "metrics": [{"name": "accuracy", "value": 0.8, "on": "test", "noise": 0.01, "baseline": 0.5}],
        "curves": [{"title": "c", "series": [{"name": "s", "x": [0, 1], "y": [0.5, None]}], "shares": True}],
        "energy": {"k": [1, 2], "captured": [0.5, 1.0], "chosen": 1},
        "comparison": [{"name": "other", "epsilon": "inf", "score": 0.9, "metric": "accuracy"}],
    }
    bare = {key: whole[key] for key in ("format", "title", "data", "model")} | {"privacy": None, "words": ""}
    return [json.dumps(whole).encode(), json.dumps(bare).encode()]


def _events() -> list[bytes]:
    return [json.dumps(event_tree).encode() for event_tree in EVENTS]


def _codecs() -> list[bytes]:
    return [QSGD().to_json().encode(), b'{"codec": "random_k", "k": 3}']


def _and_scripts(bases: Callable[[], list[bytes]]) -> Callable[[], list[bytes]]:
    return lambda: [*bases(), *scripts()]


NUMBERS = [b'"inf"', b"1e308", b"-0.0", b"NaN", b"Infinity", b"1e-320", b"null", b"[]", b"{}"]

TARGETS = [
    Target("statement", statement, _and_scripts(_statements), NUMBERS),
    Target("event", event, _and_scripts(_events), [*NUMBERS, b'"count"'], slow=4),
    Target("budget plan", plan, _and_scripts(_plans), [*NUMBERS, b'"numbers"', b'"sampler"', b'"Poisson"'], slow=16),
    Target("codec text", codec, _and_scripts(_codecs), NUMBERS),
    Target("run record", record, _and_scripts(_records), NUMBERS, slow=16),
]
