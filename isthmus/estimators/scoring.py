"""`private_score`: the figures that people report, of rows that were not trained on.

A `Figure` is one number beside what a model without inputs would reach, with the standard deviation of the noise in it
(0: exact, of public rows).  What the noise would hide is no number: its note says how many rows would do.

Private rows are looked at twice, Gaussian noise in both, a fifth of the budget (of mu^2, in which costs add up) for the
first:

    test ranges    in which of some fixed cells a row's score lies; of a regression, its error and its target
    test figures   labels: in which cell (true class, predicted class) a row lies, and in which (true class, group of
                   scores); numbers: sums of |e|, e^2, u, u^2, |u|, clipped where the first look saw few rows

A row adds 1 to one cell of each of b counts, so that it moves all of them together by sqrt b, or adds a vector of
length at most sqrt 5 to the sums.  Accuracy, recall, precision, AUC, calibration, log loss, R2 and errors all follow
from what was released: they cost nothing more.  Rows too few to tell anything are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, xlogy
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import _num_samples

from isthmus.base import validate
from isthmus.core.group import Group
from isthmus.estimators import partial_fit_claims
from isthmus.estimators.linear import GroupLike, LedgerLike
from isthmus.estimators.looks import Looks
from isthmus.privacy import PrivacyStatement, leaks, plan

_TELLS = 0.05
"""A share with noise of a larger standard deviation tells nothing."""
_ROUGHLY = 0.1
"""Of R2, recall and precision less is expected."""
_RELATIVE = 0.25
"""So does an error or a loss whose noise is a larger part of it."""
_MEAN = "always the mean"
_MOST_LOSS = 16.0
"""A probability below exp(-16) of what happened counts as that: one row cannot make the log loss infinite."""
_GROUPS = 10
"""Groups of rows with scores near each other, for calibration and the curves."""


class Model(Protocol):
    """A fitted model; of labels it has `classes_`, and `decision_function` or `predict_proba` for further figures."""

    def predict(self, X: object) -> ArrayLike: ...


def _classes_of(model: Model) -> np.ndarray | None:
    """The labels that a model knows; None of one that predicts numbers."""
    try:
        return np.asarray(model.classes_)  # type: ignore[attr-defined]
    except AttributeError:
        return None


@dataclass(frozen=True)
class Figure:
    """One measured number, what it was measured on, and what there is to know beside it.

    value     None where the noise would hide it
    noise     the standard deviation of the noise that was added (0: exact)
    baseline  the same figure of a model that knows no inputs, `than` says which
    note      what was clipped, or how many rows would do

    >>> Figure("accuracy", 0.8419, "500 held-out rows", 0.004, 0.76, "always the most frequent class").words()
    'accuracy 0.8419 (noise s.d. 0.0040; always the most frequent class: 0.7600), on 500 held-out rows'
    """

    name: str
    value: float | None
    on: str = ""
    noise: float = 0.0
    baseline: float | None = None
    than: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """As the record of a run holds it: what is not there is None."""
        beside = {"noise": self.noise or None, "baseline": self.baseline, "than": self.than or None}
        return {"name": self.name, "value": self.value, "on": self.on, **beside, "note": self.note or None}

    def words(self) -> str:
        """One line."""
        where = f", on {self.on}" * bool(self.on)
        if self.value is None:
            return f"{self.name}: {self.note or 'it has no value here'}{where}"
        beside = [f"noise s.d. {_digits(self.noise)}"] * bool(self.noise)
        if self.baseline is not None:
            beside.append(f"{self.than}: {_digits(self.baseline)}")
        about = f" ({'; '.join(beside)})" * bool(beside)
        return f"{self.name} {_digits(self.value)}{about}{where}" + f"; {self.note}" * bool(self.note)


ShownCurve = Mapping[str, Any]
"""A curve of shares, from released or public figures, as the record of a run holds it."""


class _Bins:
    """Cells between public edges; the outermost are open, and stand for what lies at the edge.

    >>> bins = _Bins([0.0, 1.0, 2.0])
    >>> bins.of(np.array([-5.0, 0.5, 2.0, np.nan])).tolist(), bins.middles.tolist(), bins.cells
    ([0, 1, 3, 3], [0.0, 0.5, 1.5, 2.0], 4)
    """

    def __init__(self, edges: ArrayLike) -> None:
        self.edges = np.asarray(edges, dtype=float)
        self.cells = len(self.edges) + 1
        self.low, self.high = np.append(self.edges[0], self.edges), np.append(self.edges, self.edges[-1])
        self.middles = (self.low + self.high) / 2

    def of(self, values: np.ndarray) -> np.ndarray:
        """The cell of each value; what is no number is in the last."""
        return np.searchsorted(self.edges, values, side="right").astype(np.int64)


def _digits(value: float) -> str:
    """Four digits after the point, or six in all for numbers beyond 10."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.6g}"


RANGES, FIGURES = "test ranges", "test figures"
_FIRST = 0.2
"""The share of mu^2 for the first look."""
_SCORES = _Bins(np.sinh(np.linspace(-1, 1, 65) * np.arcsinh(512)) / 32)
"""Margins from -16 to 16, in cells that are finest at 0."""
_CHEAP = 0.02
"""Noise in R2 that wider clips may cost."""
_LOSSES = _Bins(np.linspace(0, _MOST_LOSS, 17))
_ERRORS = _Bins([2.0 ** (k / 2) for k in range(-48, 25)])
"""Errors in units of half the target's range."""
_AWAY = tuple(2.0 ** (k / 2) for k in range(1, 25))
_FINE = 512
_TARGETS = _Bins((*(-edge for edge in reversed(_AWAY)), *np.linspace(-1, 1, _FINE + 1).tolist(), *_AWAY))
"""Targets in units of half their range about its middle, and beyond it."""
_PUBLIC_MODEL = "the model that is measured is public: its own fit was paid for, or needed no paying"
_ONE_BY_ONE = (
    "the model, which is not of this library, predicts each row by itself, to the last digit: products of matrices may "
    "round a row differently where there is one row more"
)
_APART = "the rows that were measured were not trained on; how many they are is public"


@dataclass(frozen=True)
class Scores:
    """What `private_score` found: figures, curves for a report, and the statement of what they cost (None: public).

    releases   how many noisy looks were taken: 0 where the rows were too few, or public
    paid       the ledgers that were charged for them, by their identities
    """

    figures: tuple[Figure, ...]
    curves: tuple[ShownCurve, ...] = ()
    privacy: PrivacyStatement | None = None
    releases: int = 0
    paid: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __getitem__(self, name: str) -> Figure:
        """A figure by its name, such as "accuracy"."""
        by_name = {figure.name: figure for figure in self.figures}
        validate.check(name in by_name, "name", name, f"name a figure that was measured: {sorted(by_name)}")
        return by_name[name]

    def words(self) -> str:
        """What was measured on, then one line a figure."""
        lines = [f"on {where}" for where in dict.fromkeys(figure.on for figure in self.figures)]
        return "\n".join([*lines, *(replace(figure, on="").words() for figure in self.figures)])

    __str__ = words


def private_score(
    model: Model,
    X: object,
    y: ArrayLike,
    *,
    epsilon: float = 1.0,
    delta: float | None = None,
    target_bounds: tuple[float, float] | None = None,
    adjacency: str = "add-remove",
    ledger: LedgerLike = None,
    noise_seed: int | None = None,
    group: GroupLike = None,
) -> Scores:
    """The figures of a fitted model on rows that were not trained on, (epsilon, delta)-differentially private.

    A classifier has accuracy, recall, precision, AUC (two classes), log loss and calibration error, a regressor R2,
    root mean squared and mean absolute error; each comes with the standard deviation of its noise and with what a
    model without inputs would reach.  A figure that its noise would hide is None, and its note says how many rows
    would do.

    model          fitted, with `predict`, `classes_` for labels, and `decision_function` or `predict_proba` for AUC,
                   log loss and calibration.  It counts as public
    epsilon        of these figures alone; inf measures exactly, without privacy: for public rows
    delta          defaults to min(1e-5, n^-1.1); the number of rows is public
    target_bounds  of a regressor: a public range of y, in whose units errors are sought; unless given, the model's
    ledger         a `privacy.Ledger` or its path: charged before anything is released, refuses what exceeds it
    noise_seed     for tests only: the statement then says "not private"
    group          True, or a process group: the figures of the rows of all its ranks, each of which gives its own rows
                   and the same model; rank 0 has the ledger and the noise

    >>> from sklearn.datasets import make_classification
    >>> from isthmus import PrivateClassifier
    >>> X, y = make_classification(6000, 5, random_state=0)
    >>> model = PrivateClassifier(epsilon=1.0, classes=[0, 1], bounds=(-6, 6)).fit(X[:3000], y[:3000])
    >>> scores = private_score(model, X[3000:], y[3000:], epsilon=1.0)
    >>> scores["accuracy"].value > 0.8, scores["accuracy"].noise < 0.01, scores["AUC"].value > 0.8
    (True, True, True)
    >>> print(scores.privacy)
    (epsilon=1, delta=1e-05)-differentially private, for adding or removing one record
    """
    ranks = Group.of(group)
    with ranks.joined("score"):
        y, classes = np.asarray(y), _classes_of(model)
        remedy = "give one target for each row, and at least one"
        validate.check(y.ndim == 1 and sum(ranks.all(len(y))) > 0, "y", tuple(y.shape), remedy)
        if classes is not None:
            known = bool(np.isin(y, classes).all())  # whose label it is stays unsaid
            validate.require(known, f"y holds a label that the model does not know: its labels are {classes.tolist()}")
        else:
            finite = bool(np.isfinite(y := y.astype(float)).all())
            validate.require(finite, "y holds targets that are NaN or infinite: leave those rows out")
        n = sum(ranks.all(len(y)))
        if epsilon == math.inf:
            remedy = "gather public rows in one process, or give a finite epsilon: exact figures need all of them"
            validate.check(ranks.size == 1, "epsilon", epsilon, remedy)
            return exact_figures(model, X, y, f"{n:,} rows, which count as public")
        if ranks.rank:
            ledger = None
        if delta is None:
            delta = plan.default_delta(n)
        leaks.warn_of_large_delta(delta, n)
        looks = Looks.paid_from(ledger, epsilon, delta, adjacency, noise_seed=noise_seed, ranks=ranks, whole=n)
        scores = noisy_figures(model, X, y, looks, bounds=target_bounds)
        on = f"{n:,} rows" + f", with noise for epsilon = {epsilon:g}" * bool(looks.taken)
        named = tuple(replace(figure, on=on) for figure in scores.figures)
        foreign = [] if type(model).__module__.startswith("isthmus.") else [_ONE_BY_ONE]
        stated = looks.statement(assumptions=[_PUBLIC_MODEL, _APART, *foreign])
        return replace(scores, figures=named, privacy=stated, paid=partial_fit_claims.identities(ledger))


# ---------------------------------------------------------------- what a number may be shown for


def _readable(figure: Figure, rows: int) -> Figure:
    """The figure, or, where its noise is larger than what it could tell, how many rows would do."""
    least, need = _TELLS, "many more"
    if figure.name in ("log loss", "root mean squared error", "mean absolute error"):
        least = _RELATIVE * float(figure.value or 0)
    elif figure.name.startswith(("recall", "precision", "R2")):
        least = _ROUGHLY
    if figure.value is not None and math.isfinite(figure.value) and figure.noise <= least:
        return figure
    if not math.isfinite(figure.noise):
        figure = replace(figure, noise=0.0)
    elif least > 0:
        need = _rows_needed(rows, figure.noise, least)
    return replace(figure, value=None, baseline=None, note=_too_few(figure.noise, need))


def _too_few(noise: float, need: str) -> str:
    """What is said in the place of a number that the noise would hide.

    >>> _too_few(7.7, "about 3,100")
    'too few rows: noise of s.d. 7.7 would hide it; about 3,100 test rows would be enough'
    """
    size = f" of s.d. {noise:.2g}" * (noise > 0)
    return f"too few rows: noise{size} would hide it; {need} test rows would be enough"


def _rows_needed(rows: int, noise: float, least: float = _TELLS) -> str:
    """How many rows bring noise of this size, which falls as 1 / rows, down to `least`.

    >>> _rows_needed(20, 7.7)
    'about 3,100'
    """
    need = rows * noise / least
    unit = 10 ** (math.floor(math.log10(max(need, 10.0))) - 1)  # two digits, never below what is needed
    return f"about {max(1, math.ceil(need / unit - 1e-9) * unit):,}"


# ---------------------------------------------------------------- public rows: exact


def exact_figures(model: Model, X: object, y: ArrayLike, on: str = "") -> Scores:
    """The figures and curves of rows that are public, or whose figures may be published as they are."""
    y, classes = np.asarray(y), _classes_of(model)
    if classes is None:
        predicted, y = _predictions(model, X).astype(float), y.astype(float)
        squares, spread, r2 = float(np.mean((predicted - y) ** 2)), float(np.var(y)), None
        errors, away = (float(np.mean(np.abs(y - from_))) for from_ in (predicted, y.mean()))
        if spread > 0:
            r2 = 1 - squares / spread
        of_numbers = {"R2": (r2, 0.0), "root mean squared error": (math.sqrt(squares), math.sqrt(spread))}
        of_numbers["mean absolute error"] = errors, away
        return Scores(tuple(Figure(name, value, on, 0.0, base, _MEAN) for name, (value, base) in of_numbers.items()))
    said, curves = _Answers(model, classes, X, y), list[ShownCurve]()
    true, two = said.true, len(classes) == 2
    confusion = np.zeros((len(classes), len(classes)))
    np.add.at(confusion, (true, said.called), 1)
    figures = _confusion_figures(confusion, classes, 0.0)
    if two and said.margins is not None and 0 < true.sum() < len(true):
        area = float(roc_auc_score(true, said.margins))
        figures.append(Figure("AUC", area, baseline=0.5, than="guessing"))
    if said.logs is not None:
        losses = -said.logs[np.arange(len(true)), true]
        figures.append(_log_loss(np.ones(len(true)), losses, 0.0, confusion.sum(1)))
        sure, right = said.logs.max(1), true == said.called
        if two:
            sure, right = said.logs[:, 1], true == 1
        groups = np.minimum(np.argsort(np.argsort(sure)) * _GROUPS // max(len(sure), 1), _GROUPS - 1)
        counts = np.stack([np.bincount(groups[right == is_right], minlength=_GROUPS) for is_right in (False, True)])
        mean = np.bincount(groups, np.exp(sure), _GROUPS) / np.maximum(counts.sum(0), 1)
        calibration, curve = _calibration(counts.astype(float), mean, 0.0, classes)
        figures.append(calibration)
        curves.append(curve)
    return Scores(tuple(replace(figure, on=on) for figure in figures), tuple(curves))


class _Answers:
    """What a classifier says of rows: the places of the true and the called class of each, and scores where it has any.

    logs     logarithms of the probabilities of the classes, at least -_MOST_LOSS
    margins  one score a row: of two classes it grows with the second, 0 between them; of more it is the log odds of
             the class that was called
    """

    def __init__(self, model: Model, classes: np.ndarray, X: object, y: np.ndarray) -> None:
        X, own, k = _some(model, X, y), len(y), len(classes)
        self.true, self.called = _places(y, classes), _places(_predictions(model, X), classes)[:own]
        self.logs: np.ndarray | None = None
        self.margins: np.ndarray | None = None
        if hasattr(model, "predict_proba"):
            logs = np.log(np.maximum(np.asarray(model.predict_proba(X), dtype=float), 1e-300))
            self.logs = np.maximum(np.nan_to_num(logs, nan=-_MOST_LOSS), -_MOST_LOSS)[:own]
        if k == 2 and hasattr(model, "decision_function"):
            margins = np.asarray(model.decision_function(X), dtype=float)
            if margins.ndim == 1:
                self.margins = margins[:own]
        if self.margins is None and self.logs is not None and k > 1:
            top = np.minimum(self.logs.max(1), -1e-9)
            self.margins = top - np.log(-np.expm1(top))
            if k == 2:
                self.margins = self.logs[:, 1] - self.logs[:, 0]


def _predictions(model: Model, X: object) -> np.ndarray:
    """What a model predicts, one value a row: one fitted to a column of targets gives a column, which is flattened."""
    predicted, rows = np.asarray(model.predict(X)), _num_samples(X)
    one = predicted.shape in ((rows,), (rows, 1))
    validate.require(one, f"The model predicts values of the shape {predicted.shape}: give one that predicts one a row")
    return predicted.reshape(rows)


def _places(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The place of each label among the classes."""
    order = np.argsort(classes)
    return order[np.clip(np.searchsorted(classes, labels, sorter=order), 0, len(classes) - 1)]


# ---------------------------------------------------------------- private rows: labels


def noisy_figures(
    model: Model, X: object, y: np.ndarray, looks: Looks, *, bounds: tuple[float, float] | None = None
) -> Scores:
    """The figures of private rows, each look charged before it is released."""
    classes = _classes_of(model)
    if classes is None:
        scores = _numbers(model, X, y, looks, bounds)
    else:
        scores = _labels(model, classes, X, y, looks)
    return replace(scores, releases=len(looks.taken) * (not looks.covered))


def _some(model: Model, X: object, y: np.ndarray) -> object:
    """The rows, or one of zeros where a rank has none: models do not predict for nobody."""
    if len(y):
        return X
    return np.zeros((1, model.n_features_in_))  # type: ignore[attr-defined]


def _labels(model: Model, classes: np.ndarray, X: object, y: np.ndarray, looks: Looks) -> Scores:
    said, n, k = _Answers(model, classes, X, y), looks.whole or len(y), len(classes)
    shares, blocks = {FIGURES: 1.0}, 1
    if said.margins is not None:
        shares, blocks = {RANGES: _FIRST, FIGURES: 1 - _FIRST}, 2 + (k > 2)
    least = looks.noise(math.sqrt(blocks), shares[FIGURES]) * math.sqrt(k - 1) / n
    if least > _TELLS:  # nothing could be told: nothing is looked at, nothing is spent
        need = _rows_needed(n, least)
        return Scores((Figure("accuracy", None, noise=least, note=_too_few(least, need)),))
    with looks.announced(shares):
        bins, widths, groups = [said.true * k + said.called], [k * k], None
        if said.margins is not None:
            groups = _Groups(said.margins, n, looks)
            # two classes: which one it is; more: whether the called one was right
            event = said.true == (1 if k == 2 else said.called)
            bins.append(event * groups.count + groups.index[_SCORES.of(said.margins)])
            widths.append(2 * groups.count)
        if said.logs is not None and k > 2:
            bins.append(_LOSSES.of(-said.logs[np.arange(len(y)), said.true]))
            widths.append(_LOSSES.cells)
        cells, noise = looks.counts(FIGURES, np.stack(bins, axis=1), max(*widths, _LOSSES.cells), shares[FIGURES])
    # figures and curves from the noisy counts: post-processing
    counts = [_summing(row[:width], n) for row, width in zip(cells, widths, strict=True)]
    confusion = counts[0].reshape(k, k)
    derived, curves = _confusion_figures(confusion, classes, noise), list[ShownCurve]()
    if groups is not None:
        scores = counts[1].reshape(2, groups.count)
        if k > 2 and k - 1 > groups.count / 2:  # fewer cells tell how many were right
            share = float(np.clip(scores[1].sum() / n, 0, 1))
            derived[0] = replace(derived[0], value=share, noise=noise * math.sqrt(groups.count / 2) / n)
        if k == 2:
            derived.append(_auc_figure(scores, noise))
        if said.logs is not None:
            told, losses, actual = counts[-1], _LOSSES.middles, confusion.sum(1)
            if k == 2:
                signs = np.array([[1.0], [-1.0]])
                told, actual = scores, scores.sum(1)
                losses = np.minimum(np.logaddexp(0, signs * groups.margin), _MOST_LOSS)
            calibration, curve = _calibration(scores, groups.predicted, noise, classes)
            derived += [_log_loss(told, losses, noise, actual), calibration]
            if len(curve["series"][0]["x"]) > 2:
                curves.append(curve)
    return Scores(tuple(_readable(figure, n) for figure in derived), tuple(curves))


def _summing(counts: np.ndarray, n: int) -> np.ndarray:
    """The counts, moved alike so that they sum to the public number of rows."""
    return counts + (n - counts.sum()) / len(counts)


class _Groups:
    """Groups of neighbouring score cells with about as many rows each: public, for the first look was paid for."""

    def __init__(self, margins: np.ndarray, n: int, looks: Looks) -> None:
        """By the noisy numbers of rows in the cells of `_SCORES`."""
        (counts,), noise = looks.counts(RANGES, _SCORES.of(margins)[:, None], _SCORES.cells, _FIRST)
        # as many groups as leave each well above the noise of its cells in the second look
        most = int(np.clip(n / (20 * noise + 1), 2, 2 * _GROUPS))
        below = np.clip(np.maximum.accumulate(np.cumsum(_summing(counts, n))), 0, n)
        middle = np.clip(below - np.diff(below, prepend=0.0) / 2, 0, n * (1 - 1e-12))
        self.index = np.unique((middle * most // n).astype(np.int64), return_inverse=True)[1].reshape(-1)
        weight = np.clip(counts, noise / 10, None)
        total = np.bincount(self.index, weight)
        self.count, self.margin = len(total), np.bincount(self.index, weight * _SCORES.middles) / total
        self.predicted = np.bincount(self.index, weight * expit(_SCORES.middles)) / total


# ---------------------------------------------------------------- figures from counts: exact, or noisy


def _confusion_figures(confusion: np.ndarray, classes: Sequence[object] | np.ndarray, noise: float) -> list[Figure]:
    """Accuracy, recall and precision from counts (true class, predicted class), each with noise of this s.d."""
    n, k = max(float(confusion.sum()), 1.0), len(confusion)
    actual, called, hit = confusion.sum(1), confusion.sum(0), np.diag(confusion)
    # counts that sum to a known number: the noise of k of k^2 cells, less what the sum tells of it
    spread = noise * math.sqrt(k * (1 - 1 / k))
    most = float(np.clip(actual.max() / n, 0, 1))
    accuracy = float(np.clip(hit.sum() / n, 0, 1))
    figures = [Figure("accuracy", accuracy, "", spread / n, most, "always the most frequent class")]
    if k == 2:
        figures += [
            _ratio(f"recall of {classes[1]}", hit[1], actual[1] - hit[1], noise),
            _ratio(f"precision of {classes[1]}", hit[1], called[1] - hit[1], noise, float(actual[1] / n)),
        ]
        return figures
    for name, whole in (("recall", actual), ("precision", called)):
        ratios = [_ratio(name, hit[i], whole[i] - hit[i], noise, cells=k - 1) for i in range(k)]
        values, mean = [figure.value for figure in ratios if figure.value is not None], None
        if len(values) == k:
            mean = float(np.mean(values))
        deviation = float(np.sqrt(np.sum([figure.noise**2 for figure in ratios]))) / k
        figures.append(Figure(f"{name}, mean over the classes", mean, "", deviation, 1 / k, "guessing"))
    return figures


def _ratio(name: str, hit: float, missed: float, noise: float, base: float | None = None, cells: int = 1) -> Figure:
    """hit / (hit + missed), with what the noise of both does to it; `missed` is a sum of so many cells."""
    whole, wide = float(hit + missed), noise * math.sqrt(1 + cells)
    if whole <= 3 * wide:
        return Figure(name, None, "", wide / max(whole, noise, 1.0), note="no row belongs to it" * (not noise))
    share = float(np.clip(hit / whole, 0, 1))
    deviation = noise * math.hypot(1 - share, share * math.sqrt(cells)) / whole
    if base is None:
        return Figure(name, share, "", deviation)
    return Figure(name, share, "", deviation, float(np.clip(base, 0, 1)), "the share of that class")


def _auc_figure(counts: np.ndarray, noise: float) -> Figure:
    """How often a row of the second class scores above one of the first, ties half: counts are 2 x groups, in order."""
    first, second = counts
    below = np.cumsum(first) - first / 2
    above = np.cumsum(second[::-1])[::-1] - second / 2
    m, p = float(first.sum()), float(second.sum())
    fewest, wide = min(m, p), noise * math.sqrt(counts.shape[1])
    if fewest <= 3 * wide:
        return Figure("AUC", None, "", wide / max(fewest, noise, 1.0), note="one class has no rows" * (not noise))
    area = float(np.clip((second @ below) / (m * p), 0, 1))
    slopes = np.concatenate([(below - area * m), (above - area * p)]) / (m * p)
    return Figure("AUC", area, "", noise * _centred_norm(slopes), 0.5, "guessing")


def _centred_norm(weights: np.ndarray) -> float:
    """The length of weights less their mean: the noise of a weighted sum of counts that were moved to a known sum."""
    return float(np.linalg.norm(weights - weights.mean()))


def _log_loss(counts: np.ndarray, losses: np.ndarray, noise: float, actual: np.ndarray) -> Figure:
    """-log of the probability of what happened, of counts of rows with this loss each.

    Beside the loss of the class shares, which is their entropy; `actual` is how many rows each class has.
    """
    n = max(float(counts.sum()), 1.0)
    shares = np.clip(actual, 0, None) / max(float(np.clip(actual, 0, None).sum()), 1e-300)
    value, spread = max(float((counts * losses).sum()) / n, 0.0), noise * _centred_norm(losses) / n
    return Figure(
        "log loss", value, "", spread, float(-xlogy(shares, shares).sum()), "always the shares of the classes"
    )


def _calibration(
    counts: np.ndarray, predicted: np.ndarray, noise: float, classes: np.ndarray
) -> tuple[Figure, ShownCurve]:
    """How far what was predicted is from what happened, over groups: counts are (no, yes) x groups.

    The mean distance, and what happened in each group beside what was predicted; groups that the noise hides are left
    out of the curve.
    """
    whole = counts.sum(0)
    n = max(float(whole.sum()), 1.0)
    deviation = noise * np.hypot(1 - predicted, predicted)
    value = float(np.abs(counts[1] - predicted * whole).sum()) / n
    # noise makes distances longer, never shorter on average
    added = math.sqrt(2 / math.pi) * float(np.sum(deviation)) / n
    note = f"up to {min(added / max(value, added, 1e-300), 1.0):.0%} of it may be noise" * bool(noise)
    figure = Figure("calibration error", min(value, 1.0), "", float(np.linalg.norm(deviation)) / n, note=note)
    event = "the class that was predicted"
    if len(classes) == 2:
        event = str(classes[1])
    filled = whole > noise / _TELLS
    x, y = predicted[filled], np.clip(counts[1][filled] / whole[filled], 0, 1)
    ends = np.sort(x)[[0, -1]].tolist() if len(x) else []
    lines = {"happened": (x.tolist(), y.tolist()), "as predicted": (ends, ends)}
    series = [{"name": name, "x": at, "y": share} for name, (at, share) in lines.items()]
    words = {"x_label": f"predicted probability of {event}", "y_label": "share that it happened to", "note": ""}
    return figure, {"title": "Calibration", **words, "series": series, "shares": True}


# ---------------------------------------------------------------- private rows: numbers


def _numbers(model: Model, X: object, y: np.ndarray, looks: Looks, bounds: tuple[float, float] | None) -> Scores:
    low, high = bounds or getattr(model, "target_bounds_", None) or (math.nan, math.nan)
    validate.check(low < high, "target_bounds", bounds, "give a public range (low, high) of y: this model has none")
    n, middle, half = looks.whole or len(y), (low + high) / 2, (high - low) / 2
    noise = looks.noise(math.sqrt(2), _FIRST)
    if _stands(noise, _TARGETS.cells) > n / 4:  # not even a quarter of the rows in one cell would be seen
        need = _rows_needed(n, _stands(noise, _TARGETS.cells) / n, 0.1)
        return Scores((Figure("R2", None, note=_too_few(0.0, need)),))
    predicted = _predictions(model, _some(model, X, y)).astype(float)[: len(y)]
    with looks.announced({RANGES: _FIRST, FIGURES: 1 - _FIRST}):
        with np.errstate(over="ignore", invalid="ignore"):
            distances, places = np.abs(predicted - y) / half, (y - middle) / half
        cells = np.stack([_ERRORS.of(distances), _TARGETS.of(places)], axis=1)
        counts, _ = looks.counts(RANGES, cells, _TARGETS.cells, _FIRST)
        mean = looks.noise(math.sqrt(5), 1 - _FIRST) / n
        scale = _scale(counts[0][: _ERRORS.cells], counts[1], n, noise, mean)
        scale = _Scale(scale.error * half, middle + scale.centre * half, scale.width * half)  # in the units of y
        terms = scale.terms(predicted, y)
        sums, noise = looks.sums(FIGURES, terms, math.sqrt(terms.shape[1]), 1 - _FIRST)
    part, square, place, place2, away = (float(total) / n for total in sums)
    sd, note, of_root = noise / n, scale.words(), math.inf
    errors, spread = max(square, 0.0) * scale.error**2, (place2 - place**2) * scale.width**2
    noisy = sd * math.hypot(1, 2 * place) * scale.width**2
    r2 = Figure("R2", None, "", sd * max(1.0, scale.error**2 / scale.width**2))
    if spread > 3 * noisy and square > 0:  # a variance within its own noise tells nothing, and it divides
        ratio = errors / spread
        deviation = math.hypot(sd * scale.error**2 / spread, ratio * noisy / spread)
        r2 = Figure("R2", 1 - ratio, "", deviation, 0.0, _MEAN, note)
    root, base = math.sqrt(errors), math.sqrt(max(spread, 0.0))
    if root > 0:
        of_root = sd * scale.error**2 / (2 * root)
    size, without, than = max(part, 0.0) * scale.error, max(away, 0.0) * scale.width, f"always {scale.centre:.4g}"
    figures = [
        r2,
        Figure("root mean squared error", root, "", of_root, base, _MEAN, note),
        Figure("mean absolute error", size, "", sd * scale.error, without, than, note),
    ]
    return Scores(tuple(_readable(figure, n) for figure in figures))


def _stands(noise: float, cells: int) -> float:
    """How many rows a cell must seem to have to stand out of the noise of all of them."""
    return noise * (math.sqrt(2 * math.log(cells)) + 1)


def _scale(errors: np.ndarray, targets: np.ndarray, n: int, noise: float, mean: float) -> _Scale:
    """Where to clip, in units of the target's range, and the mean of the targets that were seen.

    At first the outer edges of the cells that clearly hold rows; then as far beyond as costs little noise, `mean`
    being that of the mean of a term: what lies there is rare, and may still matter.
    """
    filled = errors > max(_stands(noise, len(errors)), 0.001 * n)
    error = 1.0
    if filled.any():
        error = float(_ERRORS.high[filled].max()) * _wider(float(errors[filled].sum()) / n)
    inside, low, high, centre, spread = _extent(targets, n, noise)
    width = max(high - centre, centre - low) * _wider(inside)
    far = math.sqrt(_CHEAP * max(spread, (width / 8) ** 2) / mean)
    return _Scale(min(max(error, far), 8 * error), centre, min(max(width, far), 8 * width))


def _wider(share: float) -> float:
    """How far beyond what was seen to go where a share of the rows was not seen, for they are likely farther out."""
    return float(np.clip(1 + 4 * (1 - share), 1.0, 3.0))


def _extent(counts: np.ndarray, n: int, noise: float) -> tuple[float, float, float, float, float]:
    """The share of the targets that was seen, and their lowest and highest place, mean and variance.

    Few rows in each fine cell may be many in a coarse one: the finest cells that show nearly all rows are taken, or
    those that show the most.
    """
    best = (1.0, -1.0, 1.0, 0.0, 1.0)
    most = 0.0
    outer = (len(counts) - _FINE) // 2
    for merged in (1, 2, 4, 8, 16, 32, 64):
        starts = np.r_[:outer, outer : outer + _FINE : merged, outer + _FINE : outer + _FINE + outer]
        sums = np.add.reduceat(counts, starts)
        sizes = np.diff(starts, append=len(counts))
        filled = sums > np.maximum(_stands(noise, len(starts)) * np.sqrt(sizes), 0.001 * n)
        if not filled.any():
            continue
        low, high = _TARGETS.low[starts], _TARGETS.high[starts + sizes - 1]
        share, middles = float(sums[filled].sum()) / n, (low + high)[filled] / 2
        if share > most:
            most = share
            centre = float(np.average(middles, weights=sums[filled]))
            spread = float(np.average((middles - centre) ** 2, weights=sums[filled]))
            best = share, float(low[filled].min()), float(high[filled].max()), centre, spread
        if share > 0.98:
            break
    return best


@dataclass(frozen=True)
class _Scale:
    """Public numbers that errors and targets are clipped to: |e| <= error, |y - centre| <= width."""

    error: float
    centre: float
    width: float

    def terms(self, predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(|e|, e^2, u, u^2, |u|) of each row, in units of the clips: each entry in [-1, 1], lengths at most sqrt 5."""
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.nan_to_num(np.minimum(np.abs(predicted - y) / self.error, 1.0), nan=1.0)
        u = np.nan_to_num(np.clip((y - self.centre) / self.width, -1.0, 1.0))
        return np.stack([errors, errors**2, u, u**2, np.abs(u)], axis=1)

    def words(self) -> str:
        """What was clipped."""
        low, high = self.centre - self.width, self.centre + self.width
        return f"errors are cut at {self.error:.4g}, and targets at {low:.4g} and {high:.4g}"
