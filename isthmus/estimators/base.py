"""What both estimators share: parameters, the private fit, the margins of new rows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from isthmus.algorithms.before import buying
from isthmus.algorithms.constants import CONSTANTS
from isthmus.algorithms.public_start import starting
from isthmus.algorithms.purchases import Purchase
from isthmus.base import validate
from isthmus.base.arrow import opened
from isthmus.base.matrix import CHUNK_BYTES, as_matrix, is_sparse, matmul, take
from isthmus.base.streamed import Streamed
from isthmus.core.minimize import Binding, Recipe, minimize
from isthmus.core.pipeline import Pipeline
from isthmus.core.spending import GONE, unspent
from isthmus.core.state import State
from isthmus.estimators import intervals, stored, turns
from isthmus.estimators.effects import Curve, effects, in_order
from isthmus.estimators.inputs import (
    Inputs,
    as_rows,
    checked,
    inputs_of,
    prefers_public_scale,
    read_table,
    standardised,
    threads_for,
)
from isthmus.estimators.leaks import learned_before, warn_of_repeated_fits
from isthmus.estimators.notebook import ShowsGuarantee
from isthmus.estimators.parameters import Parameters
from isthmus.estimators.watching import Watcher
from isthmus.planner import Choice, Plan, plan
from isthmus.privacy import Ledger, PrivacyStatement, compose, event_json
from isthmus.privacy.accounting import epsilon_of
from isthmus.privacy.budget import mu_of
from isthmus.privacy.leaks import Leak
from isthmus.privacy.noise import SEEDED
from isthmus.problems.scaling import RowMaps, Scaled
from isthmus.tables.encoder import check_numbers_only
from isthmus.tables.frames import is_frame

DECLARED = "what was declared about the data (its columns, classes, bounds, norms, ranges) is public knowledge"
PUBLIC = "the rows given as public are public, and none of the private records is among them"
STARTED = "the labels of the public rows were used: the fit starts at a model of these rows alone, which costs nothing"
PUBLIC_ROWS = 1000
"""More public rows than this are sampled."""


@dataclass(frozen=True)
class Posed:
    """One problem, ready to be planned: its objective, what is bought first, what is assumed, what was read off.

    public    the public rows as algorithms learn from them; `labelled` as a start is fitted: rows, targets, weights
    """

    objective: Any
    inputs: Inputs
    buys: tuple[Purchase, ...]
    assumptions: tuple[str, ...]
    facts: dict[str, Any]
    public: Any = None
    leaks: tuple[str, ...] = ()
    labelled: tuple[Any, Any, Any] | None = None


@dataclass(eq=False, repr=False)
class PrivateLinear(ShowsGuarantee, Parameters):
    """The private fit of a linear model; see `PrivateClassifier` and `PrivateRegressor`."""

    _calls: int = field(init=False)
    _partial_state: State = field(init=False)

    # ------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, group: Any = None) -> Any:
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
            self._train(X, y, sample_weight, calls=1, state=self._crew.state(self._checkpointed))
        return self

    def _partial(self, X: Any, y: Any, sample_weight: Any, group: Any) -> Any:
        with self._together(group):
            self._check_parameters()
            first = not hasattr(self, "_calls")
            X, y = self._read(X, y, reset=first)
            self._first = self._records(X.shape[0])
            state = None if first else self._partial_state
            past, calls = 0 if first else self._calls, self.partial_calls
            run, charged = self._run_of_calls(first)
            remedy = f"fit again, or plan more calls: partial_calls={calls} share the budget, and all of them were made"
            validate.require(past < calls, f"Call {past + 1} of partial_fit is one too many: {remedy}")
            counted = bool(charged) or not self._private
            claim = None if counted else partial(turns.take, run, past)
            self._train(X, y, sample_weight, calls=calls, state=state, past=past, claim=claim)
        parts = {**self.result_.state.parts, **self._assumed}
        self._calls, self._partial_state = past + 1, self.result_.state.replace(parts=parts)
        self._run, self._charged = run, charged
        return self

    def _run_of_calls(self, first: bool) -> tuple[str | None, Any]:
        """The name of this run of partial fits, and the ledger that counts all of it: that of the first call."""
        ledger = self._opened_ledger()
        own = "" if ledger is None else turns.identity(ledger)
        if first:
            return turns.begin(), own
        charged = getattr(self, "_charged", "")
        remedy = "give the ledger that earlier calls were charged to again, set_params(ledger=...): this is another one"
        same = not charged or charged == own or (charged is True and bool(own))  # True: stored without its identity
        validate.check(same, "ledger", self.ledger, remedy)
        return getattr(self, "_run", None), charged

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
        problem = _after(problem, {} if state is None else state.parts)
        facts: dict[str, Any] = {"public": problem.public, "before": sum(item.share for item in problem.buys)}
        planned = self._planned(problem.facts, exact=self._named_algorithm is not None, **facts)
        named = self._named_algorithm
        choice = planned.best if named is None else planned.choice(named.name)
        if named is None and choice.batch_size is not None:  # its noise was known to first order only
            choice = self._planned(problem.facts, True, [choice.of], **facts).choice(choice.name)
        self._check_scale(choice)
        problem = self._started(problem, choice)
        assumed = {"assumptions": list(problem.assumptions), "leaks": list(problem.leaks)}
        rounds = choice.rounds * calls
        if not choice.direct and not problem.buys:
            problem = replace(problem, objective=problem.objective.with_inputs(problem.objective.X.plain()))
        recipe = self._recipe(problem, choice, planned.facts.smooth, calls)
        history: list[dict[str, Any]] = []
        checkpoint = self.checkpoint if self._crew.leads else None
        if claim is not None:
            claim()
        spending = self._spending() if self._private else {}
        with threads_for(X.shape[0] * X.shape[1]):
            result = minimize(
                problem.objective,
                recipe,
                self.constraint,
                steps=rounds,
                seed=self._crew.lead(self._seed),
                clients=self._crew.holding(problem.objective),
                resume=state,
                record=1,
                callbacks=[Watcher(history, choice, (past + 1) * choice.rounds, rounds, checkpoint, assumed)],
                progress=bool(self.verbose),
                **spending,
            )
        self._paid = turns.identities(spending.get("ledger"))
        self.plan_, self.choice_, self.result_, self._assumed = planned, choice, result, assumed
        self._planned_rounds = rounds
        self.history_, self.seconds_, self.n_iter_ = history, time.perf_counter() - began, result.state.t
        self._store(problem, result)

    def _recipe(self, problem: Posed, choice: Choice, smooth: float, calls: int) -> Any:
        options = dict(self.options or {})
        if self.as_published:
            options["as_published"] = True
        if self.clip is not None and self._private and "clip" in choice.arguments:
            options["clip"] = self.clip
        n = "exact" if self.n is None and calls == 1 else (self.n or problem.facts["n"])
        arguments = {"n": n} if self._private else {}
        planned = choice.arguments.get("step") if choice.batch_size is None else None
        if not self._private and planned is not None and self.step is None:  # the data may be looked at
            curvature = getattr(problem.objective, "curvature", None) or 1.0
            longest = problem.facts["n"] / (curvature * max(self._crew.top_eigenvalue(problem.objective.X), 1e-12))
            options.setdefault("step", longest * (planned * smooth))
        recipe = choice.recipe(public=problem.public, constraint=self.constraint, **arguments, **options)
        recipe = self._promised(recipe) if self._private else recipe
        recipe = buying(recipe, problem.buys, copy=not choice.direct) if problem.buys else recipe
        return starting(recipe, *problem.labelled) if problem.labelled is not None else recipe

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
        if self._tallied and self._crew.leads:
            own, label = f"{self.checkpoint}.ledger", Path(self.checkpoint).name
            ledger = Ledger(own, math.inf, shared=ledger, label=label, adjacency=self._adjacency)
        return {"ledger": ledger, "noise_seed": self.noise_seed}

    def _planned(self, facts: dict[str, Any], exact: bool, names: list[Any] | None = None, **more: Any) -> Plan:
        named = self._named_algorithm
        names = [named] if names is None and named is not None else names
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
        learned = learned_before() if self._private or self._crew.several else ()
        remedy = "put steps that learn nothing before the model: each rank's steps would learn from its own rows alone"
        validate.check(not learned or not self._crew.several, "group", [*map(str, learned)], remedy)
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
            crew=self._crew,
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
        return str(planned.best.arguments.get("scale", "none")) if planned.choices else "none"

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
        prefers_public = prefers_public_scale(n=n, d=X.shape[1], mu=mu, rows=public[0].shape[0], sparse=is_sparse(X))
        return "public" if prefers_public and self._bought_scale(X, "auto") != "shapes" else self.scale

    def _public_rows(self, d: int) -> tuple[Any, Any] | None:
        if self.public is None:
            return None
        labelled = isinstance(self.public, tuple)
        X, y = self.public if labelled else (self.public, None)
        X = as_matrix("public", X if is_sparse(X) else np.asarray(X, dtype=np.float64))
        validate.check(X.shape[1] == d, "public", tuple(X.shape), f"give public rows with {d} columns")
        same = y is None or len(y) == X.shape[0]
        validate.check(
            same,
            "public",
            f"{X.shape[0]} rows, {0 if y is None else len(y)} targets",
            "give one target for each public row",
        )
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
            statement = self._crew.statement(statement_of_ledger)
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

        A model with smooth features is additive: its prediction is a constant plus one curve a column.  `coef_` holds
        the straight part of each.
        """
        check_is_fitted(self)
        return effects(self)

    def _in_units(self, margins: Tensor) -> np.ndarray:
        """What is added to a margin, in the units of the prediction."""
        return in_order(margins)

    def budget_curve(self, points: int = 20) -> list[tuple[int, float]]:
        """(round, epsilon of so many rounds fixed beforehand) of the fit; what was bought before them is in all."""
        check_is_fitted(self)
        if self.privacy_ is None or not math.isfinite(self.privacy_.nominal):
            return []
        leaves, last = list(event_json.flatten(self.privacy_.event)), getattr(self, "_planned_rounds", self.n_iter_)
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
        several = self._crew.several
        if isinstance(X, Streamed):
            X, y = read_table(self, X, y, reset)
        else:
            if is_frame(X):
                check_numbers_only(X)
            options = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": 1 - several}
            X, y = checked(self, X, y, y_numeric=not self._LABELS, reset=reset, **options)
        X = as_rows(X)
        if several:
            X, self._group = self._crew.rows(X, list(getattr(self, "feature_names_in_", ())))
        return X, y


def _after(problem: Posed, earlier: Mapping[str, Any]) -> Posed:
    """The problem with what rounds already made rest on, and what was read from the data for them."""
    assumptions = dict.fromkeys((*earlier.get("assumptions", ()), *problem.assumptions))
    leaks = dict.fromkeys((*earlier.get("leaks", ()), *problem.leaks))
    return replace(problem, assumptions=tuple(assumptions), leaks=tuple(leaks))
