"""Figures of a model on rows that it was not trained on, each beside what a model without inputs would reach.

A `Figure` is one number with the standard deviation of the noise in it (0: exact).  What the noise would hide is no
number: its note says how many rows would do.  `exact_figures` are those of public rows; the functions after it derive
the same figures from noisy counts and sums, which is post-processing of what was paid for (see `scoring`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import _num_samples

from isthmus.base import validate

_TELLS = 0.05
"""A share with noise of a larger standard deviation tells nothing."""
_ROUGHLY = 0.1
"""Of R2, recall and precision less is expected."""
RELATIVE = 0.25
"""So does an error or a loss whose noise is a larger part of it."""
_MOST_LOSS = 16.0
"""A probability below exp(-16) of what happened counts as that: one row cannot make the log loss infinite."""
GROUPS = 10
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


@dataclass(frozen=True)
class ShownCurve:
    """A curve of shares, from released or public figures, as a report shows it."""

    title: str
    x_label: str
    y_label: str
    series: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...]
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """As a record of a run holds it."""
        series = [{"name": name, "x": list(x), "y": list(y)} for name, x, y in self.series]
        return {**vars(self), "series": series, "shares": True}


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


# ---------------------------------------------------------------- what a number may be shown for


def _readable(figure: Figure, rows: int, least: float = _TELLS) -> Figure:
    """The figure, or, where its noise is larger than what it could tell, how many rows would do."""
    if figure.value is not None and math.isfinite(figure.value) and figure.noise <= least:
        return figure
    if not math.isfinite(figure.noise):
        figure = replace(figure, noise=0.0)
        least = 0.0
    need = _rows_needed(rows, figure.noise, least) if least > 0 else "many more"
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


def exact_figures(model: Model, X: object, y: ArrayLike, on: str = "") -> tuple[list[Figure], list[ShownCurve]]:
    """The figures and curves of rows that are public, or whose figures may be published as they are."""
    y = np.asarray(y)
    classes = _classes_of(model)
    if classes is None:
        return _exact_errors(_predictions(model, X).astype(float), y.astype(float), on), []
    true, predicted = _places(y, classes), _places(_predictions(model, X), classes)
    confusion = np.zeros((len(classes), len(classes)))
    np.add.at(confusion, (true, predicted), 1)
    figures = _confusion_figures(confusion, classes, 0.0)
    logs, margins = _log_probabilities(model, X), _margins_of(model, X)
    if len(classes) == 2 and margins is not None and 0 < true.sum() < len(true):
        area = float(roc_auc_score(true, margins))
        figures.append(Figure("AUC", area, baseline=0.5, than="guessing"))
    curves: list[ShownCurve] = []
    if logs is not None:
        loss = float(np.minimum(-logs[np.arange(len(true)), true], _MOST_LOSS).mean())
        figures.append(_log_loss(loss, 0.0, confusion.sum(1)))
        sure, right = (logs[:, 1], true == 1) if len(classes) == 2 else (logs.max(1), true == predicted)
        groups = np.minimum(np.argsort(np.argsort(sure)) * GROUPS // max(len(sure), 1), GROUPS - 1)
        counts = np.stack([np.bincount(groups[right == is_right], minlength=GROUPS) for is_right in (False, True)])
        mean = np.bincount(groups, np.exp(sure), GROUPS) / np.maximum(counts.sum(0), 1)
        figures.append(_calibration_figure(counts.astype(float), mean, 0.0))
        curves.append(_calibration_curve(counts.astype(float), mean, 0.0, classes))
    return [replace(figure, on=on) for figure in figures], curves


def _exact_errors(predicted: np.ndarray, y: np.ndarray, on: str) -> list[Figure]:
    """R2, root mean squared and mean absolute error of predictions, beside those of the mean of these rows."""
    errors, spread, r2 = float(np.mean((predicted - y) ** 2)), float(np.var(y)), None
    away = float(np.mean(np.abs(y - y.mean())))
    if spread > 0:
        r2 = 1 - errors / spread
    return [
        Figure("R2", r2, on, 0.0, 0.0, MEAN),
        Figure("root mean squared error", math.sqrt(errors), on, 0.0, math.sqrt(spread), MEAN),
        Figure("mean absolute error", float(np.mean(np.abs(predicted - y))), on, 0.0, away, MEAN),
    ]


MEAN = "always the mean"


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


def _margins_of(model: Model, X: object) -> np.ndarray | None:
    """One score a row that grows with the second of two classes, 0 between them; None where a model has none."""
    if hasattr(model, "decision_function"):
        margins = np.asarray(model.decision_function(X), dtype=float)
        if margins.ndim == 1:
            return margins
    logs = _log_probabilities(model, X)
    if logs is None or logs.shape[1] != 2:
        return None
    return np.asarray(logs[:, 1] - logs[:, 0])


def _log_probabilities(model: Model, X: object) -> np.ndarray | None:
    """Logarithms of the probabilities of the classes, at least -_MOST_LOSS; None where a model has none."""
    if not hasattr(model, "predict_proba"):
        return None
    logs = np.log(np.maximum(np.asarray(model.predict_proba(X), dtype=float), 1e-300))
    return np.maximum(np.nan_to_num(logs, nan=-_MOST_LOSS), -_MOST_LOSS)


# ---------------------------------------------------------------- from counts: exact, or noisy


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


def _log_loss_figure(counts: np.ndarray, margin: np.ndarray, noise: float) -> Figure:
    """-log of the probability of what happened, of counts (class, group of rows with about this margin)."""
    losses = np.minimum(np.stack([np.logaddexp(0, margin), np.logaddexp(0, -margin)]), _MOST_LOSS)
    n = max(float(counts.sum()), 1.0)
    value = max(float((counts * losses).sum()) / n, 0.0)
    return _log_loss(value, noise * _centred_norm(losses) / n, counts.sum(1))


def _log_loss(value: float, noise: float, actual: np.ndarray) -> Figure:
    """Beside the loss of the class shares, which is their entropy."""
    shares = np.clip(actual, 0, None) / max(float(np.clip(actual, 0, None).sum()), 1e-300)
    return Figure("log loss", value, "", noise, float(-xlogy(shares, shares).sum()), "always the shares of the classes")


def _calibration_figure(counts: np.ndarray, predicted: np.ndarray, noise: float) -> Figure:
    """The mean distance between what was predicted and what happened, over groups: counts are (no, yes) x groups."""
    n = max(float(counts.sum()), 1.0)
    gap = counts[1] - predicted * counts.sum(0)
    deviation = noise * np.hypot(1 - predicted, predicted)
    value = float(np.abs(gap).sum()) / n
    # noise makes distances longer, never shorter on average
    added = math.sqrt(2 / math.pi) * float(np.sum(deviation)) / n
    note = f"up to {min(added / max(value, added, 1e-300), 1.0):.0%} of it may be noise" * bool(noise)
    return Figure("calibration error", min(value, 1.0), "", float(np.linalg.norm(deviation)) / n, note=note)


def _calibration_curve(
    counts: np.ndarray, predicted: np.ndarray, noise: float, classes: Sequence[object] | np.ndarray
) -> ShownCurve:
    """What happened in each group beside what was predicted; groups that the noise hides are left out."""
    event = str(classes[1]) if len(classes) == 2 else "the class that was predicted"
    whole = counts.sum(0)
    filled = whole > noise / _TELLS
    x = predicted[filled]
    y = np.clip(counts[1][filled] / whole[filled], 0, 1)
    ends = tuple(np.sort(x)[[0, -1]].tolist()) if len(x) else ()
    series = (("happened", tuple(x.tolist()), tuple(y.tolist())), ("as predicted", ends, ends))
    return ShownCurve("Calibration", f"predicted probability of {event}", "share that it happened to", series)


def _error_figures(sums: np.ndarray, n: int, noise: float, scale: _Scale) -> list[Figure]:
    """R2, root mean squared and mean absolute error from the noisy sums of `_Scale.terms`."""
    part, square, place, place2, away = (float(total) / n for total in sums)
    sd = noise / n
    errors, spread = max(square, 0.0) * scale.error**2, (place2 - place**2) * scale.width**2
    noisy = sd * math.hypot(1, 2 * place) * scale.width**2
    note = scale.words()
    figures = []
    if spread > 3 * noisy and square > 0:  # a variance within its own noise tells nothing, and it divides
        ratio = errors / spread
        deviation = math.hypot(sd * scale.error**2 / spread, ratio * noisy / spread)
        figures.append(_readable(Figure("R2", 1 - ratio, "", deviation, 0.0, MEAN, note), n, _ROUGHLY))
    else:
        figures.append(_readable(Figure("R2", None, "", sd * max(1.0, scale.error**2 / scale.width**2)), n, _ROUGHLY))
    root, base, half = math.sqrt(errors), math.sqrt(max(spread, 0.0)), math.inf
    if root > 0:
        half = sd * scale.error**2 / (2 * root)
    figures.append(_readable(Figure("root mean squared error", root, "", half, base, MEAN, note), n, RELATIVE * root))
    size = max(part, 0.0) * scale.error
    absolute = Figure("mean absolute error", size, "", sd * scale.error, max(away, 0.0) * scale.width, "", note)
    figures.append(_readable(replace(absolute, than=f"always {scale.centre:.4g}"), n, RELATIVE * size))
    return figures


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

    def stretched(self, middle: float, half: float) -> _Scale:
        """The same in the units of y, whose range is middle +- half."""
        return _Scale(self.error * half, middle + self.centre * half, self.width * half)

    def words(self) -> str:
        """What was clipped."""
        low, high = self.centre - self.width, self.centre + self.width
        return f"errors are cut at {self.error:.4g}, and targets at {low:.4g} and {high:.4g}"


def _digits(value: float) -> str:
    """Four digits after the point, or six in all for numbers beyond 10."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.6g}"
