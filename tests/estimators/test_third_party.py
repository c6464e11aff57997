"""Losses, recipes and sets that somebody else wrote: planned, fitted, saved and loaded like the library's own."""

import math
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from estimator_tables import PLAIN, X, classifier, labelled, numbered, regressor, y
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import Tensor

from isthmus import InvalidInput, LeastSquares, Logistic, PrivateClassifier, PrivateSearch, algorithms, plan
from isthmus.algorithms import KNOWN, Algorithm, Budget, algorithm, filling, rounds_of
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.estimators import load, save
from isthmus.objectives import LinearModel, linear, targets
from isthmus.parts import Step
from isthmus.privacy import Charge, Clip
from isthmus.sets import ConvexSet, L2Ball


class Probit(LinearModel):
    """-log Phi(y z): a classifier of two classes."""

    reads, curvature, slope_bound, default_clip = targets.SignedLabels, 1.0, None, 0.8

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        return -torch.special.log_ndtr(y * z)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        return -y * torch.exp(-(z**2) / 2 - torch.special.log_ndtr(y * z)) / math.sqrt(2 * math.pi)


class Absolute(LinearModel):
    """|z - y|, with a name of its own."""

    name, slope_bound = "absolute", 1.0

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        return (z - y).abs()

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.sign(z - y)


class Bare(Absolute):
    """Says nothing of its slopes."""

    slope_bound = None


@algorithm(words="each round adds up all records and adds noise")
def my_gd(
    *,
    epsilon: float,
    delta: float | None = None,
    clip: float,
    step: float,
    n: int | str | None = None,
    adjacency: str = "add-remove",
) -> Recipe:
    """Noisy gradient descent."""
    budget = Budget(epsilon, delta, adjacency, n)

    def build(binding: Binding) -> Pipeline:
        sampler = budget.sampler(binding, None)
        rounds = rounds_of(binding, sampler, budget.records(binding))
        split = budget.plan(binding, [Charge("gradient", rounds=rounds, sampler=sampler)])
        release = Release(clip=Clip(clip), mechanism=split.mechanism("gradient"))
        update, promise = Step(binding.constraint, binding.penalty), budget.promise(split, binding)
        return Pipeline([Stage(sampler, [release])], lambda t: step, update, rounds=rounds, promise=promise)

    return Recipe("my_gd", build, {"clip": clip, "step": step})


def bare_sgd(*, epsilon: float, clip: float, step: float, batch_size: int, n: Any, output: str = "last") -> Recipe:
    """Not declared, and without a delta: DP-SGD under another name."""
    made = algorithms.dp_sgd(epsilon=epsilon, clip=clip, step=step, batch_size=batch_size, n=n, output=output)
    return Recipe("bare_sgd", made.build)


def bare_narrow(*, epsilon: float, delta: float, m: int, clip: float, step: float, n: Any, adjacency: str) -> Recipe:
    return algorithms.priv_sgd(epsilon=epsilon, delta=delta, m=m, clip=clip, step=step, n=n, adjacency=adjacency)


def bare_gd(*, step: float) -> Recipe:
    return algorithms.gd(step=step)


def careless(*, epsilon: float, step: float) -> Recipe:
    """Takes a budget and ignores it."""
    return algorithms.gd(step=step)


def generous(*, epsilon: float, clip: float, step: float, n: Any) -> Recipe:
    """Spends ten times what it is given."""
    return algorithms.dp_gd(epsilon=10 * epsilon, clip=clip, step=step, n=n)


@dataclass(frozen=True)
class HalfBall(ConvexSet):
    """The l2 ball of half a radius."""

    radius: float = 1.0

    def _project(self, x: Tensor) -> Tensor:
        return L2Ball(self.radius / 2)._project(x)

    def _gauge(self, x: Tensor) -> float:
        return L2Ball(self.radius / 2)._gauge(x)


# ---------------------------------------------------------------- losses


def test_the_seven_losses_are_known_by_their_names() -> None:
    seven = {"logistic", "softmax", "hinge", "smooth_hinge", "squared", "huber", "poisson"}
    assert seven <= set(linear.known_losses()) and linear.known_losses()["absolute"] is Absolute
    assert linear.loss_of("logistic") is Logistic and linear.loss_of(Probit) is Probit
    assert not {"absolute", "squared"} & set(linear.known_losses(labels=True))


def test_a_name_is_not_taken_over_by_a_subclass_or_another_class() -> None:
    class Mine(Logistic):
        """Has the name of its base class by inheritance."""

    class Other(LeastSquares):
        """States a name that is taken."""

        name = "squared"

    assert linear.loss_of("logistic") is Logistic and linear.loss_of("squared") is LeastSquares
    assert plan(n=1000, d=4, epsilon=1.0, loss=Mine, exact=False).facts.loss_name == "Mine"
    assert linear.loss_of(Other) is Other


def test_a_plan_asks_the_loss() -> None:
    ranked = plan(n=5000, d=20, epsilon=1.0, loss=Probit, algorithms=["dp_sgd"], exact=False)
    assert ranked.best.arguments["clip"] == 0.8 and ranked.facts.smooth == 1.0
    assert "Probit loss" in ranked.words() and ranked.to_dict()["facts"]["loss"] == "Probit"
    named = plan(n=5000, d=20, epsilon=1.0, loss="absolute", algorithms=["dp_sgd"], exact=False)
    assert named.best.arguments["clip"] == 1.0 and named.facts.tau < ranked.facts.tau  # numbers stand less noise
    rough = {"n": 5000, "d": 20, "epsilon": 1.0, "exact": False}
    assert plan(**rough, loss=Logistic).to_json() == plan(**rough).to_json()


def test_a_loss_that_says_nothing_of_its_slopes_needs_a_clip() -> None:
    with pytest.raises(InvalidInput, match="give clip=, because Bare states neither default_clip nor slope_bound"):
        plan(n=5000, d=20, epsilon=1.0, loss=Bare)
    assert plan(n=5000, d=20, epsilon=1.0, loss=Bare, clip=0.4, algorithms="dp_sgd").best.arguments["clip"] == 0.4


def test_estimators_fit_a_loss_of_somebody_else() -> None:
    X, y = labelled(3000)
    model = classifier(loss=Probit, epsilon=3.0, max_iter=60, step=0.5).fit(X, y)
    assert model.score(X, y) > 0.9 and model.choice_.arguments["clip"] == 0.8 and not hasattr(model, "predict_proba")
    X, y = numbered(3000)
    for loss in (Absolute, "absolute"):
        fitted = regressor(loss=loss, epsilon=3.0, max_iter=100, step=0.1).fit(X, y)
        assert fitted.score(X, y) > 0.8 and fitted.plan_.facts.loss_name == "absolute"


def test_a_loss_of_counts_has_a_log_link() -> None:
    class Tweedie(LinearModel):
        """exp(z) - y z."""

        reads, default_clip = targets.CountTargets, 0.3

        def losses(self, z: Tensor, y: Tensor) -> Tensor:
            return z.exp() - y * z

        def slopes(self, z: Tensor, y: Tensor) -> Tensor:
            return z.exp() - y

    X, y = numbered()
    ours = regressor(loss=Tweedie, target_bounds=(0, 15)).fit(X, abs(y))
    theirs = regressor(loss="poisson", target_bounds=(0, 15)).fit(X, abs(y))
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)


def test_wrong_losses_are_refused() -> None:
    for wrong, named in ((Absolute, "a loss of labels"), ("squared", "loss='squared'"), (dict, "subclass of LinearM")):
        with pytest.raises(InvalidInput, match=named):
            classifier(loss=wrong).fit(X, y)
    with pytest.raises(InvalidInput, match="a loss of numbers"):
        regressor(loss=Probit).fit(X, y)


def test_more_than_two_classes_need_a_loss_that_extends_it() -> None:
    X, y = labelled(classes=3)
    with pytest.raises(InvalidInput, match="declare a loss with extends = Probit"):
        classifier(loss=Probit, classes=[0, 1, 2]).fit(X, y)

    class ManyProbit(linear.Softmax):
        """Stands in for one."""

        name, extends = "", Probit

    assert linear.loss_for(Probit, 3) is ManyProbit
    assert len(classifier(loss=Probit, classes=[0, 1, 2]).fit(X, y).coef_) == 3


# ---------------------------------------------------------------- recipes


def test_every_recipe_is_known_and_looks_like_its_function() -> None:
    exported = {name for name in algorithms.__all__ if isinstance(getattr(algorithms, name), Algorithm)}
    assert exported == set(KNOWN) and all(made.__name__ == name and made.__doc__ for name, made in KNOWN.items())
    assert algorithms.dp_sgd(epsilon=1.0, clip=1.0, step=0.1, n="exact").name == "dp_sgd"


@pytest.mark.parametrize("recipe", [my_gd, bare_sgd, bare_narrow])
def test_a_plan_fills_a_recipe_by_its_signature(recipe: Any) -> None:
    ranked = plan(n=2000, d=200, epsilon=1.0, algorithms=["dp_gd", recipe])
    choice = ranked.choice(recipe.__name__)
    assert ranked.best.algorithm == "dp_gd" and choice is ranked.choices[-1]  # what was never measured comes last
    assert choice.arguments["clip"] == 0.5 and choice.noise_multiplier is not None and "not measured" in choice.evidence
    assert choice.recipe().name in (recipe.__name__, "priv_sgd")
    assert choice.arguments.get("m", 50) == 50 and choice.arguments.get("batch_size", 20) == 20
    assert pickle.loads(pickle.dumps(ranked)).to_json() == ranked.to_json()


def test_what_a_recipe_is_filled_with_is_what_dp_sgd_gets() -> None:
    ours = plan(n=2000, d=20, epsilon=1.0, algorithms=[bare_sgd]).best
    theirs = plan(n=2000, d=20, epsilon=1.0, algorithms=["dp_sgd"]).best
    assert {**theirs.arguments, "output": "last"} == dict(ours.arguments)
    assert (ours.noise_multiplier, ours.margin_noise) == (theirs.noise_multiplier, theirs.margin_noise)


def test_a_recipe_without_a_budget_is_for_runs_without_one() -> None:
    assert "not private" in plan(n=500, d=5, epsilon=1.0, algorithms=[bare_gd, my_gd]).refused["bare_gd"]
    assert "finite epsilon" in plan(n=500, d=5, epsilon=math.inf, algorithms=[my_gd, "gd"]).refused["my_gd"]
    free = PrivateClassifier(epsilon=math.inf, algorithm=bare_gd, max_iter=50).fit(X, y)
    plain = PrivateClassifier(epsilon=math.inf, algorithm="gd", options={"momentum": 0.0}, max_iter=50).fit(X, y)
    np.testing.assert_allclose(free.coef_, plain.coef_)


def test_a_filling_of_its_own_is_used() -> None:
    def fill(facts: Any) -> Any:
        if facts.d > 100:
            return filling.Refusal("it is for few columns")
        run = filling.full_run(facts, 0.25, facts.parameters, 7)
        return run.choice({"clip": 0.25, "step": 2.0}, "short")

    made = algorithm(my_gd.function)
    made.filling()(fill)
    choice = plan(n=500, d=5, epsilon=1.0, algorithms=made).best
    assert (choice.name, choice.rounds, choice.arguments["step"]) == ("my_gd (short)", 7, 2.0)
    assert plan(n=500, d=500, epsilon=1.0, algorithms=[made]).refused["my_gd"] == "it is for few columns"


@pytest.mark.parametrize("recipe", [my_gd, bare_sgd, bare_narrow])
def test_estimators_run_a_recipe_of_somebody_else(recipe: Any) -> None:
    X, y = labelled(4000)
    options = {**PLAIN, "algorithm": recipe, "epsilon": 4.0, "max_iter": 40, "batch_size": 4000}
    model = PrivateClassifier(**options, classes=[0, 1], delta=1e-6 if recipe is not bare_sgd else None).fit(X, y)
    assert model.score(X, y) > 0.85 and model.choice_.algorithm == recipe.__name__
    assert model.privacy_.nominal <= 4.0 and model.n_iter_ == 40
    np.testing.assert_array_equal(clone(model).fit(X, y).coef_, model.coef_)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


def test_a_recipe_that_is_dp_gd_gives_what_dp_gd_gives() -> None:
    np.testing.assert_allclose(classifier(algorithm=my_gd).fit(X, y).coef_, classifier().fit(X, y).coef_)
    bought = classifier(algorithm=my_gd, bounds=None).fit(X, y)  # ranges of the columns come out of the same budget
    assert bought.privacy_.nominal <= 1.0 and "ranges" in bought.result_.state.parts["prepare"]


@pytest.mark.parametrize("recipe", [careless, generous])
def test_a_recipe_that_does_not_keep_the_budget_is_refused(recipe: Any, tmp_path: Path) -> None:
    for bounds in ((-2, 2), None):
        model = classifier(algorithm=recipe, bounds=bounds, checkpoint=tmp_path / "state")
        with pytest.raises(InvalidInput, match=r"pass epsilon and delta on to its Budget: .* not the budget it was"):
            model.fit(X, y)
        assert not hasattr(model, "coef_") and not hasattr(model, "result_") and not any(tmp_path.glob("state"))


def test_what_is_no_recipe_is_refused() -> None:
    for wrong in (3, "adam", print, lambda *, epsilon, n: 3):
        with pytest.raises(InvalidInput, match="algorithm="):
            classifier(algorithm=wrong).fit(X, y)


def test_searches_go_over_losses_and_recipes() -> None:
    X, y = labelled(1200)
    grid = {"loss": ["hinge", Probit], "algorithm": ["dp_gd", my_gd]}
    model = PrivateSearch(classifier(noise_seed=None), grid, epsilon=2.0).fit(X, y)
    assert len(model.candidates_) == 4 and model.privacy_.epsilon == 2.0
    free = PrivateClassifier(epsilon=math.inf, max_iter=5, random_state=0)
    search = GridSearchCV(free, {"loss": ["logistic", Probit], "algorithm": ["gd", bare_gd]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8


def test_a_filling_with_a_name_of_its_own_is_planned_again_exactly() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (12_000, 40))
    known = {"max_dims": 8, "smoothness": np.logspace(0, -1, 40).tolist()}
    model = PrivateClassifier(3.0, classes=[0, 1], bounds=(-1, 1), fit_intercept=False, max_iter=20)
    model.set_params(facts=known, batch_size=12_000)
    assert model.fit(X, X[:, 0] > 0).choice_.name == "dp_skgd (M by public smoothness, importance)"


# ---------------------------------------------------------------- files


def test_parts_of_somebody_else_are_stored_by_where_they_were_declared(tmp_path: Path) -> None:
    model = classifier(loss=Probit, algorithm=my_gd, constraint=HalfBall(3.0)).fit(X, y)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.loss, again.algorithm, again.constraint) == (Probit, my_gd, HalfBall(3.0))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.set_params(noise_seed=0).fit(X, y).coef_, model.coef_)


def test_the_librarys_own_parts_are_stored_too(tmp_path: Path) -> None:
    save(classifier(loss=Logistic, algorithm=algorithms.dp_gd).fit(X, y), tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.loss is Logistic and again.algorithm is algorithms.dp_gd


def test_a_recipe_that_was_not_declared_cannot_be_stored(tmp_path: Path) -> None:
    local = algorithm(my_gd.function)
    for recipe in (bare_narrow, local):
        with pytest.raises(InvalidInput, match="declare the recipe in a module"):
            save(classifier(algorithm=recipe).fit(X, y), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_file_imports_nothing(tmp_path: Path) -> None:
    for name, part in {"loss": Probit, "algorithm": my_gd, "constraint": HalfBall(3.0)}.items():
        save(classifier(**{name: part}).fit(*labelled()), tmp_path / name)
    code = (
        "import sys\nfrom isthmus.estimators import load\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "for name in ('loss', 'algorithm', 'constraint'):\n"
        f"    try:\n        load({str(tmp_path)!r} + '/' + name)\n"
        "    except ValueError as error:\n        assert 'import the module' in str(error), error\n"
        "    else:\n        raise SystemExit(1)\n"
        "assert 'test_third_party' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_declared_recipes_are_found_in_a_module() -> None:
    from isthmus.algorithms.filling import find

    assert find(my_gd.address) is my_gd
    assert find("os:system") is None and find("no.such:thing") is None
