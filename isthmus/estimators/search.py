"""`PrivateSearch`: a choice among a grid of parameters that costs little of the budget.

    every record, independently of all others, is in one of K + 1 parts drawn at random
    part k <= K        trains candidate k, a mu_1-Gaussian-DP fit
    the last part      chooses among the K models by the exponential mechanism
    all records        fit the chosen parameters again, with the rest of the budget

Guarantee.  The parts are disjoint and a record is in one of them, so the trials and the choice together are as private
as the dearest of them, whatever the parts are (parallel composition; the parts do not depend on the records, so this
holds for adding, removing and replacing a record alike).  A trial whose releases are all Gaussian is mu-GDP with
mu^2 = sum 1 / z^2.  The choice takes candidate k with probability proportional to exp(score_k / s).  A record moves
every score by at most 1, and all of them the same way when it is added or removed: the privacy loss then has range
e = 1 / s (replaced: 2 / s), and a mechanism of bounded range e (Durfee and Rogers 2019; Dong, Durfee and Rogers 2020)
is mu-GDP with mu = 2 Phi^-1(1 / (1 + exp(-e / 2))).  Both get the same mu_1: the selection counts as one Gaussian
release of multiplier 1 / mu_1.  The last fit is mu_2-GDP whichever candidate was chosen, so that all is
sqrt(mu_1^2 + mu_2^2)-GDP (adaptive composition; Dong, Roth and Su 2022), which is (epsilon, delta).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import log_ndtr
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import Tags, get_tags, metaestimators
from sklearn.utils.validation import check_is_fitted

from isthmus import privacy
from isthmus.base import validate
from isthmus.core.pipeline import Promise
from isthmus.estimators.linear import GroupLike, LedgerLike, PrivateClassifier, _PrivateEstimator, _PrivateLinear
from isthmus.estimators.looks import Looks
from isthmus.estimators.posing import _checked
from isthmus.gradients import Dense
from isthmus.objectives.linear import CLASSES_READ
from isthmus.privacy.event_json import dpa
from isthmus.privacy.leaks import leak
from isthmus.privacy.ledger import opened
from isthmus.privacy.plan import mu_of, split
from isthmus.privacy.statement import Account

_FIXED = set("epsilon delta adjacency n classes target_bounds max_weight ledger checkpoint noise_seed".split())
"""Parameters that the candidates share: the search sets them, or scores would not compare."""
_SMALLEST = 30
"""Records that a part must be expected to have."""
_ROUNDING = 1 + 1e-9
"""Room for the rounding of a calibrated multiplier."""


def _has(name: str) -> Callable[[PrivateSearch], bool]:
    return lambda search: hasattr(vars(search).get("best_estimator_", search.estimator), name)


@dataclass(eq=False, repr=False)
class PrivateSearch(MetaEstimatorMixin, _PrivateEstimator):
    """Private choice of an estimator's parameters over a grid, then a private fit with them.

    Unlike a cross-validation, whose fits and scores each spend or leak, the whole search keeps one (epsilon, delta).
    Scores and losing models are never shown.  The candidates are trained on parts of the data: choose among a few.

    estimator       a `PrivateClassifier` or `PrivateRegressor`; its epsilon and delta are replaced.  A regressor needs
                    public `target_bounds`
    param_grid      as scikit-learn's: a dict of lists, or a list of such dicts
    epsilon, delta  of everything together; delta defaults to min(1e-5, n^-1.1)
    share           of the budget (of mu^2, in which costs add up) for trials and choice
    validation      the share of the records that chooses
    ledger          a `privacy.Ledger` or its path, charged before anything is released
    noise_seed      for tests only: the statement then says "not private"

    Fitted: best_estimator_, best_params_, best_index_, candidates_ (all parameters tried), privacy_ (of the whole
    search), parts_ (public facts: how many records each part is expected to have, and the epsilon of one trial).

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(4000, 5, random_state=0)
    >>> model = PrivateClassifier(algorithm="dp_gd", classes=[0, 1], bounds=(-6, 6))
    >>> search = PrivateSearch(model, {"max_iter": [1, 20]}, epsilon=1.0).fit(X, y)
    >>> search.score(X, y) > 0.6, round(search.privacy_.epsilon, 3)
    (True, 1.0)
    """

    estimator: _PrivateLinear
    param_grid: Mapping[str, Sequence[object]] | Sequence[Mapping[str, Sequence[object]]]
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float | None = None
    share: float = 0.2
    validation: float = 0.2
    ledger: LedgerLike = None
    noise_seed: int | None = None

    # ------------------------------------------------------------ fit

    def fit(
        self, X: object, y: object, sample_weight: ArrayLike | None = None, *, group: GroupLike = None
    ) -> PrivateSearch:
        """Choose and fit, spending `epsilon` once."""
        remedy = "choose on one rank's rows, or on public ones, then fit on all ranks: a search runs in one process"
        validate.check(not group, "group", group, remedy)
        candidates, kinds, leaks = self._candidates(), [np.float64, np.float32], tuple[str, ...]()
        rows, labels = _checked(self, X, y, accept_sparse="csr", dtype=kinds, y_numeric=not self._classifies)
        if self._classifies:
            self._classes = self.estimator.classes
            if self._classes is None:
                self._classes, leaks = np.unique(labels), (leak(*CLASSES_READ),)
        n = self.estimator.n or rows.shape[0]
        promise = Promise(self.epsilon, self._delta(n), self._adjacency)
        split = _Split(n, len(candidates), self.share, self.validation, promise)
        data = rows, labels, self.estimator._checked_weights(sample_weight, rows.shape[0])
        for params in candidates:
            self._check_gaussian(self._trial(params, split, 0), data, split.multiplier)
            self._check_gaussian(self._last(params, split), data, split.last)
        ledger = opened(self.ledger, self._adjacency) or privacy.Ledger(adjacency=self._adjacency)
        ledger.require(split.total)
        looks = Looks(split.multiplier, promise, ledger, noise_seed=self.noise_seed)
        part = split.parts(rows.shape[0], looks.source)
        trials = []
        for k, params in enumerate(candidates):
            here, there, weight = _some(data, part == k)
            trials.append(self._trial(params, split, k + 1).fit(here, there, sample_weight=weight))
        scores = self._scores(trials, *_some(data, part == len(candidates)))
        self.best_index_ = _choose(scores, split, looks)
        self.candidates_, self.best_params_ = candidates, candidates[self.best_index_]
        last = self._last(self.best_params_, split).set_params(ledger=ledger).fit(X, y, sample_weight=sample_weight)
        self.best_estimator_ = last.set_params(ledger=None)
        self.parts_ = {"records": split.records, "validation": split.checks, "epsilon": split.trial}
        self.privacy_ = self._statement(split, trials, leaks)
        self.best_estimator_._state(self.privacy_)  # its parameters were chosen on the same records
        return self

    def _candidates(self) -> list[dict[str, object]]:
        """All combinations, checked; nothing of the data is looked at yet."""
        validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.open_unit(delta=self.delta)
        validate.open_unit(share=self.share, validation=self.validation)
        fitting = isinstance(self.estimator, _PrivateLinear)
        remedy = "give a PrivateClassifier or PrivateRegressor; put what prepares the data before the search"
        validate.check(fitting, "estimator", self.estimator, remedy)
        own = vars(self.estimator)
        for name in ("ledger", "checkpoint", "noise_seed"):
            remedy = "leave it out: the search makes several fits"
            validate.check(own[name] is None, f"estimator.{name}", own[name], remedy)
        candidates = list(ParameterGrid(self.param_grid))
        remedy = "give at least two candidates: a single one needs no search"
        validate.check(len(candidates) > 1, "param_grid", self.param_grid, remedy)
        for params in candidates:
            fixed = sorted(set(params) & _FIXED)
            remedy = "set these on the search or on the estimator: all candidates share them"
            validate.check(not fixed, "param_grid", fixed, remedy)
            clone(self.estimator).set_params(**params)._check_parameters()
            published = params.get("as_published", self.estimator.as_published)
            validate.check(not published, "as_published", True, "leave it out: a search takes sound mechanisms only")
        if not self._classifies:
            bounds = self.estimator.target_bounds
            declared = bounds is not None and not isinstance(bounds, str)
            remedy = "give (low, high) that is public: errors are clipped to it"
            validate.check(declared, "target_bounds", bounds, remedy)
        return candidates

    def _estimator(self, params: Mapping[str, object], epsilon: float, delta: float, seed: int) -> _PrivateLinear:
        settings = {**params, "epsilon": epsilon, "delta": delta}
        if self._classifies:
            settings["classes"] = self._classes
        if self.noise_seed is not None:
            settings["noise_seed"] = self.noise_seed + seed
        return clone(self.estimator).set_params(**settings)

    def _trial(self, params: Mapping[str, object], split: _Split, seed: int) -> _PrivateLinear:
        """A candidate as it is tried: on its part, whose size is known by its expectation only."""
        trial = self._estimator(params, split.trial, split.promise.delta, seed)
        return trial.set_params(n=split.records, max_weight=1.0)

    def _last(self, params: Mapping[str, object], split: _Split) -> _PrivateLinear:
        """A candidate as it is fitted in the end."""
        return self._estimator(params, split.rest, split.promise.delta, 0)

    def _check_gaussian(self, estimator: _PrivateLinear, data: tuple, multiplier: float) -> None:
        """Refuse a fit that would not be as private as it is counted; it is planned, and stopped before it begins."""
        X, y, weight = data
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                estimator.set_params(ledger=_Dry(adjacency=self._adjacency)).fit(X, y, sample_weight=weight)
        except _Planned as planned:
            cost = privacy.joint(planned.args)
            ok = isinstance(cost, dpa.GaussianDpEvent) and cost.noise_multiplier * _ROUNDING >= multiplier
            remedy = 'choose algorithm="dp_gd", say, and leave out batch_size: each round must look at all records'
            validate.check(ok, "param_grid, algorithm", estimator.algorithm, remedy)

    def _scores(self, trials: list[_PrivateLinear], X: object, y: np.ndarray, weight: np.ndarray | None) -> Dense:
        """For each record of the last part and each trial a number in [0, 1]: a right answer, or 1 less the error."""
        if not len(y):
            return Dense(torch.zeros(0, len(trials), dtype=torch.float64))
        predictions = np.stack([trial.predict(X) for trial in trials])
        if self._classifies:
            good = (predictions == y).astype(float)
        else:
            low, high = self.estimator.target_bounds
            error = (np.clip(predictions, low, high) - np.clip(y, low, high)) / ((high - low) / 2)
            good = np.nan_to_num(1 - np.minimum(error**2, 1), nan=0.0)  # what is no number is wrong
        if weight is not None:
            good = good * weight
        return Dense(torch.from_numpy(good.T.copy()))

    def _statement(
        self, split: _Split, trials: list[_PrivateLinear], leaks: tuple[str, ...]
    ) -> privacy.PrivacyStatement:
        """The budget is quoted: it holds whichever candidate was chosen."""
        last = self.best_estimator_.privacy_
        every = [trial.privacy_ for trial in trials] + [last]
        how = (
            f"the selection: each record in one of {len(self.candidates_) + 1} parts at random, of which one fit or "
            f"the choice saw it, counted together as one Gaussian release; the last fit: {last.sampler}"
        )
        apart = "a record is in one part of the selection, drawn independently of what it holds"
        account = Account(split.promise.delta, self._adjacency, last.n, self.noise_seed is not None)
        account.assumptions = (*(text for promise in every for text in promise.assumptions), apart)
        account.leaks = (*leaks, *(item for promise in every for item in promise.leaks))
        account.add(privacy.Gaussian(split.multiplier).event(), sampler=how, noise=last.noise)
        account.add(last.event)
        statement = replace(account.statement(), nominal=self.epsilon)
        if not statement.private:
            return replace(statement, epsilon=math.inf)
        return replace(statement, epsilon=self.epsilon)

    @property
    def _classifies(self) -> bool:
        return isinstance(self.estimator, PrivateClassifier)

    @property
    def _adjacency(self) -> privacy.Adjacency:
        return self.estimator._adjacency

    # ------------------------------------------------------------ the fitted estimator

    def predict(self, X: object) -> np.ndarray:
        """By the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @metaestimators.available_if(_has("predict_proba"))
    def predict_proba(self, X: object) -> np.ndarray:
        """By the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)

    @metaestimators.available_if(_has("decision_function"))
    def decision_function(self, X: object) -> np.ndarray:
        """By the best estimator."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X)

    def score(self, X: object, y: object, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy or R^2 of the best estimator; of rows that are not private."""
        check_is_fitted(self)
        return self.best_estimator_.score(X, y, sample_weight=sample_weight)

    @property
    def classes_(self) -> np.ndarray:
        """The labels."""
        return self.best_estimator_.classes_

    def __sklearn_is_fitted__(self) -> bool:
        return "best_estimator_" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = get_tags(self.estimator)
        tags.non_deterministic = True
        return tags


class _Split:
    """How the budget and n records are divided: public numbers only.

    multiplier, last   of the Gaussian releases that the selection and the last fit count as, together `total`
    trial, rest        epsilon of one trial and of the last fit, at `delta`
    records, checks    how many records a trial and the choice are expected to see
    """

    def __init__(self, n: int, candidates: int, share: float, validation: float, promise: Promise) -> None:
        self.candidates, self.validation, self.promise = candidates, validation, promise
        delta, adjacency = promise.delta, promise.adjacency
        self.records, self.checks = round(n * (1 - validation) / candidates), round(n * validation)
        remedy = f"try fewer: they leave {self.records} records for each and {self.checks} to choose by"
        validate.check(min(self.records, self.checks) >= _SMALLEST, "param_grid", f"{candidates} candidates", remedy)
        whole = 1 / mu_of(promise.epsilon, delta, adjacency)
        self.total = privacy.Gaussian(whole).event()
        self.multiplier, self.last = split(whole, share, 1 - share)
        events = (privacy.Gaussian(multiplier).event() for multiplier in (self.multiplier, self.last))
        self.trial, self.rest = (privacy.epsilon_of(event, delta, adjacency) * (1 - 1e-7) for event in events)
        self.choice = _BestOf(self.multiplier, adjacency.value)

    def parts(self, n: int, noise: privacy.Source) -> np.ndarray:
        """The part of each record: 0 .. K - 1 train, K chooses."""
        u = noise.uniform(n).numpy()
        k = np.floor((u - self.validation) / (1 - self.validation) * self.candidates).astype(int)
        return np.where(u < self.validation, self.candidates, np.clip(k, 0, self.candidates - 1))


def _range_of(mu: float) -> float:
    """The largest bounded range that is mu-GDP: e with mu = 2 Phi^-1(1 / (1 + exp(-e / 2))).

    >>> round(_range_of(0.2), 4), round(_range_of(2.0), 4)
    (0.3193, 3.3365)
    """
    return 2 * float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))


@dataclass(frozen=True)
class _BestOf(privacy.NoisyMax):
    """The exponential mechanism on scores that a record moves all one way: counted as a Gaussian release.

    `multiplier` is that of the release, and sets the noise under `adjacency`; the proof is at the top of this module.
    """

    epsilon: float = field(init=False)
    signed: bool = field(init=False, default=False)
    multiplier: float
    adjacency: str = privacy.Adjacency.ADD_REMOVE.value
    noise_parameter: ClassVar[str] = "multiplier"
    selects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.multiplier)
        object.__setattr__(self, "epsilon", 2 / self.temperature)

    @property
    def temperature(self) -> float:
        """s: a candidate wins with probability proportional to exp(score / (s C))."""
        factor = privacy.Adjacency(self.adjacency).factor
        return factor / _range_of(factor / self.multiplier)

    def event(self, adjacency: privacy.Adjacency = privacy.Adjacency.ADD_REMOVE) -> dpa.DpEvent:
        """One Gaussian release, under the adjacency that its noise was set for."""
        remedy = f"give {self.adjacency}, for which the noise of this choice is set"
        validate.check(adjacency is privacy.Adjacency(self.adjacency), "adjacency", adjacency, remedy)
        return privacy.Gaussian(self.multiplier).event(adjacency)


def _choose(scores: Dense, split: _Split, looks: Looks) -> int:
    """The exponential mechanism: k with probability proportional to exp(score_k / temperature), charged first."""
    with looks.announced({"selection": 1.0}):
        return int(looks.take("selection", scores, privacy.Clip(1.0, ord=math.inf), split.choice).argmax())


def _some(data: tuple, chosen: np.ndarray) -> tuple:
    """Some of the records, in each of the arrays that are given."""
    return tuple(rows if rows is None else rows[chosen] for rows in data)


class _Planned(Exception):
    """What a fit would release: its event."""


class _Dry(privacy.Ledger):
    """A ledger that stops a fit where it is planned and nothing has been looked at."""

    def require(self, event: dpa.DpEvent, what: str = "run") -> None:
        """Stop."""
        raise _Planned(event)
