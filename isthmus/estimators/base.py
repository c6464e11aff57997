"""What both estimators share: their parameters, the private fit, the margins of new rows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from isthmus.algorithms import KNOWN, Algorithm
from isthmus.algorithms.filling import CONSTANTS, algorithm_of
from isthmus.algorithms.public_start import starting
from isthmus.algorithms.purchases import SMALL, SumPurchase, buying
from isthmus.base import notebook, secret, validate
from isthmus.base.arrow import opened
from isthmus.base.matrix import CHUNK_BYTES, as_matrix, is_sparse, matmul, take
from isthmus.base.parallel import one_thread
from isthmus.base.streamed import Streamed
from isthmus.core.minimize import Binding, Recipe, minimize
from isthmus.core.pipeline import Pipeline
from isthmus.core.spending import GONE, unspent
from isthmus.core.wire import State
from isthmus.estimators import intervals, partial_fit_claims, stored
from isthmus.estimators.inputs import (
    Inputs,
    as_rows,
    check_bounds,
    checked,
    inputs_of,
    read_table,
    standardised,
)
from isthmus.estimators.rank_group import ALONE, RankGroup
from isthmus.estimators.stateless_steps import learned_before, warn_of_repeated_fits
from isthmus.objectives.linear import LinearModel, Loss, loss_of
from isthmus.planner import Choice, Plan, plan
from isthmus.privacy import Adjacency, Ledger, PrivacyStatement, compose, event_json
from isthmus.privacy.accounting import epsilon_of
from isthmus.privacy.leaks import Leak
from isthmus.privacy.ledger import opened as opened_ledger
from isthmus.privacy.noise import SEEDED
from isthmus.privacy.plan import default_delta, mu_of
from isthmus.problems.features import SmoothMap
from isthmus.problems.scaling import RowMaps, Scaled
from isthmus.tables.encode import is_frame
from isthmus.tables.encoder import check_numbers_only

SCALES = ("auto", "none", "columns", "moments", "shapes", "public")

FEATURES = ("auto", "linear", "smooth")


class PrivateEstimator(BaseEstimator):
    """What fits and searches share: a clone keeps the ledger, and a notebook shows the guarantee below the diagram."""

    epsilon: float
    delta: float | None
    ledger: Any
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
        if self.delta is None:
            return default_delta(n)
        return self.delta

    def _repr_html_inner(self) -> str:
        """What a notebook shows where it asks for HTML."""
        diagram: str = super()._repr_html_inner()
        return diagram + self._guarantee_html()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """What a notebook shows where it asks for everything; scikit-learn decides whether that has HTML."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += self._guarantee_html()
        return bundle

    def _guarantee_html(self) -> str:
        """The statement of a private fit; a warning for one that is not; the budget before a fit."""
        if not hasattr(self, "privacy_"):
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


SMALL_STATE = 20_000
"""A point of fewer numbers is checkpointed every round, a longer one a hundred times."""


@dataclass
class RoundNotes:
    """Notes what each round moved (it was released, so it is public), saves checkpoints, and ends a partial fit."""

    notes: list[dict[str, Any]]
    choice: Choice
    until: int
    rounds: int
    path: Any
    assumed: dict[str, Any]
    last: tuple[int, Tensor] | None = None

    def __call__(self, record: dict[str, Any], state: State) -> bool:
        note: dict[str, Any] = {"t": state.t}
        if self.last is not None and self.last[0] == state.t - 1:
            note["moved"] = float(torch.linalg.vector_norm(state.w - self.last[1]))
        straight = not self.choice.arguments.get("precondition")  # else noise goes through a matrix
        if self.choice.noise_norm is not None and "eta" in record and straight:
            note["noise"] = record["eta"] * self.choice.noise_norm
        if "loss" in record:
            note["loss"] = record["loss"]
        self.last = state.t, state.w
        self.notes.append(note)
        every = 1 if state.w.numel() < SMALL_STATE else max(1, self.rounds // 100)
        if self.path is not None and (state.t % every == 0 or state.t == self.rounds):
            state.replace(parts={**state.parts, **self.assumed}).save(self.path)
        return state.t >= self.until and state.t < self.rounds


Curve = tuple[np.ndarray, np.ndarray]
"""Numbers of a column, and what they add: one number each, or one for every class."""
DECLARED = "what was declared about the data (its columns, classes, bounds, norms, ranges) is public knowledge"

PUBLIC = "the rows given as public are public, and none of the private records is among them"

STARTED = "the labels of the public rows were used: the fit starts at a model of these rows alone, which costs nothing"

THREADED = 4_000_000
"""Matrices of fewer entries are multiplied on one thread."""
PUBLIC_ROWS = 1000
"""More public rows than this are sampled."""


@dataclass(frozen=True)
class Posed:
    """One problem, ready to be planned: its objective, what is bought first, what is assumed, what was read off.

    public    the public rows as algorithms learn from them; `labelled` as a start is fitted: rows, targets, weights
    """

    objective: LinearModel
    inputs: Inputs
    buys: tuple[SumPurchase, ...]
    assumptions: tuple[str, ...]
    facts: dict[str, Any]
    public: Any = None
    leaks: tuple[str, ...] = ()
    labelled: tuple[Any, Any, Any] | None = None


@dataclass(eq=False, repr=False)
class PrivateLinear(PrivateEstimator):
    """The private fit of a linear model; `PrivateClassifier` says what the parameters are."""

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    loss: str | Loss = ""
    algorithm: str | Algorithm[Any] | Callable[..., Any] = "auto"
    constraint: Any = None
    l1: float = 0.0
    l2: float = 0.0
    clip: Any = None
    step: Any = None
    max_iter: int | None = None
    batch_size: int | None = None
    scale: str = "auto"
    features: str = "auto"
    bounds: Any = None
    data_norm: Any = None
    fit_intercept: bool = True
    public: Any = None
    n: int | None = None
    max_weight: float = 1.0
    adjacency: Any = "add-remove"
    partial_calls: int = 10
    ledger: Any = None
    checkpoint: Any = None
    options: Any = None
    facts: Any = None
    as_published: bool = False
    random_state: Any = None
    noise_seed: int | None = None
    verbose: int = 0

    _LABELS: ClassVar[bool]
    """Whether targets are labels."""
    # what `partial_fit` remembers of earlier calls (see `stored`); a fit begins anew
    _calls: int = field(init=False, default=0)
    _partial_state: State | None = field(init=False, default=None)
    _first: int = field(init=False, default=0)
    _declared: Any = field(init=False, default=None)
    _charged: str | bool = field(init=False, default="")
    _run: str | None = field(init=False, default=None)
    _planned_rounds: int = field(init=False, default=0)
    _ranks: RankGroup = field(init=False, default=ALONE)  # this process, but for a fit by a group

    # ------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, group: Any = None) -> Self:
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
                warn_of_repeated_fits(self.epsilon)
            for name in ("_calls", "_partial_state", "_first", "_declared", "_charged", "_run"):  # a fit begins anew
                self.__dict__.pop(name, None)
            X, y = self._read(X, y, reset=True)
            self._train(X, y, sample_weight, calls=1, state=self._ranks.state(self._checkpointed))
        return self

    def _partial(self, X: Any, y: Any, sample_weight: Any, group: Any) -> Self:
        with self._together(group):
            self._check_parameters()
            first = self._calls == 0
            X, y = self._read(X, y, reset=first)
            self._first = self._records(X.shape[0])
            past, calls = self._calls, self.partial_calls
            run, charged = self._run_of_calls(first)
            remedy = f"fit again, or plan more calls: partial_calls={calls} share the budget, and all of them were made"
            validate.require(past < calls, f"Call {past + 1} of partial_fit is one too many: {remedy}")
            claim = None
            if self._private and not charged:  # no ledger counts what every copy spends
                claim = partial(partial_fit_claims.claim, run, past)
            self._train(X, y, sample_weight, calls=calls, state=self._partial_state, past=past, claim=claim)
        parts = {**self.result_.state.parts, **self._assumed}
        self._calls, self._partial_state = past + 1, self.result_.state.replace(parts=parts)
        self._run, self._charged = run, charged
        return self

    def _run_of_calls(self, first: bool) -> tuple[str | None, str | bool]:
        """The name of this run of partial fits, and the ledger that counts all of it: that of the first call."""
        ledger = self._opened_ledger()
        own = "" if ledger is None else partial_fit_claims.identity_of(ledger)
        if first:
            return partial_fit_claims.begin(), own
        remedy = "give the ledger that earlier calls were charged to again, set_params(ledger=...): this is another one"
        same = self._charged in ("", False, own) or self._charged is True and own != ""  # True: stored without its name
        validate.check(same, "ledger", self.ledger, remedy)
        return self._run, self._charged

    def _train(
        self,
        X: Any,
        y: Any,
        weight: Any,
        calls: int,
        state: State | None,
        past: int = 0,
        claim: Callable[[], None] | None = None,
    ) -> None:
        began = time.perf_counter()
        problem = self._problem(X, y, weight)
        if state is not None:  # what rounds already made rest on, and what was read from the data for them
            assumed = dict.fromkeys((*state.parts.get("assumptions", ()), *problem.assumptions))
            leaks = dict.fromkeys((*state.parts.get("leaks", ()), *problem.leaks))
            problem = replace(problem, assumptions=tuple(assumed), leaks=tuple(leaks))
        facts: dict[str, Any] = {"public": problem.public, "before": sum(item.share for item in problem.buys)}
        planned = self._planned(problem.facts, exact=self._named_algorithm is not None, **facts)
        named = self._named_algorithm
        if named is not None:
            choice = planned.choice(named.name)
        else:
            choice = planned.best
            if choice.batch_size is not None:  # its noise was known to first order only
                choice = self._planned(problem.facts, True, [choice.of], **facts).choice(choice.name)
        self._check_scale(choice)
        problem = self._started(problem, choice)
        rests_on = {"assumptions": list(problem.assumptions), "leaks": list(problem.leaks)}
        rounds = choice.rounds * calls
        if not choice.direct and not problem.buys:
            assert isinstance(problem.objective.X, Scaled)
            problem = replace(problem, objective=problem.objective.with_inputs(problem.objective.X.plain()))
        recipe = self._recipe(problem, choice, planned.facts.smooth, calls)
        history: list[dict[str, Any]] = []
        checkpoint = self.checkpoint if self._ranks.leads else None
        if claim is not None:
            claim()
        spending = self._spending() if self._private else {}
        with one_thread(X.shape[0] * X.shape[1] < THREADED):  # waiting for others would take longer than the products
            result = minimize(
                problem.objective,
                recipe,
                self.constraint,
                steps=rounds,
                seed=self._ranks.lead(self._seed),
                clients=self._ranks.holding(problem.objective),
                resume=state,
                record=1,
                callbacks=[RoundNotes(history, choice, (past + 1) * choice.rounds, rounds, checkpoint, rests_on)],
                progress=bool(self.verbose),
                **spending,
            )
        self._paid = partial_fit_claims.identities(spending.get("ledger"))
        self.plan_, self.choice_, self.result_, self._assumed = planned, choice, result, rests_on
        self._planned_rounds = rounds
        self.history_, self.seconds_, self.n_iter_ = history, time.perf_counter() - began, result.state.t
        self._store(problem, result)

    def _recipe(self, problem: Posed, choice: Choice, smooth: float, calls: int) -> Recipe:
        options = dict(self.options or {})
        if self.as_published:
            options["as_published"] = True
        if self.clip is not None and self._private and "clip" in choice.arguments:
            options["clip"] = self.clip
        n = "exact" if self.n is None and calls == 1 else (self.n or problem.facts["n"])
        arguments = {"n": n} if self._private else {}
        planned = choice.arguments.get("step") if choice.batch_size is None else None
        if not self._private and planned is not None and self.step is None:  # the data may be looked at
            curvature = problem.objective.curvature or 1.0
            longest = problem.facts["n"] / (curvature * max(self._ranks.top_eigenvalue(problem.objective.X), 1e-12))
            options.setdefault("step", longest * (planned * smooth))
        recipe = choice.recipe(public=problem.public, constraint=self.constraint, **arguments, **options)
        if self._private:
            recipe = self._promised(recipe)
        if problem.buys:
            recipe = buying(recipe, problem.buys, copy=not choice.direct)
        if problem.labelled is not None:
            recipe = starting(recipe, *problem.labelled)
        return recipe

    def _promised(self, recipe: Recipe) -> Recipe:
        """The recipe, refused before it looks at anything where its promise is not the budget that was asked for."""
        published = self.as_published or bool((self.options or {}).get("as_published"))  # its statement tells

        def build(binding: Binding) -> Pipeline:
            pipe = recipe.bind(binding)
            promised = None if pipe.promise is None else (pipe.promise.epsilon, pipe.promise.delta)
            most = self._delta(self._records(binding.n))
            within = promised is not None and (published or promised[0] <= self.epsilon and promised[1] <= most)
            remedy = (
                f"pass epsilon and delta on to its Budget: it promises {promised}, which is not the budget it was given"
            )
            validate.check(within, "algorithm", recipe.name, remedy)
            return pipe

        return replace(recipe, build=build)

    def _spending(self) -> dict[str, Any]:
        ledger = self._opened_ledger()
        if self._tallied and self._ranks.leads:
            own, label = f"{self.checkpoint}.ledger", Path(self.checkpoint).name
            ledger = Ledger(own, math.inf, shared=ledger, label=label, adjacency=self._adjacency)
        return {"ledger": ledger, "noise_seed": self.noise_seed}

    def _planned(self, facts: dict[str, Any], exact: bool, names: list[Any] | None = None, **more: Any) -> Plan:
        named = self._named_algorithm
        if names is None and named is not None:
            names = [named]
        fixed = {"clip": self.clip, "step": self.step, "rounds": self.max_iter, "batch_size": self.batch_size}
        own = {"epsilon", "delta", "constraint", "adjacency", "penalty", "algorithms", "exact", *more, *facts, *fixed}
        twice = sorted(own & set(self.facts or {}))
        validate.check(not twice, "facts", twice, "leave these out: the estimator has parameters for them")
        return plan(
            epsilon=self.epsilon,
            delta=self.delta,
            constraint=self.constraint,
            adjacency=self._adjacency.value,
            penalty=bool(self.l1 or self.l2),
            algorithms=names,
            exact=exact,
            **more,
            **facts,
            **dict(self.facts or {}),
            **{key: value for key, value in fixed.items() if value is not None},
        )

    # ------------------------------------------------------------ the problem

    def _problem(self, X: Any, y: Any, weight: Any) -> Posed:
        """Objective, maps and purchases."""
        learned = learned_before() if self._private or self._ranks.several else ()
        remedy = "put steps that learn nothing before the model: each rank's steps would learn from its own rows alone"
        validate.check(not learned or not self._ranks.several, "group", [*map(str, learned)], remedy)
        guessed = self._learn_targets(y)
        public = self._public_rows(X.shape[1])
        chosen = self._scale(X, public)
        bought = self._bought_scale(X, chosen)
        inputs = inputs_of(
            X,
            bounds=self.bounds,
            data_norm=self.data_norm,
            public=None if public is None else public[0],
            intercept=self.fit_intercept and chosen != "public" and bought not in ("moments", "shapes"),
            private=self._private,
            whole=bought == "shapes" or self._private and self._many(*X.shape),
            origin=not self.fit_intercept,
            ranks=self._ranks,
        )
        public_rows = None if public is None else inputs.maps(public[0])
        if chosen == "public" and public_rows is not None:
            extra = standardised(public_rows)
            inputs = replace(inputs, maps=RowMaps([*inputs.maps.maps, extra]))
            public_rows = extra(public_rows)
        view = inputs.maps(Scaled.of(X))
        if any(getattr(item, "bias", 0.0) for item in inputs.buys):  # the column that the bought map will fill
            view = view.with_constant()
        objective, buys, assumptions = self._objective(view, y, weight)
        if public is not None:
            assumptions = (PUBLIC, *assumptions)
        if self._private:
            assumptions = (DECLARED, *learned, *guessed, *assumptions)
        facts = self._public_facts(view.shape[0], view.shape[1], is_sparse(X))
        facts["scale"] = "none" if chosen == "public" or not self._private else chosen
        learnt_from, labelled = None, self._labelled(public, public_rows, view.shape[1])
        if public_rows is not None:
            rows = public_rows.plain() if public_rows.shape[1] == view.shape[1] else None
            learnt_from = rows if labelled is None or rows is None else (rows, labelled[1])
        assumed = (*inputs.assumptions, *assumptions)
        leaks = tuple(fact for fact in assumed if isinstance(fact, Leak))
        rest = tuple(fact for fact in assumed if not isinstance(fact, Leak))
        return Posed(objective, inputs, (*inputs.buys, *buys), rest, facts, learnt_from, leaks, labelled)

    def _labelled(self, public: Any, view: Scaled | None, columns: int) -> tuple[Any, Any, Any] | None:
        """Labelled public rows as the private ones are seen before anything is bought, their targets and weights."""
        if view is None or public[1] is None:
            return None
        rows = view.with_constant() if view.shape[1] < columns else view  # the column that a bought map fills
        return rows, self._targets(public[1]), self._public_weights(public[1])

    def _started(self, problem: Posed, choice: Choice) -> Posed:
        """The problem with a start from labelled public rows, where the run has a place for one."""
        takes = self._private and choice.direct and not (choice.of and choice.of.needs) and not self.as_published
        if problem.labelled is None or not takes:
            return replace(problem, labelled=None)
        return replace(problem, assumptions=tuple(dict.fromkeys((*problem.assumptions, STARTED))))

    def _public_weights(self, y: Any) -> Tensor | None:
        """What the losses of public rows are multiplied by."""
        return None

    def _bought_scale(self, X: Any, chosen: str) -> str:
        """The scale that will be bought: centred columns bring an intercept of their own."""
        buys = self._named_algorithm is None or "scale" in self._named_algorithm.parameters
        if not self._private or chosen != "auto" or not buys:
            return chosen if self._private else "none"
        planned = self._planned(self._public_facts(X.shape[0], X.shape[1], is_sparse(X)), exact=False)
        if not planned.choices:
            return "none"
        return str(planned.best.arguments.get("scale", "none"))

    def _many(self, n: int, d: int) -> bool:
        """Whether there are so many records that rows which are shortened would bend more than their noise."""
        n = self._records(n)
        return n * mu_of(self.epsilon, self._delta(n), self._adjacency) >= CONSTANTS.clip_b * d

    def _public_facts(self, n: int, d: int, sparse: bool) -> dict[str, Any]:
        """Public facts of the problem."""
        features = self.features if self._private else "linear"
        facts = {"n": self._records(n), "d": d, "sparse": sparse, "features": features, **self._loss_facts()}
        return {**facts, "ranged": self.bounds is not None or self.data_norm is None and self.public is None}

    def _scale(self, X: Any, public: Any) -> str:
        """Where column scales come from: as asked, or public rows where they tell more than the budget would buy."""
        if self.scale == "auto" and self._private and not self.fit_intercept and not is_sparse(X):
            return "none"  # centred columns have an intercept; those of CSR rows are scaled, not centred
        if self.scale != "auto" or public is None or not self._private:
            return self.scale
        free = self.constraint is None and not (self.l1 or self.l2)
        if not free or not (self._named_algorithm is None or self._named_algorithm.direct):
            return self.scale
        n = self._records(X.shape[0])
        mu = mu_of(self.epsilon, self._delta(n), self._adjacency)
        # with less even scaled columns drown in noise; with more all records tell the scale better than a few rows
        told = not is_sparse(X) and X.shape[1] <= SMALL and 3 * X.shape[1] <= n * mu <= 8 * public[0].shape[0]
        if told and self._bought_scale(X, "auto") != "shapes":
            return "public"
        return self.scale

    def _public_rows(self, d: int) -> tuple[Any, Any] | None:
        if self.public is None:
            return None
        labelled = isinstance(self.public, tuple)
        X, y = self.public if labelled else (self.public, None)
        X = as_matrix("public", X if is_sparse(X) else np.asarray(X, dtype=np.float64))
        validate.check(X.shape[1] == d, "public", tuple(X.shape), f"give public rows with {d} columns")
        same = y is None or len(y) == X.shape[0]
        remedy = "give one target for each public row"
        validate.check(same, "public", f"{X.shape[0]} rows, {0 if y is None else len(y)} targets", remedy)
        if X.shape[0] > PUBLIC_ROWS:  # directions are found anew every few rounds, at a cost of rows^2
            some = np.random.default_rng(0).permutation(X.shape[0])[:PUBLIC_ROWS]
            X, y = take(X, torch.from_numpy(some)), None if y is None else np.asarray(y)[some]
        return X, y

    # ------------------------------------------------------------ what is stored, and new rows

    def _store(self, problem: Posed, result: Any) -> None:
        maps = () if result.transform is None else tuple(result.transform.maps)
        self._maps = RowMaps([*problem.inputs.maps.maps, *maps])
        point = result.x if result.x is not None else result.average
        self._weights = point.detach().double().view(self._outputs, -1).T.contiguous()
        weight, offset = self._maps.affine(self.n_features_in_)
        p = self.n_features_in_
        self._set_coefficients(
            (self._weights[:p] * weight[:, None]).T.numpy().copy(), (offset @ self._weights).numpy().copy()
        )
        statement = result.privacy
        if statement is not None:
            leaks = tuple(dict.fromkeys((*problem.leaks, *statement.leaks)))
            # a partial fit goes on from its own last round, and rounds that a kill lost are counted below
            others = [text for text in statement.assumptions if not text.startswith(GONE)]
            statement = replace(statement, assumptions=(*problem.assumptions, *others), leaks=leaks)
            statement_of_ledger = partial(self._with_lost_rounds, statement, result.state)
            statement = self._ranks.statement(statement_of_ledger)
            if self.n is None and statement.n is None:  # the size of a first partial fit stands in every divisor
                assumption = "the number of records of the first call is public, and stands for the later ones"
                statement = replace(statement, n=problem.facts["n"], assumptions=(assumption, *statement.assumptions))
        self._state(statement)

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
            return replace(statement, private=False, epsilon=math.inf, nominal=charged, noise=SEEDED)
        if charged <= statement.epsilon:
            return statement
        return replace(statement, event=event_json.to_json(event), epsilon=charged, nominal=charged, releases=())

    @property
    def _tallied(self) -> bool:
        """Whether the run keeps a ledger of its own beside its checkpoint."""
        ledger = self.ledger
        plain = (
            ledger is None
            or isinstance(ledger, (str, os.PathLike))
            or (type(ledger) is Ledger and ledger.label is None)
        )
        return self.checkpoint is not None and plain

    def _margins(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = opened(X)[0]
        if isinstance(X, Streamed):
            X, _ = read_table(self, X, None, reset=False)
        else:
            X = checked(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        rows = as_rows(X)
        step = max(1, CHUNK_BYTES // (8 * len(self._weights)))  # smooth features are a copy: some rows at a time
        parts = (rows[lo : lo + step] for lo in range(0, max(rows.shape[0], 1), step))
        return np.concatenate([matmul(self._maps(Scaled.of(part)), self._weights).numpy() for part in parts])

    def effects(self) -> dict[str, Curve]:
        """What each column adds to the prediction (a classifier: to the log-odds), as curves (x, y) by its name.

        A model with smooth features is additive: its prediction is a constant plus one curve a column, less its mean
        over the knots.  `coef_` holds the straight part of each; a linear model has the line through 0, at -1 and 1.
        Curves hold for rows that are not shortened.  They are made from the model alone and cost nothing.
        """
        check_is_fitted(self)
        maps = list(self._maps.maps)
        names = self._names()
        if not maps or not isinstance(maps[-1], SmoothMap):
            ends, slopes = np.array([-1.0, 1.0]), np.atleast_2d(self.coef_)
            return {name: (ends, np.outer(ends, slopes[:, j]).squeeze()) for j, name in enumerate(names)}
        last = maps[-1]
        weight, offset = RowMaps(maps[:-1]).affine(self.n_features_in_)
        whole = math.hypot(last.limit, last.bias)
        curves = {}
        for j, name in enumerate(names):
            mine = (last.columns == j).nonzero()[:, 0]
            x = (last.knots * last.reach - offset[j]) / weight[j]
            curve = last.values[mine].T @ self._weights[mine] / whole
            curves[name] = x.numpy(), self._in_units(curve - curve.mean(0))
        return curves

    def _names(self) -> tuple[str, ...]:
        """The names of the columns."""
        if hasattr(self, "feature_names_in_"):
            return tuple(map(str, self.feature_names_in_))
        return tuple(f"x{j}" for j in range(self.n_features_in_))

    def _in_units(self, margins: Tensor) -> np.ndarray:
        """What is added to a margin, in the units of the prediction: one number each, or one for every class."""
        values = margins.numpy()
        if values.shape[1] == 1:
            return values[:, 0]
        return values

    def budget_curve(self, points: int = 20) -> list[tuple[int, float]]:
        """(round, epsilon of so many rounds fixed beforehand) of the fit; what was bought before them is in all."""
        check_is_fitted(self)
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
        return intervals.coefficient_intervals(self, level, residual_sd)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file without pickle; `isthmus.estimators.load` reads it."""
        stored.save(self, path)

    # ------------------------------------------------------------ what follows from the parameters alone

    @property
    def _private(self) -> bool:
        return self.epsilon != math.inf

    @property
    def _named_algorithm(self) -> Algorithm[Any] | None:
        """The algorithm that was asked for; None leaves it to the planner."""
        if isinstance(self.algorithm, str):
            return KNOWN.get(self.algorithm)
        return algorithm_of(self.algorithm)

    @property
    def _repeatable(self) -> bool:
        """Whether two fits are alike: never with secret noise."""
        return self.random_state is not None and (not self._private or self.noise_seed is not None)

    @property
    def _adjacency(self) -> Adjacency:
        return Adjacency(self.adjacency)

    @contextmanager
    def _together(self, group: Any) -> Iterator[None]:
        """A fit by all ranks of a group; a fitted model knows of none."""
        self._ranks = RankGroup.of(group)
        try:
            with self._ranks.joined("fit"):
                yield
        finally:
            del self._ranks

    def _records(self, n: int) -> int:
        """The public number of records: as declared, that of the first partial fit, that of all ranks, or n."""
        return self.n or self._first or self._ranks.whole or n

    def _seed(self) -> int:
        if self.random_state is None:
            return secret.randbits(31)
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_parameters(self) -> None:
        if self.epsilon != math.inf:
            validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.open_unit(delta=self.delta)
        loss_of(self.loss, self._LABELS)
        if isinstance(self.algorithm, str):
            validate.one_of(["auto", *KNOWN], algorithm=self.algorithm)
        validate.non_negative(l1=self.l1, l2=self.l2)
        validate.one_of(SCALES, scale=self.scale)
        validate.one_of(FEATURES, features=self.features)
        smooth = self.features == "smooth" and self.scale not in ("auto", "shapes")
        validate.check(not smooth, "features", "smooth", "leave out scale: smooth features bring their own")
        validate.check(
            self.scale != "public" or self.public is not None, "scale", "public", "give the public rows: public=X"
        )
        centred = self.scale in ("moments", "shapes", "public") or self.features == "smooth"
        validate.check(
            self.fit_intercept or not centred,
            "fit_intercept",
            False,
            'leave it out, or use scale="columns" or "none": centred columns have an intercept',
        )
        for name in ("clip", "step", "max_weight"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                validate.positive(**{name: value})
        for name in ("max_iter", "batch_size", "n", "partial_calls"):
            if getattr(self, name) is not None:
                validate.positive_int(**{name: getattr(self, name)})
        validate.one_of([*Adjacency, *(member.value for member in Adjacency)], adjacency=self.adjacency)
        check_bounds(self.bounds, self.data_norm)
        forced = self._named_algorithm is None and self.as_published
        validate.check(
            not forced,
            "as_published",
            True,
            'name the algorithm that is to run as published, such as algorithm="priv_sgd"',
        )

    def _opened_ledger(self) -> Any:
        if not self._ranks.leads:
            return None
        return opened_ledger(self.ledger, self._adjacency)

    def _checked_weights(self, weight: Any, n: int) -> np.ndarray | None:
        if weight is None:
            return None
        values = _check_sample_weight(weight, np.empty((n, 1)), dtype=np.float64)
        good = bool((values >= 0).all())
        validate.require(good, "sample_weight holds a negative number: give weights of 0 or more")
        return np.minimum(values, self.max_weight) / self.max_weight

    @property
    def _target_map(self) -> tuple[float, float]:
        """Shift and width of what is predicted, in units of what is learned."""
        return 0.0, 1.0

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = not self._repeatable
        return tags

    def _loss_facts(self) -> dict[str, Any]:
        return {"loss": self._kind}

    def _checkpointed(self) -> State | None:
        if self.checkpoint is None or not Path(self.checkpoint).exists():
            return None
        there = not (self._private and self._tallied) or Path(f"{self.checkpoint}.ledger").exists()
        remedy = "restore the file <checkpoint>.ledger, which has what this run has spent, or remove both to begin anew"
        validate.check(there, "checkpoint", str(self.checkpoint), remedy)
        return State.load(self.checkpoint)

    def _check_scale(self, choice: Choice) -> None:
        """Refuse a scale that was asked for and would not be bought."""
        required = self._private and self.scale in ("columns", "moments")
        remedy = 'leave it out: only algorithm="dp_gd" buys scales, and not over a set'
        validate.check(not required or choice.arguments.get("scale") == self.scale, "scale", self.scale, remedy)

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        X, y = opened(X, y)
        several = self._ranks.several
        if isinstance(X, Streamed):
            X, y = read_table(self, X, y, reset)
        else:
            if is_frame(X):
                check_numbers_only(X)
            options = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": 1 - several}
            X, y = checked(self, X, y, y_numeric=not self._LABELS, reset=reset, **options)
        X = as_rows(X)
        if several:
            X, self._ranks = self._ranks.rows(X, list(getattr(self, "feature_names_in_", ())))
        return X, y
