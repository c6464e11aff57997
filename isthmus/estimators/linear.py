"""`PrivateClassifier` and `PrivateRegressor`: private linear models with the habits of scikit-learn."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state, metaestimators, multiclass, validation
from torch import Tensor
from torch.distributed import ProcessGroup

from isthmus.algorithms import KNOWN, Algorithm, public_start, purchases, suggest
from isthmus.base import notebook, parallel, secret, storage, validate
from isthmus.base.matrix import CHUNK_BYTES, Matrix, matmul
from isthmus.core.group import ALONE, Group
from isthmus.core.minimize import GONE, Binding, Recipe, Result, minimize, unspent
from isthmus.core.pipeline import Local, Pipeline
from isthmus.core.wire import State
from isthmus.estimators import exported, intervals, partial_fit_claims, posing, stateless_steps, stored
from isthmus.objectives import Huber
from isthmus.objectives.linear import CLASSES_READ, Loss, known_losses, loss_for, loss_of
from isthmus.objectives.targets import CountTargets
from isthmus.planner import Choice, Plan, plan
from isthmus.privacy import Adjacency, Ledger, PrivacyStatement, compose, epsilon_of, event_json, noise
from isthmus.privacy.leaks import PrivacyBudgetWarning, leak, warn
from isthmus.privacy.ledger import opened as opened_ledger
from isthmus.privacy.plan import default_delta
from isthmus.problems.features import SmoothMap
from isthmus.problems.scaling import Map, RowMap, RowMaps, Scaled
from isthmus.sets import ConvexSet

LedgerLike = Ledger | str | os.PathLike[str] | None
"""What `ledger=` takes."""
SCALES = ("auto", "none", "columns", "moments", "shapes", "public")


class _PrivateEstimator(BaseEstimator):
    """What fits and searches share: a clone keeps the ledger, and a notebook shows the guarantee below the diagram."""

    epsilon: float
    delta: float | None
    ledger: LedgerLike
    privacy_: PrivacyStatement | None

    def __sklearn_clone__(self) -> Self:
        """A clone shares the ledger: copied, the same budget would be spent twice."""
        ledger, self.ledger = self.ledger, None
        try:
            copied: Self = super().__sklearn_clone__()
        finally:
            self.ledger = ledger
        return copied.set_params(ledger=ledger)

    def _delta(self, n: int) -> float:
        return self.delta or default_delta(n)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """That of scikit-learn, which leaves defaults out, and epsilon always."""
        words = str(super().__repr__(N_CHAR_MAX=N_CHAR_MAX))
        if self.epsilon != type(self).epsilon or not get_config()["print_changed_only"]:
            return words
        name, _, rest = words.partition("(")
        return f"{name}(epsilon={self.epsilon}{', ' * (rest != ')')}{rest}"

    def _repr_html_inner(self) -> str:
        """What a notebook shows where it asks for HTML."""
        diagram: str = super()._repr_html_inner()
        return diagram + self._guarantee_html()

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        """What a notebook shows where it asks for everything; scikit-learn decides whether that has HTML."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += self._guarantee_html()
        return bundle

    def _guarantee_html(self) -> str:
        """The statement of a private fit; a warning for one that is not; the budget before a fit."""
        if "privacy_" not in vars(self):
            return notebook.card(f"Not fitted yet: a fit will spend epsilon = {self.epsilon}")
        if self.privacy_ is None:
            text = "It was fitted without noise, and may reveal the records that it was trained on."
            return notebook.card("This model is NOT private", notebook.paragraph(text), tone="bad")
        shown = str(self.privacy_._repr_html_())
        if not isinstance(self.ledger, Ledger) or self.ledger.budget is None:
            return shown
        (epsilon, delta), spent = self.ledger.budget, math.ceil(self.ledger.spent() * 1e4) / 1e4
        together = f"epsilon = {spent:g} of {epsilon:g} at delta = {delta:g}"
        words = f"Its ledger holds {together} now, with everything else that was charged to it."
        return shown + notebook.card("What was spent together", notebook.paragraph(words))


_SMALL_STATE = 20_000
"""A point of fewer numbers is checkpointed every round, a longer one a hundred times."""


@dataclass
class _RoundNotes:
    """Notes what each round moved (it was released, so it is public), saves checkpoints, and ends a partial fit."""

    notes: list[dict[str, float]]
    choice: Choice
    until: int
    rounds: int
    path: str | Path | None
    assumed: dict[str, list[str]]
    last: tuple[int, Tensor] | None = None

    def __call__(self, record: Mapping[str, float], state: State) -> bool:
        note: dict[str, float] = {"t": state.t}
        if self.last is not None and self.last[0] == state.t - 1:
            note["moved"] = float(torch.linalg.vector_norm(state.w - self.last[1]))
        straight = not self.choice.arguments.get("precondition")  # else noise goes through a matrix
        if self.choice.noise_norm is not None and "eta" in record and straight:
            note["noise"] = record["eta"] * self.choice.noise_norm
        if "loss" in record:
            note["loss"] = record["loss"]
        self.last = state.t, state.w
        self.notes.append(note)
        every = max(1, self.rounds // 100 * (state.w.numel() >= _SMALL_STATE))
        if self.path is not None and (state.t % every == 0 or state.t == self.rounds):
            state.replace(parts={**state.parts, **self.assumed}).save(self.path)
        return self.until <= state.t < self.rounds


GroupLike = Group | ProcessGroup | bool | None
"""What `fit(group=)` takes."""
Bounds = tuple[ArrayLike, ArrayLike]
Curve = tuple[np.ndarray, np.ndarray]
"""Numbers of a column, and what they add: one number each, or one for every class."""
_STARTED = "the labels of the public rows were used: the fit starts at a model of these rows alone, which costs nothing"
_ALONE = "dp_gd (plain)"
"""What takes the one step, of no length, of a fit that learns the mean of the targets alone."""
_COEFFICIENTS = ("coef_", "intercept_")
_WEAK = 10.0
"""A fit warns of a larger epsilon."""
_THREADED = 4_000_000
"""Matrices of fewer entries are multiplied on one thread."""


@dataclass(eq=False, repr=False)
class _PrivateLinear(_PrivateEstimator):
    """The private fit of a linear model; `PrivateClassifier` says what the parameters are."""

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    loss: str | Loss = ""
    algorithm: str | Algorithm | Callable[..., object] = "auto"
    constraint: ConvexSet | None = None
    l1: float = 0.0
    l2: float = 0.0
    clip: float | None = None
    step: float | str | None = None
    max_iter: int | None = None
    batch_size: int | None = None
    scale: str = "auto"
    features: str = "auto"
    bounds: Bounds | str | None = None
    data_norm: float | str | None = None
    fit_intercept: bool = True
    public: object = None
    n: int | None = None
    max_weight: float = 1.0
    adjacency: str | Adjacency = "add-remove"
    partial_calls: int = 10
    ledger: LedgerLike = None
    checkpoint: str | Path | None = None
    options: dict | None = None
    facts: dict | None = None
    as_published: bool = False
    random_state: int | np.random.RandomState | None = None
    noise_seed: int | None = None
    verbose: int = 0

    _LABELS: ClassVar[bool]
    """Whether targets are labels."""
    # what `partial_fit` remembers of earlier calls (see `stored`); a fit begins anew
    _calls: int = field(init=False, default=0)
    _partial_state: State | None = field(init=False, default=None)
    _first: int = field(init=False, default=0)
    _declared: ArrayLike | None = field(init=False, default=None)
    _charged: str | bool = field(init=False, default="")
    _run: str | None = field(init=False, default=None)
    _planned_rounds: int = field(init=False, default=0)
    _group: Group = field(init=False, default=ALONE)  # this process, but for a fit by a group
    _whole: int | None = field(init=False, default=None)  # how many rows all ranks have

    # ------------------------------------------------------------ fit

    def fit(self, X: object, y: object, sample_weight: ArrayLike | None = None, *, group: GroupLike = None) -> Self:
        """Fit to (X, y), spending `epsilon` once.

        sample_weight  numbers >= 0 that multiply the losses; those above `max_weight` count as that.  A weighted record
                       is clipped like any other, so weights cost nothing: they are part of the record
        group          True, or a torch.distributed process group: all its ranks fit one model to the rows of all of
                       them.  Every rank gives its own rows and the same parameters; rank 0 has the ledger, the
                       checkpoint and the noise; all end with the same model, to the bit
        """
        with self._together(group):
            self._check_parameters()
            if self._private:
                stateless_steps._warn_of_repeated_fits(self.epsilon)
            for name in (*stored._PARTIAL, "_partial_state"):  # a fit begins anew
                self.__dict__.pop(name, None)
            rows, targets = self._read(X, y, reset=True)
            saved, state = self._group.on_leader(self._checkpointed), None
            if saved is not None:
                state = State(**saved)
            self._train(rows, targets, sample_weight, state, 1)
        return self

    def partial_fit(
        self, X: object, y: object, sample_weight: ArrayLike | None = None, *, group: GroupLike = None
    ) -> Self:
        """One of `partial_calls` calls that share the budget, whether or not their records overlap.

        The first call buys what the plan buys; later ones go on from the last point.  `group` is that of `fit`.
        """
        with self._together(group):
            self._check_parameters()
            rows, targets = self._read(X, y, reset=self._calls == 0)
            self._first = self._records(rows.shape[0])
            past, calls = self._calls, self.partial_calls
            run, charged = self._run_of_calls()
            remedy = f"fit again, or plan more calls: partial_calls={calls} share the budget, and all of them were made"
            validate.require(past < calls, f"Call {past + 1} of partial_fit is one too many: {remedy}")
            claimed = None
            if self._private and not charged:  # no ledger counts what every copy spends
                claimed = run or ""
            self._train(rows, targets, sample_weight, self._partial_state, calls, claimed)
        parts = {**self.result_.state.parts, **self._assumed}
        self._calls, self._partial_state = past + 1, self.result_.state.replace(parts=parts)
        self._run, self._charged = run, charged
        return self

    def _run_of_calls(self) -> tuple[str | None, str | bool]:
        """The name of this run of partial fits, and the ledger that counts all of it: that of the first call."""
        ledger, own = self._opened_ledger(), ""
        if ledger is not None:  # somebody's own has no name but that of its class
            own = (*partial_fit_claims.identities(ledger), type(ledger).__name__)[0]
        if self._calls == 0:
            return partial_fit_claims._begin(), own
        remedy = "give the ledger that earlier calls were charged to again, set_params(ledger=...): this is another one"
        same = self._charged in ("", False, own) or self._charged is True and own != ""  # True: stored without its name
        validate.check(same, "ledger", self.ledger, remedy)
        return self._run, self._charged

    def _train(
        self,
        X: Matrix,
        y: np.ndarray,
        weight: ArrayLike | None,
        state: State | None,
        calls: int,
        run: str | None = None,
    ) -> None:
        """Plan and run the next of so many calls, which is taken of a `run` of them just before anything is spent."""
        began, past = time.perf_counter(), self._calls
        if past == 0 and _WEAK < self.epsilon < math.inf:
            factor = "one record may change the probability of a result by a factor of exp(epsilon)"
            text = f"epsilon={self.epsilon:g} is above {_WEAK:g} and protects hardly anyone: {factor}; 1 is usual"
            warn(text, PrivacyBudgetWarning)
        problem = posing._posed(self, X, y, weight)
        if state is not None:  # what rounds already made rest on, and what was read from the data for them
            assumed = dict.fromkeys((*state.parts.get("assumptions", ()), *problem.assumptions))
            leaks = dict.fromkeys((*state.parts.get("leaks", ()), *problem.leaks))
            problem = replace(problem, assumptions=tuple(assumed), leaks=tuple(leaks))
        named = self._named_algorithm
        if self._mean_alone(X.shape[0]):
            named = KNOWN["dp_gd"]
            planned = self._planned({**problem.facts, "rounds": 1}, True, [_ALONE])
        else:
            planned = self._planned(problem.facts, exact=named is not None)
        if named is not None:
            choice = planned.choice(named.name)
        else:
            choice = planned.best
            if choice.batch_size is not None:  # its noise was known to first order only
                choice = self._planned(problem.facts, True, [choice.of]).choice(choice.name)
        wanted = self._private and self.scale in ("columns", "moments")
        remedy = 'leave it out: only algorithm="dp_gd" buys scales, and not over a set'
        validate.check(not wanted or choice.arguments.get("scale") == self.scale, "scale", self.scale, remedy)
        takes = self._private and choice.direct and not (choice.of and choice.of.needs) and not self.as_published
        if not takes:  # a run that has no place for a start
            problem = replace(problem, labelled=None)
        elif problem.labelled is not None:
            problem = replace(problem, assumptions=tuple(dict.fromkeys((*problem.assumptions, _STARTED))))
        rests_on = {"assumptions": list(problem.assumptions), "leaks": list(problem.leaks)}
        if not choice.direct and not problem.buys:
            assert isinstance(problem.objective.X, Scaled)
            problem = replace(problem, objective=problem.objective.with_inputs(problem.objective.X.plain()))
        recipe = self._recipe(problem, choice, planned.facts.smooth, calls)
        rounds, history, checkpoint = choice.rounds * calls, list[dict[str, float]](), self.checkpoint
        if self._group.rank:
            checkpoint = None
        if run is not None:
            partial_fit_claims._claim(run, past)
        ledger = self._run_ledger()
        # on one thread where waiting for others would take longer than the products
        with parallel.one_thread(X.shape[0] * X.shape[1] < _THREADED):
            result = minimize(
                problem.objective,
                recipe,
                self.constraint,
                steps=rounds,
                seed=self._group.on_leader(self._seed),
                clients=Local(problem.objective, self._group),
                resume=state,
                record=1,
                callbacks=[_RoundNotes(history, choice, (past + 1) * choice.rounds, rounds, checkpoint, rests_on)],
                progress=bool(self.verbose),
                ledger=ledger,
                noise_seed=self.noise_seed,
            )
        self._paid = partial_fit_claims.identities(ledger)
        self.plan_, self.choice_, self.result_, self._assumed = planned, choice, result, rests_on
        self._planned_rounds = rounds
        self.history_, self.seconds_, self.n_iter_ = history, time.perf_counter() - began, result.state.t
        self._store(problem, result)

    def _planned(self, facts: dict[str, object], exact: bool, names: Sequence[object] | None = None) -> Plan:
        if names is None and self._named_algorithm is not None:
            names = [self._named_algorithm]
        own: dict = {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self._adjacency.value}
        own |= {"constraint": self.constraint, "penalty": bool(self.l1 or self.l2), "algorithms": names, "exact": exact}
        own |= {"clip": self.clip, "step": self.step, "rounds": self.max_iter, "batch_size": self.batch_size, **facts}
        more = self.facts or {}
        twice = sorted(own.keys() & more.keys())
        validate.check(not twice, "facts", twice, "leave these out: the estimator has parameters for them")
        return plan(**{name: value for name, value in own.items() if value is not None}, **more)

    def _recipe(self, problem: posing._Problem, choice: Choice, smooth: float, calls: int) -> Recipe:
        """The chosen recipe with what the user fixed, what is bought first, and a start from labelled public rows."""
        options = dict(self.options or {})
        n: int | str = "exact"
        if self.as_published:
            options["as_published"] = True
        if self._private:
            if self.clip is not None and "clip" in choice.arguments:
                options["clip"] = self.clip
            if self.n is not None or calls > 1:
                n = self.n or problem.n
        elif self.step is None and choice.batch_size is None and "step" in choice.arguments:
            curvature = problem.objective.curvature or 1.0  # the data may be looked at
            top = posing._largest_eigenvalue(self._group, problem.objective.X)
            longest = problem.n / (curvature * max(top, 1e-12))
            options.setdefault("step", longest * choice.arguments["step"] * smooth)
        recipe = choice.recipe(n=n, public=problem.facts["public"], constraint=self.constraint, **options)
        if self._private:
            recipe = replace(recipe, build=partial(self._within_budget, recipe))
        if problem.buys:
            recipe = purchases.buying(recipe, problem.buys, copy=not choice.direct)
        if problem.labelled is not None:
            recipe = public_start.starting(recipe, *problem.labelled)
        return recipe

    def _within_budget(self, recipe: Recipe, binding: Binding) -> Pipeline:
        """The pipeline, refused before it looks at anything where its promise is not the budget that was asked for."""
        published = self.as_published or bool((self.options or {}).get("as_published"))  # its statement tells
        pipe, most = recipe.bind(binding), self._delta(self._records(binding.n))
        given = pipe.promise
        within = given is not None and (published or given.epsilon <= self.epsilon and given.delta <= most)
        remedy = f"pass epsilon and delta on to its Budget: its promise, {given}, is not the budget it was given"
        validate.check(within, "algorithm", recipe.name, remedy)
        return pipe

    def _run_ledger(self) -> Ledger | None:
        """What the rounds are charged to: beside a checkpoint a ledger of the run's own, which charges that of all."""
        if not self._private:
            return None
        ledger = self._opened_ledger()
        if not self._tallied or self._group.rank:
            return ledger
        label = Path(str(self.checkpoint)).name
        return Ledger(f"{self.checkpoint}.ledger", math.inf, shared=ledger, label=label, adjacency=self._adjacency)

    # ------------------------------------------------------------ what a classifier or a regressor changes

    @property
    def _target_map(self) -> tuple[float, float]:
        """Shift and width of what is predicted, in units of what is learned."""
        return 0.0, 1.0

    @property
    def _outputs(self) -> int:
        return self._kind.outputs(self._class_count)

    @property
    def _class_count(self) -> int:
        return len(vars(self).get("classes_", "01"))  # where there are none, as with two

    def _learn_targets(self, y: np.ndarray) -> tuple[str, ...]:
        """Settle what targets may be; what was read off them for that."""
        return ()

    def _mean_alone(self, n: int) -> bool:
        """Whether there are too few records to learn more than the mean of the targets."""
        return False

    # ------------------------------------------------------------ what is stored, and new rows

    def _store(self, problem: posing._Problem, result: Result) -> None:
        later: Sequence[Map] = result.transform.maps if result.transform is not None else ()
        self._maps = RowMaps([*problem.maps.maps, *later])
        point = result.x
        if point is None:
            point = result.average
        self._weights = point.detach().double().view(self._outputs, -1).T.contiguous()
        self._set_coefficients()
        statement = result.privacy
        if statement is not None:
            leaks = tuple(dict.fromkeys((*problem.leaks, *statement.leaks)))
            # a partial fit goes on from its own last round, and rounds that a kill lost are counted below
            others = [text for text in statement.assumptions if not text.startswith(GONE)]
            statement = replace(statement, assumptions=(*problem.assumptions, *others), leaks=leaks)
            if self._group.rank == 0:
                statement = self._with_lost_rounds(statement, result.state)
            if self._group.size > 1:  # the ledger of rank 0 knows what was charged
                told = self._group.on_leader(statement.to_json)
                statement = PrivacyStatement.from_json(told, recompute=False)
            if self.n is None and statement.n is None:  # the size of a first partial fit stands in every divisor
                assumption = "the number of records of the first call is public, and stands for the later ones"
                statement = replace(statement, n=problem.n, assumptions=(assumption, *statement.assumptions))
        self._state(statement)

    def _set_coefficients(self) -> None:
        """Coefficients and intercept of a model that is linear in the rows as given; none of any other."""
        for name in _COEFFICIENTS:
            self.__dict__.pop(name, None)
        if not self._bent:
            self.coef_, self.intercept_ = self._straight()

    @property
    def _bent(self) -> str:
        """Why the model is not linear in rows that no map shortens or clips; nothing is said of one that is."""
        maps = self._maps.maps
        if any(isinstance(each, SmoothMap) and len(each.columns) > len(each.shift) for each in maps):
            return "columns have smooth functions"
        if any(isinstance(each, RowMap) and each.limit is None for each in maps[1:]):
            return "rows get length 1 after their columns were scaled"
        return ""

    def _straight(self) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts of rows that no map shortens or clips; of smooth features the straight part."""
        p = self.n_features_in_
        weight, offset = self._maps.affine(p)
        coefficients = (self._weights[:p] * weight[:, None]).T.numpy().copy()
        return self._in_units(coefficients, (offset @ self._weights).numpy().copy())

    def _in_units(self, coefficients: np.ndarray, intercepts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients of what is learned, in the units of what is predicted."""
        return coefficients, intercepts

    def __getattr__(self, name: str) -> Any:
        """What is not there: a model without coefficients says what to use instead."""
        if name in _COEFFICIENTS and "_weights" in vars(self):
            raise AttributeError(
                f"{name} is not there, because the model is not linear in the rows as given ({self._bent}): effects() "
                'gives what each column adds; features="linear" (CSR: scale="none") fits a model that has coefficients'
            )
        return super().__getattribute__(name)

    def _state(self, statement: PrivacyStatement | None) -> None:
        """One statement of the fit, wherever it is read: that of the loop alone would say less."""
        self.privacy_, self.result_ = statement, replace(self.result_, privacy=statement)

    def _with_lost_rounds(self, statement: PrivacyStatement, state: State) -> PrivacyStatement:
        """The statement of a resumed run: rounds that a killed process had paid for are in its own ledger."""
        if not self._tallied or not statement.private:
            return statement
        ledger = Ledger.open(f"{self.checkpoint}.ledger")
        event = compose([ledger.event(), unspent(state.parts["terms"], state.t)])  # a partial fit has more planned
        charged = epsilon_of(event, statement.delta, statement.adjacency)
        if ledger.seeded:  # rounds whose noise can be subtracted
            return replace(statement, private=False, epsilon=math.inf, nominal=charged, noise=noise.SEEDED)
        if charged <= statement.epsilon:
            return statement
        return replace(statement, event=event_json.to_json(event), epsilon=charged, nominal=charged, releases=())

    @property
    def _tallied(self) -> bool:
        """Whether the run keeps a ledger of its own beside its checkpoint."""
        ledger = self.ledger
        plain = ledger is None or isinstance(ledger, (str, os.PathLike))
        return self.checkpoint is not None and (plain or type(ledger) is Ledger and ledger.label is None)

    def _margins(self, X: object) -> np.ndarray:
        validation.check_is_fitted(self)
        rows, _ = posing._read(self, X)
        step = max(1, CHUNK_BYTES // (8 * len(self._weights)))  # smooth features are a copy: some rows at a time
        parts = (rows[lo : lo + step] for lo in range(0, max(rows.shape[0], 1), step))
        return np.concatenate([matmul(self._maps(Scaled.of(part)), self._weights).numpy() for part in parts])

    def effects(self) -> dict[str, Curve]:
        """What each column adds to the prediction (a classifier: to the log-odds), as curves (x, y) by its name.

        A model with smooth features is additive: its prediction is a constant plus one curve a column, less its mean
        over the knots.  A linear model has a line, less its middle, over the column's range (or -1 to 1).
        Curves hold for rows that are not shortened, and say nothing of levels that no record has: what such a column
        adds is noise.  They are made from the model alone and cost nothing.
        """
        validation.check_is_fitted(self)
        maps = list(self._maps.maps)
        names = self._names()
        if not maps or not isinstance(maps[-1], SmoothMap):
            slopes, ends = np.atleast_2d(self._straight()[0]), np.tile([-1.0, 1.0], (len(names), 1))
            if maps and isinstance(maps[0], RowMap) and maps[0].low is not None and maps[0].high is not None:
                ends = torch.stack([maps[0].low, maps[0].high], 1).double().numpy()
            lines = [np.outer(ends[j] - ends[j].mean(), slopes[:, j]).squeeze() for j in range(len(names))]
            return {name: (ends[j], lines[j]) for j, name in enumerate(names)}
        last = maps[-1]
        weight, offset = RowMaps(maps[:-1]).affine(self.n_features_in_)
        whole, curves, unit = math.hypot(last.limit, last.bias), {}, self._target_map[1]
        if issubclass(self._kind.reads, CountTargets):  # curves of a logarithm have no unit
            unit = 1.0
        for j, name in enumerate(names):
            mine = (last.columns == j).nonzero()[:, 0]
            x = (last.knots * last.reach - offset[j]) / weight[j]
            curve = last.values[mine].T @ self._weights[mine] / whole
            curves[name] = x.numpy(), unit * (curve - curve.mean(0)).numpy().squeeze()
        return curves

    def _names(self) -> tuple[str, ...]:
        """The names of the columns."""
        names = vars(self).get("feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        return tuple(map(str, names))

    def budget_curve(self, points: int = 20) -> list[tuple[int, float]]:
        """(round, epsilon of so many rounds fixed beforehand) of the fit; what was bought before them is in all."""
        validation.check_is_fitted(self)
        if self.privacy_ is None or not math.isfinite(self.privacy_.nominal):
            return []
        leaves, last = list(event_json.flatten(self.privacy_.event)), self._planned_rounds or self.n_iter_
        curve = []
        for t in sorted({max(1, round(self.n_iter_ * i / points)) for i in range(1, points + 1)}):
            spent = event_json.composed((leaf, 1 if k == 1 else math.ceil(k * t / last)) for leaf, k in leaves)
            curve.append((t, epsilon_of(spent, self.privacy_.delta, self.privacy_.adjacency)))
        return curve

    def coefficient_intervals(self, level: float = 0.95, *, residual_sd: float | None = None) -> intervals.Intervals:
        """Confidence intervals of the coefficients, noise and sampling counted (see `isthmus.estimators.intervals`)."""
        return intervals._coefficient_intervals(self, level, residual_sd)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file without pickle; `isthmus.estimators.load` reads it."""
        stored.save(self, path)

    def to_sklearn(self) -> exported._Plain:
        """A linear model as a plain estimator of scikit-learn, with the statement in words as `privacy_statement_`.

        A `LinearRegression`, a `LogisticRegression`, or a `LinearSVC` where there are no probabilities: it predicts the
        same for rows within the bounds (or no longer than `data_norm`); others it neither clips nor shortens.
        """
        return exported._to_sklearn(self)

    # ------------------------------------------------------------ what follows from the parameters alone

    @property
    def _private(self) -> bool:
        return self.epsilon != math.inf

    @property
    def _fills_itself(self) -> bool:
        """Whether nothing was fixed that has the unit of rows or targets: these may be scaled as they are found."""
        fixed = (self.clip, self.step, self.batch_size, self.constraint, self.options, self.l1 or None, self.l2 or None)
        return self._private and self.algorithm == "auto" and all(value is None for value in fixed)

    @property
    def _named_algorithm(self) -> Algorithm | None:
        """The algorithm that was asked for; None leaves it to the planner."""
        if isinstance(self.algorithm, str):
            return KNOWN.get(self.algorithm)
        return suggest.algorithm_of(self.algorithm)

    @property
    def _adjacency(self) -> Adjacency:
        return Adjacency(self.adjacency)

    @contextmanager
    def _together(self, group: GroupLike) -> Iterator[None]:
        """A fit by all ranks of a group; a fitted model knows of none."""
        self._group = Group.of(group)
        try:
            with self._group.joined("fit"):
                yield
        finally:
            del self._group
            self.__dict__.pop("_whole", None)

    def _records(self, n: int) -> int:
        """The public number of records: as declared, that of the first partial fit, that of all ranks, or n."""
        return self.n or self._first or self._whole or n

    def _seed(self) -> int:
        if self.random_state is None:
            return secret.randbits(31)
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_parameters(self) -> None:
        if self._private:
            validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.open_unit(delta=self.delta)
        loss_of(self.loss, self._LABELS)
        if isinstance(self.algorithm, str):
            validate.one_of(["auto", *KNOWN], algorithm=self.algorithm)
        validate.non_negative(l1=self.l1, l2=self.l2)
        validate.one_of(SCALES, scale=self.scale)
        own_scale = self.features == "smooth" and self.scale not in ("auto", "shapes")
        validate.check(not own_scale, "features", "smooth", "leave out scale: smooth features bring their own")
        unknown = self.scale == "public" and self.public is None
        validate.check(not unknown, "scale", "public", "give the public rows: public=X")
        centred = self.scale in ("moments", "shapes", "public") or self.features == "smooth"
        remedy = 'leave it out, or use scale="columns" or "none": centred columns have an intercept'
        validate.check(self.fit_intercept or not centred, "fit_intercept", False, remedy)
        validate.positive(max_weight=self.max_weight)
        counts = {name: vars(self)[name] for name in ("max_iter", "n", "partial_calls")}  # the others `plan` checks
        validate.positive_int(**{name: value for name, value in counts.items() if value is not None})
        validate.one_of([*Adjacency, *(member.value for member in Adjacency)], adjacency=self.adjacency)
        posing._check_bounds(self.bounds, self.data_norm)
        forced = self._named_algorithm is None and self.as_published
        remedy = 'name the algorithm that is to run as published, such as algorithm="priv_sgd"'
        validate.check(not forced, "as_published", True, remedy)

    def _opened_ledger(self) -> Ledger | None:
        return None if self._group.rank else opened_ledger(self.ledger, self._adjacency)

    def _checked_weights(self, weight: ArrayLike | None, n: int) -> np.ndarray | None:
        if weight is None:
            return None
        values = validation._check_sample_weight(weight, np.empty((n, 1)), dtype=np.float64)
        good = bool((values >= 0).all())
        validate.require(good, "sample_weight holds a negative number: give weights of 0 or more")
        return np.minimum(values, self.max_weight) / self.max_weight

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        repeatable = self.random_state is not None and (not self._private or self.noise_seed is not None)
        tags.non_deterministic = not repeatable  # secret noise never comes twice
        return tags

    def _checkpointed(self) -> storage.Fields | None:
        """The state that was saved where the ledger is, by its fields; None where there is none."""
        if self.checkpoint is None or not Path(self.checkpoint).exists():
            return None
        there = not (self._private and self._tallied) or Path(f"{self.checkpoint}.ledger").exists()
        remedy = "restore the file <checkpoint>.ledger, which has what this run has spent, or remove both to begin anew"
        validate.check(there, "checkpoint", str(self.checkpoint), remedy)
        state = State.load(self.checkpoint)
        remedy = "leave the checkpoint out: every rank remembers what it left out, and it has the memory of rank 0 only"
        validate.check(self._group.size == 1 or not state.memory, "checkpoint", "with error feedback", remedy)
        return storage.fields_of(state)

    def _read(self, X: object, y: object, reset: bool) -> tuple[Matrix, np.ndarray]:
        several = self._group.size > 1
        rows, targets = posing._read(self, X, y, reset=reset, least=1 - several)
        if several:
            names = list(vars(self).get("feature_names_in_", ()))
            rows, self._whole = posing._shared_rows(self._group, rows, names)
        return rows, targets


# ---------------------------------------------------------------- labels


def _has_probabilities(estimator: PrivateClassifier) -> bool:
    kind = estimator.loss if isinstance(estimator.loss, type) else known_losses(labels=True).get(estimator.loss)
    return kind is not None and kind.probabilities


def _other_labels(y: object, classes: np.ndarray) -> str:
    """The remedy for labels that were not declared; a type is told, and no label."""
    if np.asarray(y).dtype.kind in "iu" and classes.dtype.kind in "UO":
        counted = f"[0, ..., {len(classes) - 1}]"
        return (
            "y has numbers where the classes are words. Some tools of scikit-learn number the labels before they fit "
            f"(cross_val_predict for probabilities, stacking): declare classes={counted} for them, in the same order"
        )
    return "declare all labels, or leave those rows out"


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ClassifierMixin, _PrivateLinear):
    """A linear classifier trained under differential privacy.

    Each record's gradient is clipped, Gaussian noise is added to their sum, and only that is ever seen: whatever the
    records are, the fitted model is (epsilon, delta)-differentially private for adding or removing one of them.
    `privacy_` states it, and what must hold.  `epsilon=float("inf")` trains without privacy, on compressed gradients.

    epsilon, delta   the budget of one `fit`; delta defaults to min(1e-5, n^-1.1)
    loss             "logistic" (softmax for more than two classes), "softmax", "hinge", "smooth_hinge"; or a class, a
                     subclass of `LinearModel` that reads labels
    algorithm        "auto" asks `isthmus.plan`; or a recipe by its name in `isthmus.algorithms` or as a function of
                     your own, filled from public facts
    constraint       a set of `isthmus` for the coefficients of the scaled rows; l1, l2: strengths of a penalty
    clip, step, max_iter, batch_size   None: as planned; all of them are public choices
    scale            how columns are scaled beyond their bounds: "auto", "none", "columns", "moments", "shapes" (bought
                     from the budget) or "public" (from the public rows)
    features         "linear", or "smooth": every column becomes a few functions of itself and the model an additive one
                     (`effects()`); "auto" as the budget allows
    bounds           (low, high) of the columns, public numbers; NaN, or None for all, buys them from the budget;
                     "data" reads them off the data and warns
    data_norm        a public bound of the rows' l2 norm: longer rows are shortened; "unit" gives every row length 1,
                     the default for CSR
    public           rows X, or (X, y), that are public
    n                None: the number of records is public; a number is a public estimate of it
    classes          all labels; None reads them off y and warns
    class_weight     None, a dict {label: weight}, or "balanced", which buys the class counts
    max_weight       a public choice: a larger `sample_weight` counts as this
    adjacency        "add-remove" or "replace-one"
    partial_calls    how many calls of `partial_fit` share the budget
    ledger           a `privacy.Ledger` or its path: charged before anything is released, refuses what exceeds it
    checkpoint       a path: the run's public state is saved there, and `fit` goes on from it
    options          further arguments of the algorithm
    facts            further public facts for the planner: a dict with max_passes, max_dims, smoothness, density, ...
    as_published     run the paper's mechanism; the statement says what it really gives
    random_state     public randomness (sketches); noise never depends on it
    noise_seed       for tests only: the statement then says "not private"

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(3000, 5, random_state=0)
    >>> model = PrivateClassifier(epsilon=1.0, classes=[0, 1], bounds=(-6, 6)).fit(X, y)
    >>> model.score(X, y) > 0.8, model.privacy_.private
    (True, True)
    >>> print(model.privacy_)
    (epsilon=1, delta=1e-05)-differentially private, for adding or removing one record
    """

    loss: str | Loss = "logistic"
    classes: ArrayLike | None = None
    class_weight: dict | str | None = None
    _LABELS = True

    def partial_fit(  # type: ignore[override]  # `classes` stands where scikit-learn has it
        self,
        X: object,
        y: object,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        group: GroupLike = None,
    ) -> Self:
        """One of `partial_calls` calls that share the budget, whether or not their records overlap.

        The first call buys what the plan buys; later ones go on from the last point.  `classes` has all labels, at the
        first call; `group` is that of `fit`.
        """
        if classes is not None:
            self._declared = classes
        return super().partial_fit(X, y, sample_weight, group=group)

    def decision_function(self, X: object) -> np.ndarray:
        """Margins: one a row for two classes, else one a row and class."""
        z = self._margins(X)
        if z.shape[1] == 1:
            return z[:, 0]
        if len(self.classes_) == 2:
            return z[:, 1] - z[:, 0]
        return z

    def predict(self, X: object) -> np.ndarray:
        """The label of the largest margin."""
        z = self.decision_function(X)
        return self.classes_[(z > 0).astype(int) if z.ndim == 1 else z.argmax(1)]

    @metaestimators.available_if(_has_probabilities)
    def predict_proba(self, X: object) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    @metaestimators.available_if(_has_probabilities)
    def predict_log_proba(self, X: object) -> np.ndarray:
        """Their logarithms."""
        z = self.decision_function(X)
        if z.ndim == 1:
            z = np.stack([np.zeros_like(z), z], axis=1)
        return z - np.logaddexp.reduce(z, axis=1, keepdims=True)

    # ------------------------------------------------------------ the problem

    def _objective(self, X: Scaled, y: np.ndarray, weight: ArrayLike | None) -> posing.Objective:
        weights, buys = self._checked_weights(weight, X.shape[0]), tuple[purchases.SumPurchase, ...]()
        if self.class_weight is not None:
            by_row = self._weights_of(y)
            if by_row is None:
                buys = (purchases.ClassCounts(),)
            else:
                weights = by_row * (1.0 if weights is None else weights)
        classes = tuple(self.classes_.tolist())
        return self._kind(X, y, weights=weights, classes=classes, l1=self.l1, l2=self.l2), buys, ()

    def _learn_targets(self, y: np.ndarray) -> tuple[str, ...]:
        if len(y):  # a rank may have no rows
            multiclass.check_classification_targets(y)
        declared = self._declared if self.classes is None else self.classes
        if declared is not None:
            self.classes_ = np.unique(np.asarray(declared))
            validate.check(len(self.classes_) > 1, "classes", self.classes_.tolist(), "give at least two labels")
            words = f"a label that is not among classes={self.classes_.tolist()}"  # whose label it is stays unsaid
            known = bool(np.isin(y, self.classes_).all())
            validate.require(known, f"y holds {words}: {_other_labels(y, self.classes_)}")
        elif not self._calls:  # what the first call read is in its state
            self.classes_ = posing._shared_labels(self._group, y)
            validate.require(len(self.classes_) > 1, "y holds one class only: declare all classes with classes=")
            if self._private:
                return (leak(*CLASSES_READ),)
        return ()

    def _weights_of(self, y: np.ndarray, public: bool = False) -> np.ndarray | None:
        """The weight of each row by its class, at most 1; None where balancing them is to be bought."""
        chosen, labels = self.class_weight, self.classes_.tolist()
        if isinstance(chosen, str):
            validate.one_of(("balanced",), class_weight=chosen)
            if self._private and not public:
                return None
            own = torch.tensor([int((y == label).sum()) for label in labels])
            counts = own if public else sum(self._group.all(own))
            counts = np.maximum(np.asarray(counts), 1)
            chosen = dict(zip(labels, (counts.min() / counts).tolist(), strict=True))
        if not isinstance(chosen, dict):
            validate.refuse("class_weight", chosen, 'give a dict {label: weight} or "balanced"')
        weights = np.array([float(chosen.get(label, 1.0)) for label in labels])
        validate.check(weights.min() >= 0, "class_weight", chosen, "give weights of at least 0")
        validate.positive(class_weight=float(weights.max()))
        return (weights / weights.max())[np.searchsorted(self.classes_, y)]

    @property
    def _kind(self) -> Loss:
        return loss_for(self.loss, len(self.classes_))

    def _public_targets(self, y: np.ndarray) -> tuple[np.ndarray, Tensor | None]:
        unknown = sorted(set(y.tolist()) - set(self.classes_.tolist()), key=str)
        remedy = f"give public labels that are among classes={self.classes_.tolist()}"
        validate.check(not unknown, "public", unknown, remedy)
        if self.class_weight is None:
            return y, None
        return y, torch.from_numpy(self._weights_of(y, public=True))  # "balanced" by the public labels themselves

    def _in_units(self, coefficients: np.ndarray, intercepts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(self.classes_) == 2 and len(coefficients) == 2:
            return coefficients[1:] - coefficients[:1], intercepts[1:] - intercepts[:1]
        return coefficients, intercepts

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


# ---------------------------------------------------------------- numbers


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, _PrivateLinear):
    """A linear regression trained under differential privacy.

    Targets are clipped to `target_bounds` and learned on the scale [-1, 1] (Poisson: [0, 1], by quasi-likelihood);
    each record's gradient is clipped, Gaussian noise is added to their sum.  Parameters are those of
    `PrivateClassifier`, and

    loss           "squared", "huber" or "poisson"; or a class, a subclass of `LinearModel` that reads numbers
    target_bounds  (low, high) of y, public numbers; None takes those of public targets, or buys them from the budget;
                   "data" reads them off y and warns
    huber_delta    where the Huber loss turns linear, as a share of half the target's range

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 4))
    >>> y = 10 + X @ [3.0, -2.0, 1.0, 0.0] + 0.1 * rng.standard_normal(4000)
    >>> model = PrivateRegressor(epsilon=1.0, bounds=(-1, 1), target_bounds=(0, 20)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """

    loss: str | Loss = "squared"
    target_bounds: tuple[float, float] | str | None = None
    huber_delta: float = 0.2
    target_centre_: tuple[float, float] | None = field(init=False, default=None)
    _LABELS = False

    def predict(self, X: object) -> np.ndarray:
        """The prediction, in the units of y."""
        predictions = self._kind.reads().predict(torch.from_numpy(self._margins(X)[:, 0]))
        shift, width = self._target_map
        return shift + width * np.asarray(predictions)

    # ------------------------------------------------------------ the problem

    def _check_parameters(self) -> None:
        super()._check_parameters()
        validate.positive(huber_delta=self.huber_delta)
        bounds = self.target_bounds
        if isinstance(bounds, str):
            validate.one_of(("data",), target_bounds=bounds)
        elif bounds is not None:
            posing._check_range("target_bounds", bounds, "give (low, high)")
            never = self._counts and bounds[0] < 0
            validate.check(not never, "target_bounds", bounds, "give a low of at least 0: counts are never negative")

    def _objective(self, X: Scaled, y: np.ndarray, weight: ArrayLike | None) -> posing.Objective:
        remarks: tuple[str, ...] = ()
        own: dict = {"delta": self.huber_delta} if issubclass(self._kind, Huber) else {}
        y, weights = np.asarray(y, dtype=np.float64), self._checked_weights(weight, X.shape[0])
        model = self._kind(X, y, weights=weights, l1=self.l1, l2=self.l2, **own)
        bounds = self.target_bounds
        if bounds is None and isinstance(self.public, tuple):
            targets = np.asarray(self.public[1], dtype=float)
            if targets.min() < targets.max():
                bounds = float(targets.min()), float(targets.max())
                remarks = ("the public targets are public: y was clipped to their range",)
        if isinstance(bounds, str) or not self._private and bounds is None:
            low, high = posing._ranges_of(torch.tensor(y)[:, None], self._group)
            bounds = float(low), float(high)
            if self._private:
                remarks = (leak("the range of y (target_bounds) was", "give target_bounds=(low, high) that is public"),)
        buys: list[purchases.SumPurchase] = []
        if bounds is None:
            buys.append(purchases.TargetRange())
        if self._places_targets and (certainty := posing._certainty(self, X.shape[0])) < suggest.CONSTANTS.placed_b:
            if buys:
                buys = [purchases.TargetRange.among(certainty)]
            if buys and certainty < suggest.CONSTANTS.range_b:
                found = "the range of y (target_bounds) was not declared, and so few records may not tell it"
                remarks = (*remarks, f"{found} (n mu = {certainty:.3g}): predictions may be far off")
            alone = self._mean_alone(X.shape[0])
            buys += purchases.place_of_targets(certainty, alone, 1 - sum(item.share for item in buys))
            if alone:
                few = f"too few records for this epsilon (n mu = {certainty:.3g}) to tell more than the mean of y"
                remarks = (*remarks, f"there were {few}: the columns were not used")
        if bounds is None:
            return model, tuple(buys), remarks
        self.target_bounds_ = float(bounds[0]), float(bounds[1])
        return purchases.scaled_targets(model, *self.target_bounds_), tuple(buys), remarks

    @property
    def _places_targets(self) -> bool:
        """Whether the place of targets in their range is bought: where nothing was fixed that has their unit."""
        labelled = isinstance(self.public, tuple)  # their targets tell it
        return self._fills_itself and not labelled and self.fit_intercept and self._kind.equivariant

    def _mean_alone(self, n: int) -> bool:
        return self._places_targets and posing._certainty(self, n) < suggest.CONSTANTS.mean_b

    @property
    def _kind(self) -> Loss:
        return loss_of(self.loss, labels=False)

    @property
    def _counts(self) -> bool:
        """Whether the margin is the logarithm of the prediction."""
        return issubclass(self._kind.reads, CountTargets)

    def _public_targets(self, y: np.ndarray) -> tuple[np.ndarray, Tensor | None]:
        """In the units that the problem is posed in: as given where their range is bought."""
        targets = np.asarray(y, dtype=float)
        validate.check(bool(np.isfinite(targets).all()), "public", "targets that are not finite", "give finite numbers")
        buys_range = self._private and self.target_bounds is None
        if not buys_range or targets.min() < targets.max():
            # without the centre of an earlier fit
            shift, width = purchases.target_map(*self.target_bounds_, self._counts)
            targets = np.asarray((np.clip(targets, *self.target_bounds_) - shift) / width)
        return targets, None

    def _store(self, problem: posing._Problem, result: Result) -> None:
        if result.target is not None:
            self.target_bounds_ = result.target
        self.target_centre_ = result.centre
        super()._store(problem, result)

    def _in_units(self, coefficients: np.ndarray, intercepts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shift, width = self._target_map
        if self._counts:
            return coefficients[0], intercepts[0] + math.log(width)
        return width * coefficients[0], shift + width * intercepts[0]

    @property
    def _target_map(self) -> tuple[float, float]:
        shift, width = purchases.target_map(*self.target_bounds_, self._counts)
        if self.target_centre_ is None:
            return shift, width
        return shift + width * self.target_centre_[0], width * self.target_centre_[1]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._counts
        tags.regressor_tags.poor_score = True
        return tags


stored.KINDS |= {kind.__name__: kind for kind in (PrivateClassifier, PrivateRegressor)}
