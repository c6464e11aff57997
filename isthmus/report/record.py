"""The record of a run: everything that its report may show, and nothing else.

A record is one JSON object, the file `run.json`.  Reading one checks every field, and that its parts agree: words that
promise what the figures do not, a figure of the training data of a private run, or a number of records that the
privacy statement keeps to itself are refused.

First come checkers for what was read from a file: each takes (where, value) and returns it, frozen, or refuses it.

>>> shape = fields({"name": text}, {"rows": maybe(count)})
>>> dict(shape("data", {"name": "census"}))
{'name': 'census', 'rows': None}
>>> shape("data", {"rows": 3})
Traceback (most recent call last):
isthmus.base.validate.InvalidInput: data={'rows': 3} is not allowed: give 'name' too, which is missing

Last comes what a fitted estimator may show of itself: its attributes, as the parts of a record.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import isthmus
from isthmus.base.atomic import atomic_write
from isthmus.base.validate import check as need
from isthmus.base.validate import present, refuse, unreadable

Checker = Callable[[str, Any], Any]


# Controls, lone surrogates, and marks that turn the direction of text: a column name could hide or reverse words.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def text(where: str, value: Any) -> str:
    """A string, its unprintable characters replaced by U+FFFD."""
    need(isinstance(value, str), where, value, "give text")
    return _UNPRINTABLE.sub("\ufffd", value)


def real(where: str, value: Any) -> float:
    """A finite number."""
    need(_is_number(value) and math.isfinite(value), where, value, "give a finite number, or null where there is none")
    return value


def unlimited(where: str, value: Any) -> float:
    """A number >= 0 or infinity, which JSON writes as the text "inf"."""
    value = math.inf if value == "inf" else value
    need(_is_number(value) and value >= 0, where, value, 'give a number of at least 0, or "inf"')
    return value


def count(where: str, value: Any) -> int:
    """An integer >= 0."""
    whole = _is_number(value) and math.isfinite(value) and value >= 0 and value == int(value)
    need(whole, where, value, "give a whole number of at least 0")
    return int(value)


def flag(where: str, value: Any) -> bool:
    """True or false."""
    need(isinstance(value, bool), where, value, "give true or false")
    return value


def plain(where: str, value: Any) -> Any:
    """Any JSON value, frozen; numbers that are not finite become text."""
    if isinstance(value, Mapping):
        return MappingProxyType({text(where, key): plain(f"{where}.{key}", item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(plain(f"{where}[{i}]", item) for i, item in enumerate(value))
    if isinstance(value, str):
        return text(where, value)
    need(value is None or isinstance(value, int | float), where, value, "give a JSON value")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def label(where: str, value: Any) -> str:
    """A class or a column: text, or a number as text."""
    need(isinstance(value, str | int | float), where, value, "give text or a number")
    return text(where, str(value))


def maybe(inner: Checker) -> Checker:
    """What `inner` takes, or None."""
    return lambda where, value: None if value is None else inner(where, value)


def many(inner: Checker) -> Checker:
    """A list of what `inner` takes, as a tuple; an empty one in place of None."""

    def check(where: str, value: Any) -> tuple[Any, ...]:
        value = () if value is None else value
        need(isinstance(value, list | tuple), where, value, "give a list")
        return tuple(inner(f"{where}[{i}]", item) for i, item in enumerate(value))

    return check


def pair(first: Checker, second: Checker) -> Checker:
    """A list of two."""

    def check(where: str, value: Any) -> tuple[Any, Any]:
        need(isinstance(value, list | tuple) and len(value) == 2, where, value, "give a list of two")
        return first(f"{where}[0]", value[0]), second(f"{where}[1]", value[1])

    return check


def named(inner: Checker) -> Checker:
    """An object whose values are all what `inner` takes; an empty one in place of None."""

    def check(where: str, value: Any) -> Mapping[str, Any]:
        value = {} if value is None else value
        need(isinstance(value, Mapping), where, value, "give an object")
        return MappingProxyType({text(where, key): inner(f"{where}.{key}", item) for key, item in value.items()})

    return check


def fields(required: Mapping[str, Checker], optional: Mapping[str, Checker] | None = None) -> Checker:
    """An object with these fields; an optional one may be missing and is then given to its checker as None."""

    def check(where: str, value: Any) -> Mapping[str, Any]:
        need(isinstance(value, Mapping), where, value, "give an object")
        for name in required:
            need(name in value, where, value, f"give {name!r} too, which is missing")
        checked = {name: inner(f"{where}.{name}", value[name]) for name, inner in required.items()}
        checked |= {name: inner(f"{where}.{name}", value.get(name)) for name, inner in (optional or {}).items()}
        return MappingProxyType(checked)

    return check


def thawed(value: Any) -> Any:
    """The value as JSON writes it: dicts, lists, and "inf" for infinity."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 10**300  # what a float can hold
    return isinstance(value, float) and not math.isnan(value)


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
        metrics: Any = (),
        ledger: Any = None,
        comparison: Iterable[Mapping[str, Any]] = (),
        curves: Iterable[Any] = (),
        warnings: Iterable[str] = (),
        purpose: str | None = None,
        owner: str | None = None,
    ) -> Record:
        """The record of a fitted `PrivateClassifier` or `PrivateRegressor`.

        `data` needs a `name`; n is taken from the privacy statement and left out where that keeps it private.
        `metrics` are of records kept out of training: what `private_score` returned, its figures, or mappings;
        `comparison` has the other runs: the report adds this one.  `purpose` and `owner` are what the model card says
        first.

        The statement is of everything that `ledger` holds (a `privacy.Ledger` or its path; unless given, that of the
        estimator), of the fit, and of `metrics` that say what they cost.  Noisy figures whose cost is in none of
        these are named in a warning.
        """
        figures, scores = told(metrics)
        parts: dict[str, Any] = {"metrics": figures, "comparison": tuple(comparison), "curves": told(curves)[0]}
        parts |= {"purpose": purpose, "owner": owner}
        noisy = scores is None and any(figure.get("noise") for figure in figures)
        return cls(title=title, **parts | described(estimator, data, tuple(warnings), ledger, scores, noisy))

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
    return _four_digits(value, math.ceil)


def rounded_down(value: float) -> str:
    """Four digits, never above the value: what is left of a budget.

    >>> rounded_down(1.11029), rounded_down(0.0)
    ('1.11', '0')
    """
    return _four_digits(value, lambda units: math.floor(units + 1e-9))


def _four_digits(value: float, rounding: Callable[[float], int]) -> str:
    if value <= 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(max(value, 1e-300))) - 3)
    return f"{rounding(value / unit) * unit:.4g}"


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


PACKAGES = ("isthmus", "torch", "numpy", "scipy", "scikit-learn", "dp-accounting")

_POINTS = 10
"""Points of the budget's curve: each asks the accountant."""

UNCOUNTED = (
    "Some figures have noise, and the statement may not count what they cost: it is not known where that was paid. "
    "Give metrics=scores as private_score returned them, or the ledger that they were charged to"
)


def told(entries: Any) -> tuple[list[Any], Any]:
    """Figures or curves as a record holds them, and the scores that they are of where those say what they cost."""
    if isinstance(entries, isthmus.estimators.Scores):
        return [figure.to_dict() for figure in entries.figures], entries if entries.privacy is not None else None
    return [entry.to_dict() if hasattr(entry, "to_dict") else entry for entry in entries], None


def described(
    estimator: Any,
    data: Mapping[str, Any],
    warnings: tuple[str, ...],
    ledger: Any = None,
    scores: Any = None,
    noisy: bool = False,
) -> dict[str, Any]:
    """All parts of a record that the estimator, the ledger and the statement of its scores know.

    `noisy` says that there are figures with noise which bring no statement.
    """
    fitted = all(hasattr(estimator, name) for name in ("result_", "privacy_", "plan_", "choice_", "history_"))
    need(fitted, "estimator", type(estimator).__name__, "give an isthmus estimator, and fit it first")
    need("name" in data, "data", dict(data), "give at least its public name: data={'name': ...}")
    statement, plan = estimator.privacy_, estimator.plan_
    given = estimator.ledger if ledger is None else ledger
    file = Path(given).name if isinstance(given, str | os.PathLike) else None
    ledger = isthmus.privacy.Ledger.open(given) if file is not None else given
    if not isinstance(ledger, isthmus.privacy.Ledger):  # none, or one of the user's own, which cannot be read
        ledger = None
    if statement is not None:
        own = set() if ledger is None else set(isthmus.estimators.partial_fit_claims.identities(ledger))
        costs = [(statement, getattr(estimator, "_paid", ()))]
        if scores is not None:
            costs.append((scores.privacy, scores.paid))
        apart = [cost for cost, paid in costs if not own & set(paid)]  # or nobody knows which ledger paid
        statement = statement.with_all_of(ledger, *(cost for cost, _ in costs[1:]), apart=apart)
        charged = [] if ledger is None else ledger.rounds()
        if noisy and not any(name.endswith(isthmus.estimators.scoring.FIGURES) for name in charged):
            warnings = (*warnings, UNCOUNTED)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "data": _facts_of_data(estimator, data),
        "model": _facts_of_model(estimator),
        "privacy": None if statement is None else json.loads(statement.to_json()),
        "words": "" if statement is None else statement.words(),
        "warnings": warnings,
        "budget": _budget_of(estimator, ledger, file),
        "history": _history(estimator.history_, estimator.choice_),
        "energy": _energy(plan, estimator.choice_, estimator.options),
        "plan": plan.to_dict(),
    }


def _versions() -> dict[str, str]:
    """The versions of the packages that a result depends on."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:  # used from a folder, not installed
            continue
    return installed


def _facts_of_data(estimator: Any, declared: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of the data, with the number of records only where it is public."""
    names = getattr(estimator, "feature_names_in_", None)
    classes = getattr(estimator, "classes_", None)
    fitted = {
        "d": int(estimator.n_features_in_),
        "features": None if names is None else [str(name) for name in names],
        "classes": None if classes is None else [str(label) for label in classes],
    }
    facts = {**fitted, **declared}
    if estimator.privacy_ is not None:
        facts["n"] = estimator.privacy_.n
    return facts


def _history(rows: Sequence[Mapping[str, Any]], choice: Any) -> list[dict[str, Any]]:
    """How far each round moved and the expected length of its noise, where that is the step times the release's."""
    scaled = not choice.arguments.get(
        "precondition"
    )  # else the noise goes through a matrix that the round does not tell
    return [
        {"t": row["t"], "moved": _finite(row.get("moved")), "noise": _finite(row.get("noise")) if scaled else None}
        for row in rows
    ]


def _energy(plan: Any, choice: Any, options: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The energy curve of public rows, and the number of directions where the run kept only so many."""
    public = plan.facts.public
    if public is None or public.curve is None:
        return None
    chosen = (options or {}).get("k", choice.arguments["k"]) if "data" in choice.of.parameters else None
    source = f"{public.rows:,} public records, half of them to learn from and half to judge"
    return {"k": public.curve.ks, "captured": public.curve.shares, "chosen": chosen, "source": source}


def _facts_of_model(estimator: Any) -> dict[str, Any]:
    result, choice = estimator.result_, estimator.choice_
    fixed = dict(estimator.options or {}) | ({"as_published": True} if estimator.as_published else {})
    if estimator.clip is not None:
        fixed["clip"] = estimator.clip
    penalties = {"l1": estimator.l1, "l2": estimator.l2}
    constraint, facts = estimator.constraint, estimator.plan_.facts
    return {
        "task": "classification" if hasattr(estimator, "classes_") else "regression",
        "loss": estimator.plan_.facts.loss_name,
        "algorithm": choice.algorithm,
        "how": choice.of.words or None,
        "choice": choice.name,
        "arguments": choice.to_dict()["arguments"] | json.loads(json.dumps(fixed, default=str)),
        "rounds": int(estimator.n_iter_),
        "constraint": None if constraint is None else str(constraint),
        "penalty": " + ".join(f"{name} {value:g}" for name, value in penalties.items() if value) or None,
        "seconds": float(estimator.seconds_),
        "strength": float(facts.b) if facts.private else None,
        "dims": int(result.dims),
        "bytes": int(result.bytes),
    }


def _budget_of(estimator: Any, ledger: Any, file: str | None) -> dict[str, Any]:
    """What was asked for, the curve of the fit, and the budget that it drew on together with others."""
    statement, shared = estimator.privacy_, None
    if statement is not None and ledger is not None and ledger.budget is not None:
        shared = {"file": file, "epsilon": ledger.budget[0], "spent": ledger.spent()}
    return {
        "epsilon": float(estimator.epsilon),
        "delta": None if statement is None else statement.delta,
        "curve": [] if statement is None else estimator.budget_curve(_POINTS),
        "shared": shared,
    }


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
