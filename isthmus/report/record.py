"""The record of a run: everything that its report may show, and nothing else.

A record is one JSON object, the file `run.json`, of the shape that a JSON Schema states.  Reading one checks every
field, and that its parts agree: words that promise what the figures do not, a figure of the training data of a private
run, or a number of records that the privacy statement keeps to itself are refused.

The schema's descriptions are what an error tells the reader to do:

>>> Record.from_dict({"format": "isthmus-run-1", "title": "t", "data": {}, "model": {}, "privacy": None, "words": ""})
Traceback (most recent call last):
isthmus.base.validate.InvalidInput: data={} is not allowed: give 'name' too, which is missing
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import isthmus
from isthmus.base import shapes
from isthmus.base.atomic import atomic_write
from isthmus.base.notebook import rounded_up
from isthmus.base.shapes import ANY, COUNT, FLAG, LABEL, REAL, SHARE, TEXT, an_object, kind, many, named, one_of
from isthmus.base.validate import check as need
from isthmus.base.validate import present, refuse, unreadable

if TYPE_CHECKING:  # a record is read without torch
    from isthmus.estimators import PrivateClassifier, PrivateRegressor, Scores
    from isthmus.planner import Choice, Plan

    _Fitted = PrivateClassifier | PrivateRegressor

Fields = Mapping[str, Any]


class _Told(Protocol):
    """A figure or a curve that an estimator's scores hold."""

    def to_dict(self) -> dict[str, object]: ...


FORMAT = "isthmus-run-1"
_FILE = "run.json"

# ---------------------------------------------------------------- the schema


_LIMIT = kind("number infinity", 'give a number of at least 0, or "inf"', minimum=0)
_KEPT = kind("number", "give a share between 0 and 1", minimum=0, maximum=1 + 1e-9)
_POINT = kind("array", "give a list of two", items=_LIMIT, minItems=2, maxItems=2)
_UNKNOWN = REAL | {"type": ["number", "null"]}
_STATEMENT = an_object(
    {"epsilon": _LIMIT, "delta": SHARE, "adjacency": TEXT, "private": FLAG},
    **dict.fromkeys(("sampler", "noise", "guarantee", "accountant", "released"), TEXT),
    **{"n": COUNT, "nominal": _LIMIT, "event": ANY, "assumptions": many(TEXT), "leaks": many(TEXT)},
    releases=many(an_object({"what": TEXT, "times": COUNT, "noise": TEXT})),
)
_CHOICE = an_object(
    {"algorithm": TEXT},
    **dict.fromkeys(("noise_multiplier", "noise_norm", "margin_noise", "seconds", "passes"), _LIMIT),
    **dict.fromkeys(("rounds", "dims", "bytes", "memory", "batch_size"), COUNT),
    **{"arguments": named(ANY), "name": TEXT, "evidence": TEXT, "why": TEXT, "research": FLAG},
)
_DATA = an_object(
    {"name": TEXT},
    **dict.fromkeys(("n", "d", "test_rows", "public_rows"), COUNT),
    **{"target": TEXT, "features": many(LABEL), "classes": many(LABEL)},
    fields=many(an_object({"name": LABEL, "treatment": TEXT})),
)
_MODEL = an_object(
    {"task": one_of("classification", "regression"), "algorithm": TEXT},
    **dict.fromkeys(("loss", "how", "choice", "constraint", "penalty"), TEXT),
    **dict.fromkeys(("rounds", "dims", "bytes"), COUNT),
    **{"arguments": named(ANY), "seconds": REAL, "strength": REAL},
)
_BUDGET = an_object(
    {},
    **{"epsilon": _LIMIT, "delta": REAL, "curve": many(_POINT)},
    shared=an_object({"epsilon": _LIMIT, "spent": _LIMIT}, file=TEXT),
)
_METRIC = an_object(
    {"name": TEXT, "value": _UNKNOWN, "on": TEXT},
    **{"noise": REAL, "baseline": REAL, "than": TEXT, "note": TEXT},
)
_LINE = an_object({"name": TEXT, "x": many(REAL), "y": many(_UNKNOWN)})
_CURVE = an_object(
    {"title": TEXT, "series": many(_LINE)},
    **{"x_label": TEXT, "y_label": TEXT, "note": TEXT, "shares": FLAG},
)
_OTHER_RUN = an_object(
    {"name": TEXT},
    **{"epsilon": _LIMIT, "score": REAL, "seconds": REAL, "dims": COUNT, "metric": TEXT, "note": TEXT},
)
_PLAN = an_object({"choices": many(_CHOICE)}, facts=named(ANY), refused=named(TEXT), notes=many(TEXT))
_ENERGY = an_object({"k": many(REAL), "captured": many(_KEPT)}, chosen=COUNT, source=TEXT)
_STEP = an_object({"t": REAL}, moved=REAL, noise=REAL)

# Controls, lone surrogates, and marks that turn the direction of text: a column name could hide or reverse words.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _printable(value: object) -> str:
    return _UNPRINTABLE.sub("\ufffd", str(value))


# ---------------------------------------------------------------- the record


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

    title: str = shapes.setting(TEXT)
    data: Fields = shapes.setting(_DATA)
    model: Fields = shapes.setting(_MODEL)
    privacy: Fields | None = shapes.setting(_STATEMENT | {"type": ["object", "null"]})
    words: str = shapes.setting(TEXT)
    created: str | None = shapes.setting(TEXT, None)
    versions: Mapping[str, str] = shapes.setting(named(TEXT), None)
    warnings: tuple[str, ...] = shapes.setting(many(TEXT), None)
    budget: Fields = shapes.setting(_BUDGET | {"default": {}}, None)
    history: tuple[Fields, ...] = shapes.setting(many(_STEP), None)
    metrics: tuple[Fields, ...] = shapes.setting(many(_METRIC), None)
    curves: tuple[Fields, ...] = shapes.setting(many(_CURVE), None)
    energy: Fields | None = shapes.setting(_ENERGY, None)
    comparison: tuple[Fields, ...] = shapes.setting(many(_OTHER_RUN), None)
    plan: Fields | None = shapes.setting(_PLAN, None)
    purpose: str | None = shapes.setting(TEXT, None)
    owner: str | None = shapes.setting(TEXT, None)

    def __post_init__(self) -> None:
        vars(self).update(shapes.checked(shapes.plain(vars(self), _printable), shapes.shape_of(Record)))
        _agree(self)

    @property
    def private(self) -> bool:
        """Whether a finite epsilon holds."""
        return self.privacy is not None and self.privacy["private"]

    @classmethod
    def of(
        cls,
        estimator: _Fitted,
        *,
        title: str,
        data: Fields,
        metrics: Scores | Iterable[_Told | Fields] = (),
        ledger: object = None,
        comparison: Iterable[Fields] = (),
        curves: Iterable[_Told | Fields] = (),
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
        fitted = isinstance(estimator, isthmus.PrivateClassifier | isthmus.PrivateRegressor)
        fitted = fitted and "history_" in vars(estimator)
        need(fitted, "estimator", type(estimator).__name__, "give an isthmus estimator, and fit it first")
        need("name" in data, "data", dict(data), "give at least its public name: data={'name': ...}")
        if ledger is None:
            ledger = estimator.ledger
        file = None
        if isinstance(ledger, str | os.PathLike):
            file, ledger = Path(ledger).name, isthmus.privacy.Ledger.open(ledger)
        if not isinstance(ledger, isthmus.privacy.Ledger):  # none, or one of the user's own, which cannot be read
            ledger = None
        told, bought, statement, shared = list(warnings), None, estimator.privacy_, None
        if isinstance(metrics, isthmus.estimators.Scores):
            bought, metrics = metrics, metrics.figures
        figures = [_fields(figure) for figure in metrics]
        parts: dict[str, Any] = {"privacy": None, "words": "", "budget": {"epsilon": float(estimator.epsilon)}}
        if statement is not None:
            costs = [(statement, vars(estimator).get("_paid", ()))]
            if bought is not None and bought.privacy is not None:
                costs.append((bought.privacy, bought.paid))
            elif any(figure.get("noise") for figure in figures):
                charged = [] if ledger is None else ledger.rounds()
                if not any(name.endswith(isthmus.estimators.scoring.FIGURES) for name in charged):
                    told.append(UNCOUNTED)
            paid_here = set(isthmus.estimators.partial_fit_claims.identities(ledger))
            apart = [cost for cost, paid in costs if not paid_here & set(paid)]  # or nobody knows which ledger paid
            statement = statement.with_all_of(ledger, *(cost for cost, _ in costs[1:]), apart=apart)
            if ledger is not None and ledger.budget is not None:
                shared = {"file": file, "epsilon": ledger.budget[0], "spent": ledger.spent()}
            parts |= {"privacy": json.loads(statement.to_json()), "words": statement.words()}
            parts["budget"] |= {"delta": statement.delta, "curve": estimator.budget_curve(_POINTS), "shared": shared}
        return cls(
            title=title,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=_versions(),
            data=_facts_of_data(estimator, data),
            model=_facts_of_model(estimator),
            warnings=tuple(told),
            history=tuple(_history(estimator.history_, estimator.choice_)),
            metrics=tuple(figures),
            curves=tuple(map(_fields, curves)),
            energy=_energy(estimator.plan_, estimator.choice_, estimator.options),
            comparison=tuple(comparison),
            plan=estimator.plan_.to_dict(),
            purpose=purpose,
            owner=owner,
            **parts,
        )

    @classmethod
    def from_dict(cls, value: Any) -> Record:
        """The record from the object that `to_dict` gives; refused, with the place, where a field is wrong."""
        need(isinstance(value, Mapping), "record", type(value).__name__, "give the JSON object of a run")
        form = value.get("format")
        remedy = f"give a record of the format {FORMAT!r}: this is of another version, or something else"
        need(form == FORMAT, "format", form, remedy)
        for name in ("title", "data", "model", "privacy", "words"):
            need(name in value, "record", sorted(map(str, value)), f"give {name!r} too, which is missing")
        return cls(**{member.name: value.get(member.name) for member in fields(Record)})

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Record:
        """The record in a file, or in the file `run.json` of a folder."""
        where = _place(path)
        present(os.path.isfile(where), where, f"give a run's folder, or its {_FILE}")
        try:
            value = json.loads(where.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            unreadable(where, f"it is not JSON ({error}); give the run.json of a run that was not cut or altered")
        return cls.from_dict(value)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON has it."""
        return {"format": FORMAT, **shapes.plain(vars(self), _printable)}

    def to_json(self) -> str:
        """The record as JSON text; infinity is written as the text "inf"."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the record to a file, or to `run.json` in a folder that exists; returns the file."""
        where = _place(path)
        with atomic_write(where) as partial:
            partial.write_text(self.to_json(), encoding="utf-8")
        return where


def _place(path: str | os.PathLike[str]) -> Path:
    """The file of a record: one that is named, or that of a folder."""
    if os.path.isdir(path):
        return Path(path, _FILE)
    return Path(path)


def _fields(part: _Told | Fields) -> Fields:
    """A figure or a curve by its fields."""
    return part if isinstance(part, Mapping) else part.to_dict()


def _agree(record: Record) -> None:
    """Refuse a record whose parts contradict each other, or that shows what the statement keeps private."""
    privacy, words = record.privacy, record.words
    try:
        datetime.fromisoformat(record.created or "2026-05-04")
    except ValueError:
        refuse("created", record.created, "give an ISO date and time, such as 2026-05-04T10:30:00+00:00")
    pairs = [(line["x"], line["y"], "curves.series.y") for curve in record.curves for line in curve["series"]]
    if record.energy is not None:
        pairs.append((record.energy["k"], record.energy["captured"], "energy.captured"))
    for x, y, where in pairs:
        need(len(x) == len(y), where, f"{len(y)} values", f"give one for each place: {len(x)}")
    if privacy is None:
        need(words == "", "words", words, "leave them empty: there is no privacy statement that they belong to")
        return
    epsilon, private = privacy["epsilon"], privacy["private"]
    remedy = "correct it or epsilon: it is true exactly where epsilon is finite"
    need(private == math.isfinite(epsilon), "privacy.private", private, remedy)
    said = f"epsilon = {rounded_up(epsilon)}"
    same = ("NOT private" in words) != private and said in words and all(leak in words for leak in privacy["leaks"])
    remedy = (
        f"give PrivacyStatement.words() of this statement: private={private}, {said}, with all that it names as leaked"
    )
    need(same, "words", words, remedy)
    nominal = epsilon if private else privacy["nominal"] or math.inf
    spent = max((point for _, point in record.budget["curve"]), default=0.0)
    remedy = f"give at most {rounded_up(nominal)}, which is what the statement says in all"
    need(spent <= 1.01 * nominal, "budget.curve", spent, remedy)  # grids of accountants depend on the rounds
    n = record.data["n"]
    remedy = "leave it out: the privacy statement keeps the number of records private"
    need(n is None or privacy["n"] is not None, "data.n", n, remedy)
    remedy = "leave it out: a figure of the training data is not covered by epsilon"
    for metric in record.metrics:
        need(not metric["on"].strip().lower().startswith("train"), "metrics.on", metric["on"], remedy)


# ---------------------------------------------------------------- what a fitted estimator may show of itself

_PACKAGES = ("isthmus", "torch", "numpy", "scipy", "scikit-learn", "dp-accounting")
_POINTS = 10
"""Points of the budget's curve: each asks the accountant."""
UNCOUNTED = (
    "Some figures have noise, and the statement may not count what they cost: it is not known where that was paid. "
    "Give metrics=scores as private_score returned them, or the ledger that they were charged to"
)


def _versions() -> dict[str, str]:
    """The versions of the packages that a result depends on."""
    installed = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):  # used from a folder, not installed
            installed[name] = version(name)
    return installed


def _facts_of_data(estimator: _Fitted, declared: Fields) -> Fields:
    """What was said of the data, with the number of records only where it is public."""
    fitted = vars(estimator)
    facts: dict[str, object] = {"d": int(estimator.n_features_in_)}
    facts |= {"features": [*map(str, fitted.get("feature_names_in_", ()))]}
    facts |= {"classes": [*map(str, fitted.get("classes_", ()))], **declared}
    if estimator.privacy_ is not None:
        facts["n"] = estimator.privacy_.n
    return facts


def _facts_of_model(estimator: _Fitted) -> Fields:
    result, choice, facts = estimator.result_, estimator.choice_, estimator.plan_.facts
    own = {"as_published": estimator.as_published or None, "clip": estimator.clip}
    given = dict(estimator.options or {}) | {name: value for name, value in own.items() if value is not None}
    assert choice.of is not None
    penalties = {"l1": estimator.l1, "l2": estimator.l2}
    return {
        "task": "classification" if "classes_" in vars(estimator) else "regression",
        "loss": facts.loss_name,
        "algorithm": choice.algorithm,
        "how": choice.of.words or None,
        "choice": choice.name,
        "arguments": choice.to_dict()["arguments"] | json.loads(json.dumps(given, default=str)),
        "rounds": int(estimator.n_iter_),
        "constraint": estimator.constraint and str(estimator.constraint),
        "strength": facts.b if facts.private else None,
        "penalty": " + ".join(f"{name} {value:g}" for name, value in penalties.items() if value) or None,
        "seconds": float(estimator.seconds_),
        "dims": int(result.dims),
        "bytes": int(result.bytes),
    }


def _history(rows: Sequence[Fields], choice: Choice) -> list[Fields]:
    """How far each round moved and the expected length of its noise, where that is the step times the release's."""
    shown = ["moved"] if choice.arguments.get("precondition") else ["moved", "noise"]  # else through a matrix
    return [
        {"t": row["t"], **{name: row[name] for name in shown if math.isfinite(row.get(name) or 0.0) and name in row}}
        for row in rows
    ]


def _energy(plan: Plan, choice: Choice, options: Fields | None = None) -> Fields | None:
    """The energy curve of public rows, and the number of directions where the run kept only so many."""
    public = plan.facts.public
    if public is None or public.curve is None or choice.of is None:
        return None
    chosen = (options or {}).get("k", choice.arguments["k"]) if "data" in choice.of.parameters else None
    source = f"{public.rows:,} public records, half of them to learn from and half to judge"
    return {"k": public.curve.ks, "captured": public.curve.shares, "chosen": chosen, "source": source}
