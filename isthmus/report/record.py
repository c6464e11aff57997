"""The record of a run: everything that its report may show, and nothing else.

A record is one JSON object, the file `run.json`.  Reading one checks every field, and that its parts agree: words that
promise what the figures do not, a figure of the training data of a private run, or a number of records that the
privacy statement keeps to itself are refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from datetime import datetime
from pathlib import Path
from typing import Any

from isthmus.base.atomic import atomic_write
from isthmus.base.validate import present, refuse, unreadable
from isthmus.report._fitted import described
from isthmus.report._shape import (
    Checker,
    count,
    fields,
    flag,
    label,
    many,
    maybe,
    named,
    need,
    pair,
    plain,
    real,
    text,
    thawed,
    unlimited,
)

FORMAT = "isthmus-run-1"
FILE = "run.json"


def _task(where: str, value: Any) -> str:
    need(value in ("classification", "regression"), where, value, "choose one of ['classification', 'regression']")
    return value


def _share(where: str, value: Any) -> float:
    need(0 <= real(where, value) <= 1 + 1e-9, where, value, "give a share between 0 and 1")
    return min(1.0, value)


def _moment(where: str, value: Any) -> str:
    try:
        datetime.fromisoformat(text(where, value))
    except ValueError:
        refuse(where, value, "give an ISO date and time, such as 2026-05-04T10:30:00+00:00")
    return value


def _statement(where: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        value = _parsed(where, value)
    need(isinstance(value, Mapping), where, type(value).__name__, "give the object of PrivacyStatement.to_json()")
    statement = _PRIVACY(where, value)
    need(0 < statement["delta"] < 1, f"{where}.delta", statement["delta"], "give a number strictly between 0 and 1")
    honest = statement["private"] == math.isfinite(statement["epsilon"])
    need(
        honest,
        f"{where}.private",
        statement["private"],
        "correct it or epsilon: it is true exactly where epsilon is finite",
    )
    return statement


def _columns(first: str, second: str, inner: Checker) -> Checker:
    """What `inner` takes, with two lists of one length."""

    def check(where: str, value: Any) -> Mapping[str, Any]:
        table = inner(where, value)
        sizes = len(table[first]), len(table[second])
        need(
            sizes[0] == sizes[1], f"{where}.{second}", f"{sizes[1]} values", f"give one for each of {first}: {sizes[0]}"
        )
        return table

    return check


_TEXTS = maybe(text)
_PRIVACY = fields(
    {"epsilon": unlimited, "delta": real, "adjacency": text, "private": flag},
    {
        **dict.fromkeys(("sampler", "noise", "guarantee", "accountant", "released"), _TEXTS),
        **{"n": maybe(count), "nominal": maybe(unlimited), "event": plain},
        **dict.fromkeys(("assumptions", "leaks"), many(text)),
        "releases": many(fields({"what": text, "times": count, "noise": text})),
    },
)
_CHOICE = fields(
    {"algorithm": text},
    {
        **dict.fromkeys(("noise_multiplier", "noise_norm", "margin_noise", "seconds", "passes"), maybe(unlimited)),
        **dict.fromkeys(("rounds", "dims", "bytes", "memory", "batch_size"), maybe(count)),
        **{"arguments": named(plain), "name": _TEXTS, "evidence": _TEXTS, "why": _TEXTS, "research": maybe(flag)},
    },
)
_SHAPES: Mapping[str, Checker] = {
    "title": text,
    "purpose": _TEXTS,
    "owner": _TEXTS,
    "created": maybe(_moment),
    "versions": named(text),
    "data": fields(
        {"name": text},
        {
            **dict.fromkeys(("n", "d", "test_rows", "public_rows"), maybe(count)),
            **{"target": _TEXTS, "features": maybe(many(label)), "classes": maybe(many(label))},
            "fields": maybe(many(fields({"name": label, "treatment": text}))),
        },
    ),
    "model": fields(
        {"task": _task, "algorithm": text},
        {
            **dict.fromkeys(("loss", "how", "choice", "constraint", "penalty"), _TEXTS),
            **dict.fromkeys(("rounds", "dims", "bytes"), maybe(count)),
            **{"arguments": named(plain), "seconds": maybe(real), "strength": maybe(real)},
        },
    ),
    "privacy": maybe(_statement),
    "words": text,
    "warnings": many(text),
    "budget": fields(
        {},
        {
            **{"epsilon": maybe(unlimited), "delta": maybe(real), "curve": many(pair(real, unlimited))},
            "shared": maybe(fields({"epsilon": unlimited, "spent": unlimited}, {"file": _TEXTS})),
        },
    ),
    "history": many(fields({"t": real}, {"moved": maybe(real), "noise": maybe(real)})),
    "metrics": many(
        fields(
            {"name": text, "value": maybe(real), "on": text},
            {"noise": maybe(real), "baseline": maybe(real), "than": _TEXTS, "note": _TEXTS},
        )
    ),
    "curves": many(
        fields(
            {
                "title": text,
                "series": many(_columns("x", "y", fields({"name": text, "x": many(real), "y": many(maybe(real))}))),
            },
            {**dict.fromkeys(("x_label", "y_label", "note"), _TEXTS), "shares": maybe(flag)},
        )
    ),
    "energy": maybe(
        _columns(
            "k",
            "captured",
            fields({"k": many(real), "captured": many(_share)}, {"chosen": maybe(count), "source": _TEXTS}),
        )
    ),
    "comparison": many(
        fields(
            {"name": text},
            {
                **{"epsilon": maybe(unlimited), "score": maybe(real), "seconds": maybe(real), "dims": maybe(count)},
                **dict.fromkeys(("metric", "note"), _TEXTS),
            },
        )
    ),
    "plan": maybe(
        fields({"choices": many(_CHOICE)}, {"facts": named(plain), "refused": named(text), "notes": many(text)})
    ),
}


@dataclass(frozen=True)
class Record:
    """What a run may show of itself: checked, frozen, and the only input of the report.

    title, created, versions   what it is called, when it was made, with which packages
    purpose, owner             what the model is for, and who answers for it
    data        name, n, d, target, features, classes, test_rows, public_rows, fields (name and treatment of each)
    model       task, loss, algorithm, how (what it does), choice (the plan's name of it), arguments, rounds,
                constraint, penalty, seconds, dims, bytes, strength (n mu: how many records stand above the noise)
    privacy     the fields of a `PrivacyStatement`, or None where nothing is promised; `words` is its text
    warnings    what the run warned of
    budget      epsilon and delta that were asked for, the curve (round, epsilon), a shared budget
    history     of some rounds: how far the model moved, and the expected length of the noise in that move
    metrics     name, value, `on`: the set it was measured on, `noise`: the s.d. of the noise in it where some was
                added, `baseline` and `than`: what a model without inputs reaches, and which, `note`: what else to know
    curves      further curves of what may be shown; `shares` of one whose values are shares
    energy      captured energy of public gradients for each k, and the k that was chosen
    comparison  other runs beside this one
    plan        `Plan.to_dict()`

    >>> parts = {"format": "isthmus-run-1", "title": "Income", "data": {"name": "census"}, "privacy": None, "words": ""}
    >>> record = Record.from_dict(parts | {"model": {"task": "classification", "algorithm": "gd"}})
    >>> record.title, record.private, record.data["n"]
    ('Income', False, None)
    >>> Record.from_dict(record.to_dict()) == record
    True
    """

    title: str
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    privacy: Mapping[str, Any] | None
    words: str
    created: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    budget: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()
    metrics: tuple[Mapping[str, Any], ...] = ()
    curves: tuple[Mapping[str, Any], ...] = ()
    energy: Mapping[str, Any] | None = None
    comparison: tuple[Mapping[str, Any], ...] = ()
    plan: Mapping[str, Any] | None = None
    purpose: str | None = None
    owner: str | None = None

    def __post_init__(self) -> None:
        for name, shape in _SHAPES.items():
            object.__setattr__(self, name, shape(name, getattr(self, name)))
        _agree(self)

    @property
    def private(self) -> bool:
        """Whether a finite epsilon holds."""
        return self.privacy is not None and self.privacy["private"]

    @classmethod
    def of(
        cls,
        estimator: Any,
        *,
        title: str,
        data: Mapping[str, Any],
        metrics: Iterable[Any] = (),
        comparison: Iterable[Mapping[str, Any]] = (),
        curves: Iterable[Any] = (),
        warnings: Iterable[str] = (),
        purpose: str | None = None,
        owner: str | None = None,
    ) -> Record:
        """The record of a fitted `PrivateClassifier` or `PrivateRegressor`.

        `data` needs a `name`; n is taken from the privacy statement and left out where that keeps it private.
        `metrics` are of records kept out of training: mappings, or the figures of `private_score`; `comparison` has
        the other runs: the report adds this one.  `purpose` and `owner` are what the model card says first.
        """
        figures = [figure.to_dict() if hasattr(figure, "to_dict") else figure for figure in metrics]
        drawn = [curve.to_dict() if hasattr(curve, "to_dict") else curve for curve in curves]
        parts: dict[str, Any] = {"metrics": figures, "comparison": tuple(comparison), "curves": drawn}
        parts |= {"purpose": purpose, "owner": owner}
        return cls(title=title, **parts | described(estimator, data, tuple(warnings)))

    @classmethod
    def from_dict(cls, value: Any) -> Record:
        """The record from the object that `to_dict` gives; refused, with the place, where a field is wrong."""
        need(isinstance(value, Mapping), "record", type(value).__name__, "give the JSON object of a run")
        form = value.get("format")
        need(
            form == FORMAT,
            "format",
            form,
            f"give a record of the format {FORMAT!r}: this is of another version, or something else",
        )
        needed = ("title", "data", "model", "privacy", "words")
        for name in needed:
            need(name in value, "record", sorted(map(str, value)), f"give {name!r} too, which is missing")
        names = {member.name for member in fields_of(cls)}
        return cls(
            **{name: part for name, part in value.items() if name in names and part is not None or name in needed}
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Record:
        """The record in a file, or in the file `run.json` of a folder."""
        where = Path(path)
        where = where / FILE if os.path.isdir(where) else where
        present(os.path.isfile(where), where, f"give a run's folder, or its {FILE}")
        try:
            content = where.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            unreadable(where, "it is not UTF-8 text; give the JSON record of a run")
        return cls.from_dict(_parsed(str(where), content))

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON writes it."""
        return {"format": FORMAT, **{member.name: thawed(getattr(self, member.name)) for member in fields_of(self)}}

    def to_json(self) -> str:
        """The record as JSON text; infinity is written as the text "inf"."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the record to a file, or to `run.json` in a folder that exists; returns the file."""
        where = Path(path)
        where = where / FILE if os.path.isdir(where) else where
        with atomic_write(where) as partial:
            partial.write_text(self.to_json(), encoding="utf-8")
        return where


def rounded_up(value: float) -> str:
    """Four digits, never below the value: as the privacy statement prints its epsilon.

    >>> rounded_up(0.91761), rounded_up(math.inf)
    ('0.9177', 'inf')
    """
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(max(value, 1e-300))) - 3)
    return f"{math.ceil(value / unit) * unit:.4g}"


def rounded_down(value: float) -> str:
    """Four digits, never above the value: what is left of a budget.

    >>> rounded_down(1.11029), rounded_down(0.0)
    ('1.11', '0')
    """
    if value <= 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(max(value, 1e-300))) - 3)
    return f"{math.floor(value / unit) * unit:.4g}"


def _parsed(where: str, content: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        unreadable(where, "it is nested too deeply; give the JSON record of a run")
    except ValueError as error:
        unreadable(where, f"it is not JSON ({error}); give the run.json of a run that was not cut or altered")


def _agree(record: Record) -> None:
    """Refuse a record whose parts contradict each other, or that shows what the statement keeps private."""
    privacy, words = record.privacy, record.words
    if privacy is None:
        need(words == "", "words", words, "leave them empty: there is no privacy statement that they belong to")
        return
    stated = rounded_up(privacy["epsilon"])
    same = ("NOT private" in words) != privacy["private"] and f"epsilon = {stated}" in words
    remedy = f"give PrivacyStatement.words() of this statement: private={privacy['private']}, epsilon = {stated}"
    need(same, "words", words, remedy)
    silent = [leak for leak in privacy["leaks"] if leak not in words]
    need(not silent, "words", words, f"give PrivacyStatement.words() of this statement: it names {silent} as leaked")
    nominal = privacy["epsilon"] if privacy["private"] else privacy["nominal"] or math.inf
    spent = max((epsilon for _, epsilon in record.budget["curve"]), default=0.0)
    # accountants round up on grids that depend on the number of rounds
    need(
        spent <= 1.01 * nominal,
        "budget.curve",
        spent,
        f"give at most {rounded_up(nominal)}, which is what the statement says in all",
    )
    n = record.data["n"]
    remedy = "leave it out: the privacy statement keeps the number of records private"
    need(n is None or privacy["n"] is not None, "data.n", n, remedy)
    for metric in record.metrics:
        held_out = not metric["on"].strip().lower().startswith("train")
        need(
            held_out,
            "metrics.on",
            metric["on"],
            "leave it out: a figure of the training data is not covered by epsilon",
        )
