"""`private_score`: the figures that people report, of rows that are private and were not trained on.

Two looks at the rows, Gaussian noise in both, a fifth of the budget (of mu^2, in which costs add up) for the first:

    test ranges    in which of some fixed cells a row's score lies; of a regression, its error and its target
    test figures   labels: in which cell (true class, predicted class) a row lies, and in which (true class, group of
                   scores); numbers: sums of |e|, e^2, u, u^2, |u|, clipped where the first look saw few rows

A row adds 1 to one cell of each of b counts, so that it moves all of them together by sqrt b, or adds a vector of
length at most sqrt 5 to the sums.  Accuracy, recall, precision, AUC, calibration, log loss, R2 and errors all follow
from what was released: they cost nothing more.  Rows too few to tell anything are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import expit

from isthmus import privacy
from isthmus.base import validate
from isthmus.core.group import ALONE, Group
from isthmus.core.parts import FixedRows
from isthmus.core.pipeline import Local, Promise, Release, RunContext, Stage, look
from isthmus.core.wire import Keys
from isthmus.estimators import figures, partial_fit_claims
from isthmus.estimators.base import GroupLike, LedgerLike
from isthmus.estimators.figures import Figure, Model, ShownCurve, _Bins, _Scale
from isthmus.gradients import Counts, Dense, Rows
from isthmus.lifts import discard
from isthmus.privacy.event_json import dpa
from isthmus.privacy.leaks import warn_of_large_delta
from isthmus.privacy.ledger import RunLedger, opened
from isthmus.privacy.plan import default_delta
from isthmus.privacy.statement import Account

RANGES, FIGURES = "test ranges", "test figures"
_FIRST = 0.2
"""The share of mu^2 for the first look."""
_ROOT = 1 + 2.0**-40
"""Room for the rounding of a norm that all rows have."""
_SCORES = _Bins(np.sinh(np.linspace(-1, 1, 65) * np.arcsinh(512)) / 32)
"""Margins from -16 to 16, in cells that are finest at 0."""
_CHEAP = 0.02
"""Noise in R2 that wider clips may cost."""
_LOSSES = _Bins(np.linspace(0, figures._MOST_LOSS, 17))
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
    privacy: privacy.PrivacyStatement | None = None
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
        y = _checked_targets(model, y, ranks)
        n = sum(ranks.all(len(y)))
        if epsilon == math.inf:
            remedy = "gather public rows in one process, or give a finite epsilon: exact figures need all of them"
            validate.check(ranks.size == 1, "epsilon", epsilon, remedy)
            exact, curves = figures.exact_figures(model, X, y, f"{n:,} rows, which count as public")
            return Scores(tuple(exact), tuple(curves))
        if ranks.rank:
            ledger = None
        if delta is None:
            delta = default_delta(n)
        warn_of_large_delta(delta, n)
        looks = Looks.paid_from(ledger, epsilon, delta, adjacency, noise_seed=noise_seed, ranks=ranks, whole=n)
        scores = noisy_figures(model, X, y, looks, bounds=target_bounds)
        on = f"{n:,} rows" + f", with noise for epsilon = {epsilon:g}" * bool(looks.taken)
        named = tuple(replace(figure, on=on) for figure in scores.figures)
        foreign = [] if type(model).__module__.startswith("isthmus.") else [_ONE_BY_ONE]
        stated = looks.statement(assumptions=[_PUBLIC_MODEL, _APART, *foreign])
        return replace(scores, figures=named, privacy=stated, paid=partial_fit_claims.identities(ledger))


def _checked_targets(model: Model, y: ArrayLike, ranks: Group) -> np.ndarray:
    """The targets, refused where they are none of the model's; a rank may have none."""
    y = np.asarray(y)
    some = y.ndim == 1 and sum(ranks.all(len(y))) > 0
    validate.check(some, "y", tuple(y.shape), "give one target for each row, and at least one")
    classes = figures._classes_of(model)
    if classes is not None:
        known = bool(np.isin(y, classes).all())  # whose label it is stays unsaid
        validate.require(known, f"y holds a label that the model does not know: its labels are {classes.tolist()}")
        return y
    y = y.astype(float)
    validate.require(bool(np.isfinite(y).all()), "y holds targets that are NaN or infinite: leave those rows out")
    return y


# ---------------------------------------------------------------- the looks


@dataclass
class Looks:
    """The looks of one measurement: each is a stage, charged to the ledger before it is released.

    multiplier   of the noise of all looks together
    ranks, whole  who has the rows, and how many they have together
    covered      the rows are apart from those of a release that is already charged and at least as costly: the
                 ledger notes the looks, and they add nothing (see `covers`)
    """

    multiplier: float
    promise: Promise
    ledger: Any
    covered: bool = False
    noise_seed: int | None = None
    ranks: Group = ALONE
    whole: int | None = None
    taken: list[Stage] = field(default_factory=list)
    _run: RunLedger | None = None

    def __post_init__(self) -> None:
        self.source: privacy.Source = privacy.SecretSource()
        if self.noise_seed is not None:
            self.source = privacy.SeededSource(self.noise_seed)

    @classmethod
    def paid_from(cls, ledger: LedgerLike, epsilon: float, delta: float, adjacency: str, **others: Any) -> Looks:
        """Looks that cost so much together, charged to a ledger, its path, or to one of their own."""
        validate.positive(epsilon=epsilon)
        validate.one_of([member.value for member in privacy.Adjacency], adjacency=adjacency)
        promise = Promise(epsilon, delta, privacy.Adjacency(adjacency))
        multiplier = privacy.noise_multiplier(epsilon=epsilon, delta=delta, adjacency=promise.adjacency)
        ledger = opened(ledger, promise.adjacency) or privacy.Ledger(
            budget=(epsilon, delta), adjacency=promise.adjacency
        )
        remedy = f"give adjacency={ledger.adjacency.value!r}, for which the ledger counts its charges"
        validate.check(ledger.adjacency is promise.adjacency, "adjacency", adjacency, remedy)
        return cls(multiplier, promise, ledger, **others)

    def statement(self, assumptions: Sequence[str]) -> privacy.PrivacyStatement:
        """What the looks that were taken cost together."""
        adjacency = self.promise.adjacency
        account = Account(self.promise.delta, adjacency, self.whole, self.noise_seed is not None, assumptions)
        for stage in self.taken:
            mechanisms = [release.mechanism for release in stage.releases]
            names, how = [stage.name] * len(mechanisms), stage.sampler.describe()
            account.add(stage.event(adjacency), *mechanisms, names=names, sampler=how, noise=self.source.describe())
        return account.statement()

    @contextmanager
    def announced(self, shares: Mapping[str, float]) -> Iterator[None]:
        """A hold on the ledger for these looks, by their names, with shares of the budget that sum to 1."""
        adjacency = self.promise.adjacency
        costs = {name: self._gaussian(share).event(adjacency) for name, share in shares.items()}
        events = dict.fromkeys(shares, dpa.NoOpDpEvent()) if self.covered else costs
        self.ranks.on_leader(lambda: self.ledger.require(privacy.compose(events.values())))  # all of it or nothing
        if self.ranks.rank:
            yield
            return
        with self.ledger.run(events, seeded=self.noise_seed is not None) as self._run:
            yield

    def counts(self, name: str, bins: np.ndarray, width: int, share: float) -> tuple[np.ndarray, float]:
        """How many rows have each cell, for each of the columns of `bins`; and the noise's standard deviation."""
        places = torch.from_numpy(np.ascontiguousarray(bins))
        rows = Counts(lambda lo, hi: places[lo:hi], len(bins), bins.shape[1], width)
        noisy, noise = self._look(name, rows, math.sqrt(bins.shape[1]) * _ROOT, share)
        return noisy.reshape(bins.shape[1], width), noise

    def sums(self, name: str, terms: np.ndarray, length: float, share: float) -> tuple[np.ndarray, float]:
        """The sum of the rows' terms, each of at most this length; and the noise's standard deviation."""
        return self._look(name, Dense(torch.from_numpy(terms)), length * _ROOT, share)

    def size(self, mine: np.ndarray) -> int:
        """How many rows are measured: a public number."""
        return self.whole or len(mine)

    def noise(self, length: float, share: float) -> float:
        """The standard deviation of the noise in each number of a look."""
        return self._gaussian(share).multiplier * length

    def _gaussian(self, share: float) -> privacy.Gaussian:
        return privacy.Gaussian(self.multiplier / math.sqrt(share))

    def _look(self, name: str, rows: Rows, length: float, share: float) -> tuple[np.ndarray, float]:
        release = Release("sums", clip=privacy.Clip(length), mechanism=self._gaussian(share), lift=discard)
        stage, sheet = Stage(privacy.FullBatch(1.0), [release], name), FixedRows(rows)
        holders = Local(sheet, self.ranks)
        setting = RunContext(holders, sheet.space, Keys(0, self.source), ledger=self._run, whole=self.whole)
        sums = look(stage, setting, self.promise)["sums"].numpy()
        self.taken.append(stage)
        return sums, self.noise(length, share)


def covers(event: dpa.DpEvent, multiplier: float) -> bool:
    """Whether what was released of some rows is at least as costly as Gaussian looks of this multiplier at others.

    A record is in one of two parts, drawn by coins that look at no record.  Seen with the coins fixed, one part is as
    it was and the other is moved by one record: so both releases together are as private as the dearer of them
    (parallel composition), and composed with anything else too where one is Gaussian with at least as much noise as
    the other, for its trade-off is then nowhere worse.
    """
    whole = privacy.joint([event])
    return isinstance(whole, dpa.GaussianDpEvent) and whole.noise_multiplier <= multiplier * (1 + 1e-12)


# ---------------------------------------------------------------- labels


def noisy_figures(
    model: Model, X: object, y: np.ndarray, looks: Looks, *, bounds: tuple[float, float] | None = None
) -> Scores:
    """The figures of private rows, each look charged before it is released."""
    if figures._classes_of(model) is None:
        scores = _numbers(model, X, y, looks, bounds)
    else:
        scores = _labels(model, X, y, looks)
    return replace(scores, releases=len(looks.taken) * (not looks.covered))


def _some(model: Any, X: object, y: np.ndarray) -> object:
    """The rows, or one of zeros where a rank has none: models do not predict for nobody."""
    return X if len(y) else np.zeros((1, model.n_features_in_))


def _labels(model: Model, X: object, y: np.ndarray, looks: Looks) -> Scores:
    classes, n = figures._classes_of(model), looks.size(y)
    assert classes is not None
    k = len(classes)
    X, own = _some(model, X, y), len(y)
    true, called = figures._places(y, classes), figures._places(figures._predictions(model, X), classes)[:own]
    logs, margins = figures._log_probabilities(model, X), figures._margins_of(model, X)
    if k > 2:
        margins = None
        if logs is not None:
            logs = logs[:own]
            margins = _certainty(logs)
    blocks = 1 + (margins is not None) + (k > 2 and logs is not None)
    shares = {FIGURES: 1.0}
    if margins is not None:
        shares = {RANGES: _FIRST, FIGURES: 1 - _FIRST}
    least = looks.noise(math.sqrt(blocks), shares[FIGURES]) * math.sqrt(k - 1) / n
    if least > figures._TELLS:  # nothing could be told: nothing is looked at, nothing is spent
        need = figures._rows_needed(n, least)
        return Scores((Figure("accuracy", None, noise=least, note=figures._too_few(least, need)),))
    with looks.announced(shares):
        bins, widths, groups = [true * k + called], [k * k], None
        if margins is not None:
            groups = _Groups(margins[:own], looks)
            # two classes: which one it is; more: whether the called one was right
            event = true == (1 if k == 2 else called)
            bins.append(event * groups.count + groups.index[_SCORES.of(margins[:own])])
            widths.append(2 * groups.count)
        if k > 2 and logs is not None:
            bins.append(_LOSSES.of(-logs[np.arange(own), true]))
            widths.append(_LOSSES.cells)
        cells, noise = looks.counts(FIGURES, np.stack(bins, axis=1), max(*widths, _LOSSES.cells), shares[FIGURES])
    counts = [_summing(row[:width], n) for row, width in zip(cells, widths, strict=True)]
    return _derived(counts, noise, n, classes, groups, logs is not None)


def _derived(
    counts: list[np.ndarray], noise: float, n: int, classes: np.ndarray, groups: _Groups | None, sure: bool
) -> Scores:
    """Figures and curves from the noisy counts: post-processing."""
    k = len(classes)
    derived = figures._confusion_figures(counts[0].reshape(k, k), list(classes), noise)
    curves: list[ShownCurve] = []
    if groups is not None:
        scores = counts[1].reshape(2, groups.count)
        if k > 2 and k - 1 > groups.count / 2:  # fewer cells tell how many were right
            share = float(np.clip(scores[1].sum() / n, 0, 1))
            derived[0] = replace(derived[0], value=share, noise=noise * math.sqrt(groups.count / 2) / n)
        if k == 2:
            derived.append(figures._auc_figure(scores, noise))
        if sure:
            if k == 2:
                loss = figures._log_loss_figure(scores, groups.margin, noise)
            else:
                value = max(float(counts[2] @ _LOSSES.middles) / n, 0.0)
                spread = noise * figures._centred_norm(_LOSSES.middles) / n
                loss = figures._log_loss(value, spread, counts[0].reshape(k, k).sum(1))
            derived += [loss, figures._calibration_figure(scores, groups.predicted, noise)]
            curves.append(figures._calibration_curve(scores, groups.predicted, noise, classes))
    readable = [figures._readable(figure, n, _least(figure)) if figure.noise else figure for figure in derived]
    return Scores(tuple(readable), tuple(curve for curve in curves if len(curve.series[0][1]) > 2))


def _least(figure: Figure) -> float:
    """The noise up to which a figure tells something."""
    if figure.name == "log loss":
        return figures.RELATIVE * float(figure.value or 0)
    if figure.name.startswith(("recall", "precision")):
        return figures._ROUGHLY
    return figures._TELLS


def _certainty(logs: np.ndarray) -> np.ndarray:
    """The log odds of the class that was called."""
    top = np.minimum(logs.max(1), -1e-9)
    return np.asarray(top - np.log(-np.expm1(top)))


def _summing(counts: np.ndarray, n: int) -> np.ndarray:
    """The counts, moved alike so that they sum to the public number of rows."""
    return counts + (n - counts.sum()) / len(counts)


class _Groups:
    """Groups of neighbouring score cells with about as many rows each: public, for the first look was paid for."""

    def __init__(self, margins: np.ndarray, looks: Looks) -> None:
        """By the noisy numbers of rows in the cells of `_SCORES`."""
        n = looks.size(margins)
        (counts,), noise = looks.counts(RANGES, _SCORES.of(margins)[:, None], _SCORES.cells, _FIRST)
        # as many groups as leave each well above the noise of its cells in the second look
        most = int(np.clip(n / (20 * noise + 1), 2, 2 * figures.GROUPS))
        below = np.clip(np.maximum.accumulate(np.cumsum(_summing(counts, n))), 0, n)
        middle = np.clip(below - np.diff(below, prepend=0.0) / 2, 0, n * (1 - 1e-12))
        self.index = np.unique((middle * most // n).astype(np.int64), return_inverse=True)[1].reshape(-1)
        weight = np.clip(counts, noise / 10, None)
        total = np.bincount(self.index, weight)
        self.count, self.margin = len(total), np.bincount(self.index, weight * _SCORES.middles) / total
        self.predicted = np.bincount(self.index, weight * expit(_SCORES.middles)) / total


# ---------------------------------------------------------------- numbers


def _numbers(model: Model, X: object, y: np.ndarray, looks: Looks, bounds: tuple[float, float] | None) -> Scores:
    low, high = bounds or getattr(model, "target_bounds_", None) or (math.nan, math.nan)
    validate.check(low < high, "target_bounds", bounds, "give a public range (low, high) of y: this model has none")
    n, middle, half = looks.size(y), (low + high) / 2, (high - low) / 2
    noise = looks.noise(math.sqrt(2), _FIRST)
    if _stands(noise, _TARGETS.cells) > n / 4:  # not even a quarter of the rows in one cell would be seen
        need = figures._rows_needed(n, _stands(noise, _TARGETS.cells) / n, 0.1)
        return Scores((Figure("R2", None, note=figures._too_few(0.0, need)),))
    predicted = figures._predictions(model, _some(model, X, y)).astype(float)[: len(y)]
    with looks.announced({RANGES: _FIRST, FIGURES: 1 - _FIRST}):
        with np.errstate(over="ignore", invalid="ignore"):
            away, place = np.abs(predicted - y) / half, (y - middle) / half
        cells = np.stack([_ERRORS.of(away), _TARGETS.of(place)], axis=1)
        counts, _ = looks.counts(RANGES, cells, _TARGETS.cells, _FIRST)
        mean = looks.noise(math.sqrt(5), 1 - _FIRST) / n
        scale = _scale(counts[0][: _ERRORS.cells], counts[1], n, noise, mean).stretched(middle, half)
        terms = scale.terms(predicted, y)
        sums, noise = looks.sums(FIGURES, terms, math.sqrt(terms.shape[1]), 1 - _FIRST)
    return Scores(tuple(figures._error_figures(sums, n, noise, scale)))


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
