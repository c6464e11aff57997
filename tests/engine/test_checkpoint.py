"""Checkpoints: training goes on as if nothing had happened, or not at all; epsilon never falls."""

import json
import os
import random
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from chaos import scenarios, work
from chaos.child import Child
from engine_cases import MODELS, N, assert_same, cnn, data, mlp, private, train
from safetensors import safe_open
from safetensors.torch import save_file
from test_sketches import public

import isthmus
from isthmus import InvalidInput, Kronecker, PrivacyEngine, PublicSubspace
from isthmus.core.driver import Ticket
from isthmus.engine.engine import UNSEEN
from isthmus.privacy.ledger import BudgetExceeded

DELTA = 1e-5
TARGET = {"target_epsilon": 2.0, "target_delta": DELTA, "epochs": 2}
QUIET = 1e-9  # next to no noise: trainings can be compared

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "kronecker": {"sketch": Kronecker(4, 2, refresh=3)},
    "public": {"sketch": PublicSubspace(4, refresh=3)},
    "kronecker-public": {"sketch": isthmus.KroneckerSubspace(3, 2, refresh=5)},
    "progressive": {
        "sketch": isthmus.Progressive([(1, isthmus.KroneckerSubspace(3, 2)), (9, PublicSubspace(4, refresh=3))])
    },
    "embedding": {"sketch": isthmus.GradientEmbedding(PublicSubspace(4, refresh=3), 0.1)},
    "adaptive": {"clipping": "adaptive", "sketch": isthmus.CountSketch(12), "noise_multiplier": 0.05},
    "per-layer": {"clipping": "per_layer", "max_grad_norm": {"0": 0.2, "2": 0.1}},
}


def adam(parameters: Any) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.05, betas=(0.8, 0.9))


def begin(name: str, seed: int = 11, **more: Any) -> Any:
    options = {"noise_multiplier": QUIET, "public": public("mlp"), "optimizer": adam} | CASES[name] | more
    return private(mlp(), data(), noise_generator=torch.Generator().manual_seed(seed), **options)


def steps(run: Any, indices: list[list[int]]) -> None:
    """Rounds on batches that we choose."""
    for index in indices:
        run.engine.driver.rest()
        run.engine.driver.begin(Ticket(len(index)))
        F.cross_entropy(run.module(data().x[index]), data().y[index]).backward()
        run.optimizer.step()


def batches(count: int, seed: int) -> list[list[int]]:
    draws = random.Random(seed)
    return [draws.sample(range(N), 8) for _ in range(count)]


@pytest.mark.parametrize("name", list(CASES))
def test_a_fresh_engine_goes_on_where_the_other_stopped(name: str, tmp_path: Path) -> None:
    whole, generator = begin(name), torch.Generator().manual_seed(5)
    steps(whole, batches(7, 1))
    path = tmp_path / "run.safetensors"
    extra = {"epoch": 3, "best": 0.5, "note": "half way", "curve": [1.0, 2.0], "average": torch.arange(3)}
    whole.engine.save_checkpoint(path=path, module=whole.module, optimizer=whole.optimizer, checkpoint_dict=extra)
    fresh = begin(name)
    with torch.no_grad():
        fresh.module[0].weight.add_(1.0)
    found = fresh.engine.load_checkpoint(path=path, module=fresh.module, optimizer=fresh.optimizer)
    assert {key: value for key, value in found.items() if key != "average"} == {k: extra[k] for k in list(extra)[:-1]}
    assert torch.equal(found["average"], torch.arange(3))
    for run in (whole, fresh):
        run.engine.driver.keys.noise._generator.set_state(generator.get_state())  # the noise of both from here on
        steps(run, batches(6, 2))
    assert_same(whole.module, fresh.module, 1e-12)
    assert fresh.engine.driver.state.t == whole.engine.driver.state.t == 13
    assert str(fresh.optimizer.state_dict()) == str(whole.optimizer.state_dict())
    assert fresh.engine.driver.state.parts.keys() == whole.engine.driver.state.parts.keys()
    assert sum(fresh.engine.ledger.rounds().values()) == 13


def test_epsilon_is_never_lower_after_loading(tmp_path: Path) -> None:
    path, run = tmp_path / "a", train(private(mlp(), data()), 1)
    run.engine.save_checkpoint(path=path, module=run.module)
    spent = run.engine.get_epsilon(DELTA)
    train(run, 1)
    more = run.engine.get_epsilon(DELTA)
    run.engine.load_checkpoint(path=path, module=run.module)  # back to the middle: what was released stays charged
    assert run.engine.driver.state.t == 4
    assert run.engine.get_epsilon(DELTA) == more
    fresh = private(mlp(), data())
    fresh.engine.load_checkpoint(path=path, module=fresh.module)
    assert fresh.engine.get_epsilon(DELTA) == spent
    assert list(fresh.engine.ledger.rounds().values()) == [4]
    train(fresh, 1)
    assert fresh.engine.get_epsilon(DELTA) == pytest.approx(more)
    again = tmp_path / "b"
    fresh.engine.save_checkpoint(path=again, module=fresh.module)
    third = private(mlp(), data())
    third.engine.load_checkpoint(path=again, module=third.module)
    assert third.engine.get_epsilon(DELTA) == pytest.approx(more)


def test_everything_the_ledger_held_is_charged_again(tmp_path: Path) -> None:
    """Two trainings on one ledger: the file of the second knows of the first; loading twice charges once."""
    run = train(private(mlp(), data()), 1)
    run.engine.detach()
    second = train(private(mlp(), data(), engine=run.engine), 1)
    spent = second.engine.get_epsilon(DELTA)
    second.engine.save_checkpoint(path=tmp_path / "a", module=second.module)
    fresh = private(mlp(), data())
    for _ in range(2):
        fresh.engine.load_checkpoint(path=tmp_path / "a", module=fresh.module)
        assert fresh.engine.get_epsilon(DELTA) == pytest.approx(spent)


def test_a_target_holds_across_checkpoints(tmp_path: Path) -> None:
    run = train(private(mlp(), data(), **TARGET), 1)
    run.engine.save_checkpoint(path=tmp_path / "a", module=run.module, optimizer=run.optimizer)
    fresh = private(mlp(), data(), **TARGET)
    fresh.engine.load_checkpoint(path=tmp_path / "a", module=fresh.module, optimizer=fresh.optimizer)
    train(fresh, 1)
    assert 1.98 <= fresh.engine.get_epsilon(DELTA) <= 2.0
    with pytest.raises(BudgetExceeded):
        train(fresh, 1)


def test_the_file_is_tensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    """Parsed by hand: a length, a JSON header of that length, then the bytes of the tensors it names."""
    path, run = tmp_path / "a", train(private(mlp(), data(), optimizer=adam), 1)
    run.engine.save_checkpoint(
        path=path, module=run.module, optimizer=run.optimizer, checkpoint_dict={"x": torch.ones(2)}
    )
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    meta = header.pop("__metadata__")
    assert set(meta) == {"format", "tree", "seal"}
    tree = json.loads(meta["tree"])
    assert set(tree) == {"module", "optimizer", "driver", "terms", "spent", "seeded", "extra"}
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    assert spans[0][0] == 0
    assert all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert 8 + length + spans[-1][1] == len(content)
    assert not list(tmp_path.glob("*.part"))
    own = {f"module/{name}" for name in run.module.state_dict()}
    assert own <= set(header)


SPOILT: dict[str, Any] = {
    "missing": lambda path, content: path.unlink(),
    "empty": lambda path, content: path.write_bytes(b""),
    "cut": lambda path, content: path.write_bytes(content[:-9]),
    "cut in the header": lambda path, content: path.write_bytes(content[:60]),
    "one bit": lambda path, content: path.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
    "pickle": lambda path, content: torch.save({"module": 1}, path),
    "json": lambda path, content: path.write_text("{}"),
    "foreign tensors": lambda path, content: save_file({"a": torch.ones(2)}, path),
    "foreign format": lambda path, content: path.write_bytes(content.replace(b"checkpoint-2", b"checkpoint-9")),
    "altered": lambda path, content: path.write_bytes(content.replace(b"module/0.weight", b"module/0.wEight", 1)),
}


@pytest.mark.parametrize("how", list(SPOILT))
def test_other_files_are_refused_and_change_nothing(how: str, tmp_path: Path) -> None:
    path, run = tmp_path / "a", train(private(mlp(), data()), 1)
    run.engine.save_checkpoint(path=path, module=run.module)
    SPOILT[how](path, path.read_bytes())
    fresh = private(mlp(), data())
    with pytest.raises(InvalidInput, match="path"):
        fresh.engine.load_checkpoint(path=path, module=fresh.module)
    assert_same(fresh.module, mlp(), 0.0)
    assert fresh.engine.ledger.rounds() == {}


def as_before(tree: Any) -> Any:
    """A tree as format 1 had it: tuples as lists, all keys as text."""
    if isinstance(tree, list):
        return [as_before(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if "@tuple" in tree:
        return as_before(tree["@tuple"])
    pairs = tree["@dict"] if "@dict" in tree else tree.items()
    return {str(key): as_before(value) for key, value in pairs}


def test_checkpoints_of_the_first_format_are_read(tmp_path: Path) -> None:
    path, run = tmp_path / "a", train(private(mlp(), data(), optimizer=adam), 1)
    run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
    with safe_open(path, framework="pt") as file:
        tree = json.dumps(as_before(json.loads(file.metadata()["tree"])))
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    save_file(tensors, path, metadata={"format": "isthmus-checkpoint-1", "tree": tree})
    fresh = private(mlp(), data(), optimizer=adam)
    fresh.engine.load_checkpoint(path=path, module=fresh.module, optimizer=fresh.optimizer)
    assert_same(run.module, fresh.module, 0.0)
    assert fresh.engine.get_epsilon(DELTA) == run.engine.get_epsilon(DELTA)
    ours, theirs = (each.optimizer.state_dict()["state"] for each in (fresh, run))
    assert all(torch.equal(ours[0][name], theirs[0][name]) for name in ("step", "exp_avg", "exp_avg_sq"))
    train(fresh, 1)


OTHER_TERMS = [
    {"noise_multiplier": 5.0},
    {"max_grad_norm": 9.0},
    {"sketch": Kronecker(4, 3)},
    {"sketch": isthmus.CountSketch(9)},
    {"sketch": None},
    {"batch": 20},
    {"clipping": "adaptive"},
    {"micro_batch_size": 2},
    {"poisson_sampling": False},
]


@pytest.mark.parametrize("other", OTHER_TERMS)
def test_other_terms_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    options = {"sketch": Kronecker(4, 2)}
    path, run = tmp_path / "a", train(private(mlp(), data(), **options), 1)
    run.engine.save_checkpoint(path=path, module=run.module)
    fresh = private(mlp(), data(), **(options | other))
    with pytest.raises(InvalidInput, match="the settings of this checkpoint"):
        fresh.engine.load_checkpoint(path=path, module=fresh.module)
    assert_same(fresh.module, mlp(), 0.0)


def test_a_checkpoint_of_another_module_or_without_an_optimiser(tmp_path: Path) -> None:
    path, run = tmp_path / "a", train(private(mlp(), data()), 1)
    run.engine.save_checkpoint(path=path, module=run.module)
    fresh = private(mlp(), data())
    with pytest.raises(InvalidInput, match="optimizer"):
        fresh.engine.load_checkpoint(path=path, module=fresh.module, optimizer=fresh.optimizer)
    with pytest.raises(InvalidInput, match="made private"):
        fresh.engine.save_checkpoint(path=path, module=mlp())
    other = private(cnn(), data("cnn"))
    with pytest.raises(RuntimeError, match="state_dict"):
        other.engine.load_checkpoint(path=path, module=other.module)
    assert set(MODELS) == {"mlp", "cnn"}


def test_two_modules_of_one_engine_have_their_own_checkpoints(tmp_path: Path) -> None:
    first = private(mlp(), data())
    second = private(cnn(), data("cnn"), engine=first.engine, noise_multiplier=2.0)
    train(first, 1)
    train(second, 2)
    for name, run in (("a", first), ("b", second)):
        run.engine.save_checkpoint(path=tmp_path / name, module=run.module)
    fresh = private(mlp(), data())
    fresh.engine.load_checkpoint(path=tmp_path / "a", module=fresh.module)
    assert fresh.engine.driver.state.t == 4
    assert_same(fresh.module, first.module, 0.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks of a process with threads
@pytest.mark.parametrize("kills", [0, 4])
def test_kills_never_lower_epsilon_and_raise_it_by_what_was_in_flight(kills: int, tmp_path: Path) -> None:
    """Trainings that are killed at random moments, or by nobody, then to the end in another process: this one."""
    work.warm("engine")
    longest, draws = scenarios._length("engine"), random.Random(os.urandom(8))
    for _ in range(max(1, kills)):
        child = Child("engine", tmp_path)
        if kills:
            child.stop(signal.SIGKILL, draws.uniform(0, longest))
        assert child.wait().code in (0, -signal.SIGKILL)
    found = work.engine(tmp_path, lambda t: None)
    assert found.driver.state.t == work.ROUNDS <= found.ledger.rounds()["main"] <= work.ROUNDS + 2 * kills
    whole = PrivacyEngine()
    train(private(mlp(), data(), engine=whole, noise_multiplier=2.0), work.ROUNDS // 4)
    assert whole.get_epsilon(DELTA) <= found.get_epsilon(DELTA) * (1 + 1e-9)
    train(private(mlp(), data(), engine=whole, noise_multiplier=2.0), kills)
    assert found.get_epsilon(DELTA) <= whole.get_epsilon(DELTA) * (1 + 1e-9)


def continued(path: Path, ledger: Any) -> Any:
    """A training with a target that goes on from a checkpoint to its end."""
    run = private(mlp(), data(), engine=PrivacyEngine(ledger=ledger), **TARGET)
    run.engine.load_checkpoint(path=path, module=run.module, optimizer=run.optimizer)
    return train(run, 1)


def test_a_continuation_that_its_ledger_did_not_see_begin_says_so(tmp_path: Path) -> None:
    run = train(private(mlp(), data(), **TARGET), 1)
    assert UNSEEN not in run.engine.statement(DELTA).assumptions
    run.engine.save_checkpoint(path=tmp_path / "a", module=run.module, optimizer=run.optimizer)
    runs = [continued(tmp_path / "a", None), continued(tmp_path / "a", tmp_path / "new.ledger")]
    assert all(UNSEEN in each.engine.statement(DELTA).assumptions for each in runs)
    runs[0].engine.save_checkpoint(path=tmp_path / "b", module=runs[0].module)  # and so does whoever goes on from there
    last = private(mlp(), data(), **TARGET)
    last.engine.load_checkpoint(path=tmp_path / "b", module=last.module)
    assert UNSEEN in last.engine.statement(DELTA).words()
    run.engine.load_checkpoint(path=tmp_path / "a", module=run.module)  # its own ledger has seen everything
    assert UNSEEN not in run.engine.statement(DELTA).assumptions


def test_one_ledger_file_pays_for_one_continuation(tmp_path: Path) -> None:
    file = tmp_path / "one.ledger"
    run = train(private(mlp(), data(), engine=PrivacyEngine(ledger=file), **TARGET), 1)
    run.engine.save_checkpoint(path=tmp_path / "a", module=run.module, optimizer=run.optimizer)
    first = continued(tmp_path / "a", file)
    statement = first.engine.statement(DELTA)
    assert UNSEEN not in statement.assumptions and statement.nominal <= 2.0
    with pytest.raises(BudgetExceeded):
        continued(tmp_path / "a", file)
    assert first.engine.get_epsilon(DELTA) <= 2.0
