"""`minimize`: resuming, records, callbacks, bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradients.layers.layer_reference import Built
from refusals import refuses
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import isthmus
from isthmus import InvalidInput, L1Ball, LeastSquares, Logistic, ModuleObjective, PrivacyEngine, algorithms, minimize
from isthmus.core.pipeline import Pipeline, Stage
from isthmus.core.wire import State
from isthmus.gradients import Dense
from isthmus.parts import Full, Restart, UniformRandom

RECIPES = {
    "sgd": algorithms.sgd(step=0.1, batch_size=8, momentum=0.3),
    "comp_sgd": algorithms.comp_sgd(m=5, step=0.1, batch_size=8),
    "feedback": algorithms.comp_sgd(m=5, step=0.1, batch_size=8, error_feedback=True),
    "comp_gd": algorithms.comp_gd(m=0.5, step=lambda t: 0.3 / (t + 1) ** 0.5),
}


def objective() -> Logistic:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 12))
    return Logistic(X, np.sign(X[:, 0] + 0.1 * rng.standard_normal(50)), l2=0.01)


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_run(name: str, tmp_path: Path) -> None:
    """Stopped anywhere, written to disk, read back and resumed: the same to the bit."""
    recipe, ball = RECIPES[name], L1Ball(2.0)
    whole = minimize(objective(), recipe, ball, steps=30, seed=7)
    stop = [lambda record, state: record["t"] == 13]
    half = minimize(objective(), recipe, ball, steps=30, seed=7, record=1, callbacks=stop)
    assert half.status == "interrupted" and half.state.t == 13
    half.state.save(tmp_path / "run.state")
    again = minimize(objective(), recipe, ball, steps=30, seed=7, resume=State.load(tmp_path / "run.state"))
    assert torch.equal(whole.x, again.x)
    assert torch.equal(whole.average, again.average)
    assert (whole.dims, whole.bytes) == (again.dims, again.bytes)
    assert ball.contains(whole.x) and ball.contains(whole.average)
    assert whole.history[-1]["loss"] < whole.history[0]["loss"]


def test_records() -> None:
    result = minimize(objective(), RECIPES["sgd"], steps=20, record=5)
    assert [record["t"] for record in result.history] == [0, 5, 10, 15, 20]
    assert result.history[-1]["loss"] == pytest.approx(objective().loss(result.x))
    assert result.history[-1]["epoch"] == pytest.approx(20 / 7)
    assert minimize(objective(), RECIPES["sgd"], steps=20, record=None).history == ()
    assert result.curve("loss", "dims")[0] == [0, 60, 120, 180, 240]
    assert result.plot().get_xlabel() == "gradient numbers used"


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    minimize(objective(), RECIPES["sgd"], steps=20, record=5, progress=True)
    assert "/20" in capsys.readouterr().err
    minimize(objective(), RECIPES["sgd"], steps=20, progress=False)
    assert capsys.readouterr().err == ""


def test_a_uniformly_random_iterate() -> None:
    """The reservoir takes each of w_1..w_T, the start among them, with probability 1/T."""
    counts = np.zeros(4)
    for seed in range(4000):
        memo = UniformRandom().init(torch.zeros(1), seed)
        for t in range(4):
            memo, _ = UniformRandom().observe(memo, torch.tensor([float(t + 1)]), 1.0, t)
        counts[int(memo["choice"])] += 1
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(4000 * 0.25 * 0.75)


def test_schedules_of_m_are_counted() -> None:
    result = minimize(objective(), algorithms.comp_gd(m=lambda t: t + 1, step=0.1), steps=5)
    assert result.dims == 1 + 2 + 3 + 4 + 5


def test_a_user_defined_objective_needs_only_the_protocol() -> None:
    class Quadratic:
        """1/2 ||w - target||^2 of each record, by hand."""

        n, penalty = 3, None
        space = isthmus.LeastSquares(np.eye(4), np.zeros(4)).space
        targets = torch.arange(12, dtype=torch.float64).view(3, 4)

        def rows(self, w: torch.Tensor, index: Any = None) -> Any:
            return Dense(w - (self.targets if index is None else self.targets[index]))

        def loss(self, w: torch.Tensor) -> float:
            return float(((w - self.targets) ** 2).sum()) / 6

    result = minimize(Quadratic(), algorithms.gd(step=0.5), steps=60)
    torch.testing.assert_close(result.x, Quadratic.targets.mean(0))


test_bad_input_is_refused_before_any_work = refuses(
    ({"steps": 5, "epochs": 1}, "give one of the two"),
    ({}, "give one of the two"),
    ({"steps": 0}, "steps=0"),
    ({"steps": 2.5}, "steps=2.5"),
    ({"epochs": -1}, "epochs=-1"),
    ({"steps": 5, "record": 0}, "record=0"),
    ({"steps": 5, "seed": -1}, "seed=-1"),
    ({"steps": 5, "x0": np.zeros(3)}, r"x0.shape=\(3,\)"),
    ({"steps": 5, "x0": np.full(12, np.nan)}, "x0 holds 12 NaN"),
    ({"steps": 5, "x0": np.full(12, 9.0)}, "x0=.*start inside"),
    ({"steps": 5, "physical_batch_size": 0}, "physical_batch_size=0"),
    ({"steps": 5, "constraint": 3}, "constraint=3"),
    ({"steps": 5, "constraint": isthmus.Box(np.zeros(3), np.ones(3))}, r"dimension 12.*this one has 3"),
    ({"steps": 5, "recipe": "sgd"}, "recipe='sgd'"),
    ({"steps": 5, "clients": []}, "problems"),
    ({"steps": 1, "recipe": algorithms.comp_sgd(m=13, step=0.1)}, "m=13 .*at most 12, which is the dimension d"),
    by=lambda options: minimize(objective(), **({"recipe": RECIPES["sgd"], "constraint": L1Ball(2.0)} | options)),
)


test_bad_recipes_are_refused_at_once = refuses(
    ({"step": 0.0}, "step=0.0"),
    ({"step": float("nan")}, "step=nan"),
    ({"batch_size": 0}, "batch_size=0"),
    by=lambda wrong: algorithms.sgd(**({"step": 0.1} | wrong)),
)


def test_states_of_another_problem_or_a_broken_file_are_refused(tmp_path: Path) -> None:
    state = minimize(LeastSquares(np.eye(3), np.ones(3)), Pipeline([Stage(Full())], lambda t: 0.1), steps=2).state
    with pytest.raises(isthmus.InvalidInput, match="dimension 12"):
        minimize(objective(), RECIPES["sgd"], steps=5, resume=state)
    path = tmp_path / "s"
    state.save(path)
    whole = path.read_bytes()
    for broken in (b"", whole[:20], whole[:-5], b"not a checkpoint at all" * 10):
        path.write_bytes(broken)
        with pytest.raises(isthmus.InvalidInput, match="State.save"):
            State.load(path)
    with pytest.raises(isthmus.InvalidInput, match="State.save"):
        State.load(tmp_path / "nowhere")


@pytest.mark.parametrize("steps, expected", [(3, [0, 1, 2]), (8, [4, 5, 6, 7]), (9, [4, 5, 6, 7]), (10, [8, 9])])
def test_restarts_return_the_last_inner_loop_that_is_half_done(steps: int, expected: list[int]) -> None:
    """A run shorter than an inner loop, or cut in the middle of one, still returns what it learned."""
    average = Restart(4)
    memo = average.init(torch.full((1,), -100.0), 0)
    for t in range(steps):
        memo, _ = average.observe(memo, torch.tensor([float(t)]), 1.0, t)
    assert float(average.output(memo, torch.zeros(1))) == pytest.approx(np.mean(expected))


def test_a_state_of_the_earlier_form_goes_on_and_one_of_other_terms_does_not() -> None:
    problem = Logistic(torch.eye(4).repeat(50, 1), torch.arange(200) % 2, classes=(0, 1))
    recipe = algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step=1.0, n="exact")
    half = minimize(problem, recipe, steps=6, record=1, callbacks=[lambda record, state: state.t == 2]).state
    data = json.loads(half.parts["terms"])
    event = data["rounds"]["main"]
    event["noise_multiplier"] *= 1 - 1e-12  # what the calibration of that form was off by
    for sound, noise, goes_on in ((True, 1.0, True), (False, 1.0, False), (True, 0.9, False)):
        rounds = {"main": {**event, "noise_multiplier": event["noise_multiplier"] * noise}}
        changed = {**data, "sound": sound, "rounds": rounds}
        state = half.replace(parts={**half.parts, "terms": json.dumps(changed)})
        if goes_on:
            assert minimize(problem, recipe, steps=6, resume=state).state.t == 6
        else:
            with pytest.raises(InvalidInput, match="resume"):
                minimize(problem, recipe, steps=6, resume=state)
    with pytest.raises(InvalidInput, match=r"resume\.t"):
        minimize(problem, recipe, steps=6, resume=half.replace(t=-3))


# ---------------------------------------------------------------- what a private run counts as sent is a public number

SIZE, CLASSES = 64, 30


def positions() -> nn.Module:
    """A linear layer at two positions, whose outputs are added: terms of one record's gradient may cancel."""
    return Built(lambda m, x: m.inner(x).sum(1), inner=nn.Linear(SIZE, CLASSES, bias=False))


def data(cancels: bool, n: int = 50) -> tuple[Tensor, Tensor]:
    """Records of two positions; perhaps one more, of two that are long and nearly cancel."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 2, SIZE, generator=generator), torch.randint(0, CLASSES, (n,), generator=generator)
    if not cancels:
        return x, y
    more = torch.zeros(1, 2, SIZE)
    more[0, 0, 0], more[0, 1, 0] = 1e5, -1e5 + 1e-3
    return torch.cat([x, more]), torch.cat([y, y[:1]])


def sent(cancels: bool, **options: Any) -> list[tuple[int, int]]:
    objective = ModuleObjective(positions(), cross_entropy, data(cancels))
    recipe = algorithms.dp_sgd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, batch_size=40, n=51)
    result = minimize(objective, recipe, steps=4, record=1, **options)
    return [(record["dims"], record["bytes"]) for record in result.history]


def test_a_record_whose_terms_cancel_does_not_show_in_what_was_sent() -> None:
    one = SIZE * CLASSES
    assert sent(False) == sent(True) == [(t * one, 4 * t * one) for t in range(5)]


def test_the_number_of_physical_batches_does_not_show_in_what_was_sent() -> None:
    assert sent(False) == sent(False, physical_batch_size=7) == sent(True, physical_batch_size=1)


@pytest.mark.parametrize("options", [{}, {"clipping": "per_layer"}, {"max_grad_norm": 1e-10}])
def test_a_batch_of_the_engine_does_not_show_in_what_is_stored(options: dict[str, Any]) -> None:
    """Stand-ins for no record, one physical batch and several, and a record whose terms cancel: all count the same."""
    module, engine = nn.Sequential(positions(), nn.Linear(CLASSES, CLASSES)), PrivacyEngine()
    given: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(*data(True)), batch_size=2)
    module, optimizer, loader = engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, max_physical_batch_size=1, **given
    )
    for _ in range(4):
        for x, y in loader:
            assert len(x) == 1
            cross_entropy(module(x), y).backward()
            optimizer.step()
    assert engine.driver is not None
    state = engine.driver.state
    assert state.bytes == 4 * state.dims == 4 * state.t * (SIZE * CLASSES + CLASSES * (CLASSES + 1))
