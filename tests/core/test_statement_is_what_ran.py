"""Statement = what ran: the events a statement counts are those the mechanisms were asked to release, no more, no less.

Every way to a private release is walked on tiny data.  Recorded, by wrapping `release` of every mechanism, are the
mechanism, the bound and the noise that was really added; by wrapping the round's `close_stage`, which releases look at
one sample; and by wrapping `draw` of every sampler, which samplers drew.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from click.testing import CliRunner
from scipy.stats import norm
from sklearn.linear_model import LinearRegression, LogisticRegression
from statement_recorder import Recorder, counted, listening
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import LeastSquares, Logistic, algorithms, minimize, private_score, private_summary
from isthmus.algorithms.purchases import ClassCounts, Ranges, TargetRange, _Paid, buying
from isthmus.audit import known_bad
from isthmus.cli import main
from isthmus.core.wire import State
from isthmus.engine import GradientEmbedding, PrivacyEngine
from isthmus.estimators import PrivateClassifier, PrivateRegressor, PrivateSearch, load
from isthmus.privacy import AdaptiveClip, Exact, Gaussian, NoisyMax, PrivacyStatement, SecretSource, event_json, joint
from isthmus.privacy.clips import ClippedSum
from isthmus.sets import L1Ball, L2Ball, Simplex
from isthmus.sketches import CountSketch, PublicSubspace, TensorSketch

N, D = 60, 4
Case = Callable[["Recorder", Path], PrivacyStatement]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    yield from listening(monkeypatch)


# ---------------------------------------------------------------- the paths


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    X = draws.uniform(-1, 1, (N, D)) / 2
    return X, (X[:, 0] + 0.1 * draws.standard_normal(N) > 0).astype(int)


def logistic() -> Logistic:
    X, y = table()
    return Logistic(torch.from_numpy(X), torch.from_numpy(2.0 * y - 1), classes=(-1, 1))


def squares() -> LeastSquares:
    X, y = table()
    return LeastSquares(torch.from_numpy(X), torch.from_numpy(y - 0.5))


COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "clip": 0.5, "n": "exact"}
STEP, DENSE = {**COMMON, "step": 0.1}, {"variant": "dense"}
PUBLIC = tuple(torch.from_numpy(each) for each in (table(1)[0], 2.0 * table(1)[1] - 1))
RECIPES: dict[str, tuple[Any, Any]] = {
    "dp_sgd": (algorithms.dp_sgd(**STEP, batch_size=10), None),
    "dp_sgd, estimated n": (algorithms.dp_sgd(**{**STEP, "n": 70}, batch_size=None), None),
    "dp_sgd, replace-one": (algorithms.dp_sgd(**STEP, batch_size=None, adjacency="replace-one"), None),
    "dp_sgd, adaptive": (algorithms.dp_sgd(**{**STEP, "clip": AdaptiveClip(0.5)}, batch_size=None), None),
    "dp_gd": (algorithms.dp_gd(**STEP), None),
    "dp_gd, moments": (algorithms.dp_gd(**COMMON, step="auto", scale="moments"), None),
    "dp_gd, statistics": (algorithms.dp_gd(**COMMON, precondition=True), None),
    "priv_sgd": (algorithms.priv_sgd(**STEP, m=2), L2Ball(1.0)),
    "dp_comp_gd": (algorithms.dp_comp_gd(**STEP, m=2), None),
    "dp_comp_minibatch": (algorithms.dp_comp_minibatch(**STEP, m=2, batch_size=10), None),
    "compressive_dp_sgd": (algorithms.compressive_dp_sgd(**STEP, p=3, kappa=1), None),
    "compressive_dp_sgd, laplace": (algorithms.compressive_dp_sgd(**STEP, p=3, kappa=1, variant="laplace"), None),
    "compressive_dp_sgd, selection": (algorithms.compressive_dp_sgd(**STEP, p=3, kappa=1, variant="selection"), None),
    "compressive_dp_sgd, as published": (algorithms.compressive_dp_sgd(**STEP, p=3, kappa=1, as_published=True), None),
    "compressive_dp_sgd, dense": (algorithms.compressive_dp_sgd(**STEP, **DENSE), None),
    "compressive_dp_sgd, dense as published": (algorithms.compressive_dp_sgd(**STEP, **DENSE, as_published=True), None),
    "dp_subspace_gd": (algorithms.dp_subspace_gd(**COMMON, k=2), None),
    "dp_mirror_descent": (algorithms.dp_mirror_descent(**STEP), Simplex()),
    "dp_skgd": (algorithms.dp_skgd(**COMMON, smoothness=1.0, blocks=2), None),
    "dp_skgd, as published": (algorithms.dp_skgd(**COMMON, smoothness=1.0, blocks=2, as_published=True), None),
    "dp_cd": (algorithms.dp_cd(**COMMON, smoothness=1.0), None),
    "pdp_sgd": (algorithms.pdp_sgd(**STEP, k=2, data=PUBLIC, batch_size=10), None),
    "pdp_sgd, as published": (algorithms.pdp_sgd(**STEP, k=2, data=PUBLIC, batch_size=10, as_published=True), None),
    "rpdp_sgd": (algorithms.rpdp_sgd(**STEP, k=2, batch_size=10), None),
    "dp_svrg": (algorithms.dp_svrg(**STEP, inner=2, batch_size=None), None),
    "dp_fw": (algorithms.dp_fw(**COMMON), L1Ball(1.0)),
    "buying ranges": (buying(algorithms.dp_gd(**STEP), [Ranges()]), None),
    "buying classes": (buying(algorithms.dp_gd(**STEP), [ClassCounts()]), None),
    "buying two": (buying(algorithms.dp_gd(**COMMON, step="auto"), [Ranges(), ClassCounts()]), None),
}
UNSOUND = {
    "priv_sgd": algorithms.priv_sgd(**STEP, m=2, as_published=True),
    "dp_comp_minibatch": algorithms.dp_comp_minibatch(**STEP, m=2, batch_size=N, as_published=True),
}


def recipe(name: str) -> Case:
    def walk(recorder: Recorder, folder: Path) -> PrivacyStatement:
        made, constraint = RECIPES[name]
        return minimize(logistic(), made, constraint, steps=4).privacy

    return walk


def csr_columns(recorder: Recorder, folder: Path) -> PrivacyStatement:
    X, y = table()
    objective = Logistic(sp.csr_array(X), torch.from_numpy(2.0 * y - 1), classes=(-1, 1))
    return minimize(objective, algorithms.dp_gd(**COMMON, step="auto", scale="columns"), steps=3).privacy


def target_range(recorder: Recorder, folder: Path) -> PrivacyStatement:
    return minimize(squares(), buying(algorithms.dp_gd(**STEP), [TargetRange()]), steps=3).privacy


def resumed(recorder: Recorder, folder: Path) -> PrivacyStatement:
    """Stopped, written, read in again and carried to its end; what was bought is bought once."""
    made = buying(algorithms.dp_gd(**STEP), [ClassCounts()])
    stop = lambda record, state: state.t == 2  # noqa: E731
    first = minimize(logistic(), made, steps=5, record=1, callbacks=[stop])
    assert recorder.events() - counted([event_json.from_json(first.privacy.event)]) == Counter()  # at least what ran
    first.state.save(folder / "state")
    return minimize(logistic(), made, steps=5, resume=State.load(folder / "state")).privacy


def classifier(**options: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"epsilon": 1.0, "delta": 1e-5, "classes": [0, 1], "max_iter": 4, **options})


def fitted(make: Callable[[], Any]) -> Case:
    def walk(recorder: Recorder, folder: Path) -> PrivacyStatement:
        X, y = table()
        return make().fit(X, y).privacy_

    return walk


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "classifier, auto": lambda: classifier(),
    "classifier, auto, bounds": lambda: classifier(bounds=(-1, 1)),
    "classifier, dp_gd": lambda: classifier(algorithm="dp_gd", bounds=(-1, 1), scale="moments"),
    "classifier, dp_sgd": lambda: classifier(algorithm="dp_sgd", bounds=(-1, 1), batch_size=30, max_iter=2),
    "classifier, priv_sgd": lambda: classifier(algorithm="priv_sgd", bounds=(-1, 1), options={"m": 2}),
    "classifier, dp_fw": lambda: classifier(algorithm="dp_fw", bounds=(-1, 1), constraint=L1Ball(2.0)),
    "classifier, balanced": lambda: classifier(class_weight="balanced"),
    "regressor, auto": lambda: PrivateRegressor(epsilon=1.0, delta=1e-5, max_iter=4),
    "regressor, dp_gd": lambda: PrivateRegressor(
        epsilon=1.0, delta=1e-5, max_iter=4, algorithm="dp_gd", bounds=(-1, 1), target_bounds=(0, 1)
    ),
}


def partial(recorder: Recorder, folder: Path) -> PrivacyStatement:
    X, y = table()
    model = classifier(partial_calls=2).partial_fit(X, y)
    assert recorder.events() - counted([event_json.from_json(model.privacy_.event)]) == Counter()  # at least what ran
    model.save(folder / "model")
    return load(folder / "model").partial_fit(X, y).privacy_


def checkpointed(recorder: Recorder, folder: Path) -> PrivacyStatement:
    """A fit that died after its third round, and the one that went on from its checkpoint."""
    X, y = table()
    model = classifier(algorithm="dp_gd", bounds=(-1, 1), checkpoint=folder / "state", max_iter=6)

    heard = Gaussian.release
    calls: list[int] = []

    def dying(self: Any, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return heard(self, bounded, noise)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Gaussian, "release", dying)
        model.fit(X, y)
    statement = model.fit(X, y).privacy_
    stated = counted([event_json.from_json(statement.event)])
    assert recorder.events() - stated == Counter()
    lost = sum((stated - recorder.events()).values())
    assert lost <= 1  # the release that was paid for and never made
    recorder.rounds += [event_json.from_json(json.loads(each)) for each in (stated - recorder.events()).elements()]
    return statement


def trained(engine: PrivacyEngine, rounds: int = 3, module: nn.Module | None = None, **options: Any) -> Any:
    X, y = table()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, 2)) if module is None else module
    data = TensorDataset(torch.from_numpy(X).float(), torch.from_numpy(y))
    arguments = {"max_grad_norm": 1.0, "criterion": nn.functional.cross_entropy, **options}
    make = engine.make_private_with_epsilon if "epochs" in options else engine.make_private
    module, optimizer, loader = make(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=20),
        **({} if "epochs" in options else {"noise_multiplier": 1.0}) | arguments,
    )
    return module, optimizer, loader, rounds


def go(module: Any, optimizer: Any, loader: Any, rounds: int) -> None:
    for _, (x, y) in zip(range(rounds), loader, strict=False):
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()


SHOWN = (torch.from_numpy(table(1)[0]).float(), torch.from_numpy(table(1)[1]))
ENGINES: dict[str, dict[str, Any]] = {
    "engine, flat": {},
    "engine, fixed size": {"poisson_sampling": False},
    "engine, per layer": {"clipping": "per_layer", "max_grad_norm": [1.0, 0.5]},
    "engine, adaptive": {"clipping": "adaptive", "target_unclipped_quantile": 0.5},
    "engine, count sketch": {"sketch": CountSketch(5)},
    "engine, tensor sketch": {"sketch": TensorSketch(5)},
    "engine, public subspace": {"sketch": PublicSubspace(2), "public": SHOWN},
    "engine, embedding": {"sketch": GradientEmbedding(PublicSubspace(2), 0.5), "public": SHOWN},
    "engine, micro-batches": {"micro_batch_size": 2},
}


def engine(name: str) -> Case:
    def walk(recorder: Recorder, folder: Path) -> PrivacyStatement:
        engine = PrivacyEngine()
        go(*trained(engine, **ENGINES[name]))
        return engine.statement(1e-5)

    return walk


def engine_planned(recorder: Recorder, folder: Path) -> PrivacyStatement:
    engine, target = PrivacyEngine(), {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": 1}
    go(*trained(engine, module=nn.Linear(D, 2), poisson_sampling=False, **target))
    return engine.statement(1e-5)


def engine_loaded(recorder: Recorder, folder: Path) -> PrivacyStatement:
    """Training that is saved, and goes on in a fresh engine with a ledger of its own."""
    first, second = PrivacyEngine(), PrivacyEngine()
    run = trained(first, 2)
    go(*run)
    first.save_checkpoint(path=folder / "checkpoint", module=run[0], optimizer=run[1])
    again = trained(second, 1)
    second.load_checkpoint(path=folder / "checkpoint", module=again[0], optimizer=again[1])
    go(*again)
    return second.statement(1e-5)


def cli_train(*options: str) -> Case:
    def walk(recorder: Recorder, folder: Path) -> PrivacyStatement:
        X, y = table()
        lines = ["a,b,c,d,y", *(",".join([*map(str, row), str(label)]) for row, label in zip(X, y, strict=True))]
        (folder / "people.csv").write_text("\n".join(lines) + "\n")
        bounds = [each for name in "abcd" for each in ("--bounds", f"{name}=-1,1")]
        entries = ["--target", "y", "--classes", "0,1", "--epsilon", "1", "--delta", "1e-5", "--max-iter", "4", *bounds]
        arguments = ["train", str(folder / "people.csv"), *entries, "--out", str(folder / "run"), *options]
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        privacy = json.loads((folder / "run" / "run.json").read_text())["privacy"]
        return PrivacyStatement.from_json(json.dumps(privacy | {"n_public": privacy["n"] is not None}))

    return walk


def scored(recorder: Recorder, folder: Path) -> PrivacyStatement:
    x, y = table()
    model = LogisticRegression().fit(x, y)
    return told(private_score(model, x, y, epsilon=30.0).privacy)


def scored_numbers(recorder: Recorder, folder: Path) -> PrivacyStatement:
    x, y = table()
    scores = private_score(LinearRegression().fit(x, x[:, 0] + y), x, x[:, 0], epsilon=60.0, target_bounds=(-3, 3))
    assert scores.releases == 2
    return told(scores.privacy)


def summarised(recorder: Recorder, folder: Path) -> PrivacyStatement:
    x, y = table()
    columns = {"a": x[:, 0], "b": x[:, 1], "y": [str(each) for each in y.tolist()]}
    schema = {"a": [-3, 3], "b": "number", "y": [str(each) for each in sorted(set(y.tolist()))]}
    return told(private_summary(columns, schema, epsilon=1.0).privacy)


def told(statement: PrivacyStatement | None) -> PrivacyStatement:
    assert statement is not None
    return statement


CASES: dict[str, Case] = {
    **{name: recipe(name) for name in RECIPES},
    "dp_gd, columns": csr_columns,
    "buying targets": target_range,
    "resumed": resumed,
    **{name: fitted(make) for name, make in ESTIMATORS.items()},
    "partial fits, saved and loaded": partial,
    "a fit that died": checkpointed,
    **{name: engine(name) for name in ENGINES},
    "engine, planned": engine_planned,
    "engine, loaded": engine_loaded,
    "train": cli_train(),
    "train, too few to measure": cli_train("--test-fraction", "0.3"),
    "train, measured": cli_train("--epsilon", "60", "--test-fraction", "0.3", "--test-epsilon", "30"),
    "scores": scored,
    "scores of numbers": scored_numbers,
    "summary": summarised,
}


def test_figures_that_the_training_covers_have_at_least_its_noise(recorder: Recorder, tmp_path: Path) -> None:
    """They are not in the statement, for a record is trained on or held out: so each part must cost no more alone."""
    statement = cli_train("--epsilon", "60", "--test-fraction", "0.3")(recorder, tmp_path)
    stated, ran = counted([event_json.from_json(statement.event)]), recorder.events()
    beside = ran - stated
    assert stated - ran == Counter() and sum(beside.values()) == 2
    figures = joint([event_json.from_json(json.loads(each)) for each in beside])
    training = joint([event_json.from_json(statement.event)])
    assert figures.noise_multiplier >= training.noise_multiplier * (1 - 1e-9)
    recorder.check_noise()


@pytest.mark.filterwarnings("ignore")  # tiny data warn of many things, none of which is meant here
@pytest.mark.parametrize("name", list(CASES))
def test_the_statement_is_what_ran(name: str, recorder: Recorder, tmp_path: Path) -> None:
    statement = CASES[name](recorder, tmp_path)
    assert statement.private and len(recorder.made) > 0
    recorder.check(statement)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(UNSOUND))
def test_a_mechanism_without_a_guarantee_promises_nothing(name: str, recorder: Recorder, tmp_path: Path) -> None:
    statement = minimize(logistic(), UNSOUND[name], steps=4).privacy
    assert not statement.private and statement.nominal == math.inf and len(recorder.made) == 4
    assert counted([event_json.from_json(statement.event)]) == Counter({'{"event": "NonPrivate"}': 1})
    recorder.check_noise()


@pytest.mark.filterwarnings("ignore")
def test_a_search_counts_its_trials_its_choice_and_its_last_fit(recorder: Recorder) -> None:
    """Trials and choice look at disjoint records: the dearest of them is counted, as one Gaussian release."""
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (400, D))
    y = (X[:, 0] > 0).astype(int)
    model = PrivateClassifier(algorithm="dp_gd", classes=[0, 1], bounds=(-1, 1), scale="none", delta=1e-5)
    statement = PrivateSearch(model, {"max_iter": [2, 3]}, epsilon=1.0, delta=1e-5).fit(X, y).privacy_
    choice = next(i for i, each in enumerate(recorder.made) if isinstance(each, NoisyMax))
    trials, last = recorder.made[:choice], recorder.made[choice + 1 :]
    assert len(trials) == 7 and all(isinstance(each, Gaussian) for each in (*trials, *last))
    stated = counted([event_json.from_json(statement.event)])
    (selection,) = (stated - counted([each.event() for each in last])).elements()
    mu = 1 / json.loads(selection)["noise_multiplier"]
    for trial in (trials[:3], trials[3:]):  # each buys its step, and makes two or three rounds
        assert math.sqrt(sum(1 / each.multiplier**2 for each in trial)) <= mu * (1 + 1e-6)
    spread = recorder.made[choice].epsilon / 2  # the range of the losses of a choice among scores that move by 1
    assert 2 * norm.ppf(1 / (1 + math.exp(-spread / 2))) <= mu * (1 + 1e-6)
    assert counted([each.event() for each in last]) + Counter([selection]) == stated
    recorder.check_noise()


# ---------------------------------------------------------------- it can fail, and it is whole


@dataclass(frozen=True)
class Quiet:
    """A broken purchase: it is released, and neither charged nor stated."""

    item: _Paid
    name: str = "quiet"

    def check(self, objective: Any) -> None:
        self.item.check(objective)

    def stage(self, objective: Any) -> None:
        """Nothing that anybody could see."""

    def event(self, adjacency: Any) -> Any:
        return self.item.event(adjacency)

    def apply(self, prepared: Any, bought: Any) -> Any:
        rows = self.item.item.rows(prepared.objective)
        value = ClippedSum(rows.sum(), 2, self.item.item.bound(prepared.objective))
        return self.item.apply(prepared, self.item.mechanism.release(value, SecretSource()))


def test_a_release_that_is_left_out_is_found(recorder: Recorder) -> None:
    sound = buying(algorithms.dp_gd(**STEP), [Ranges(), ClassCounts()])

    def build(binding: Any) -> Any:
        pipe = sound.build(binding)
        first, *others = pipe.before
        return replace(pipe, before=[first, *(Quiet(item) for item in others)])

    statement = minimize(logistic(), replace(sound, build=build), steps=3).privacy
    assert statement.private
    with pytest.raises(AssertionError):
        recorder.check(statement)


def test_a_statement_with_a_round_less_is_found(recorder: Recorder) -> None:
    statement = minimize(logistic(), RECIPES["dp_gd"][0], steps=4).privacy
    recorder.check(statement)
    leaves = [(leaf, count - 1) for leaf, count in event_json.flatten(statement.event)]
    with pytest.raises(AssertionError):
        recorder.check(replace(statement, event=event_json.to_json(event_json.composed(leaves))))


def test_half_the_noise_is_found(recorder: Recorder) -> None:
    """A wrapper that halves the bound before the mechanism sees it: its noise fits its bound, not its event."""
    found = Recorder()
    honest = Gaussian.release

    def half(self: Any, bounded: ClippedSum, noise: Any) -> torch.Tensor:
        before = bounded.value.detach().double().clone()
        after = honest(self, replace(bounded, bound=bounded.bound / 2), noise)
        found.heard(self, bounded, before, after)
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gaussian, "release", half)
        minimize(logistic(), algorithms.dp_gd(**STEP), steps=60)
    with pytest.raises(AssertionError, match="as large as is said"):
        found.check_noise()
    assert known_bad._Halved(Gaussian(1.0)).event() == Gaussian(1.0).event()  # what such a wrapper would state


def test_a_release_without_noise_is_found(recorder: Recorder) -> None:
    statement = minimize(logistic(), RECIPES["dp_gd"][0], steps=2).privacy
    Exact().release(ClippedSum(torch.ones(2), 2, 1.0), None)
    with pytest.raises(AssertionError, match="without noise"):
        recorder.check(statement)


def test_every_private_recipe_is_walked() -> None:
    named = {name.split(",")[0] for name in (*RECIPES, *UNSOUND)}
    for name, made in algorithms.KNOWN.items():
        assert made.private is (made.takes("epsilon") or name in ("dp_comp_gd", "dp_cd"))
        assert not made.private or name in named, f"add {name} to the paths"
