"""Random layers draw from secrets and leave the user's generators alone; noise of a seed is "not private" for good."""

import contextlib
import copy
import pickle
import random
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import C, Indexed, data, mlp, private, step, sums, train
from scipy import stats
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isthmus import InvalidInput, LeastSquares, PrivacyEngine, PrivateClassifier, PrivateSearch, minimize
from isthmus.algorithms import dp_gd
from isthmus.core.driver import Ticket
from isthmus.core.wire import State
from isthmus.gradients.layers.forward_guard import generators_hidden, hide_generators
from isthmus.privacy import Ledger, LedgerCorrupt
from isthmus.privacy.ledger import _FileRecords

N, WIDTH = 64, 40


class Functional(nn.Module):
    """Draws in every way a module can: the name says which."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.way, self.layer, self.last = way, nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3)
        self.drop, self.leaky = nn.Dropout(0.5), nn.RReLU()

    def mask(self, h: Tensor) -> Tensor:
        ways: dict[str, Any] = {
            "module": lambda: self.drop(h),
            "functional": lambda: F.dropout(h, 0.5, self.training),
            "rrelu": lambda: self.leaky(h),
            "rand": lambda: h * (torch.rand_like(h) < 0.5),
            "python": lambda: h * torch.tensor([[random.random() < 0.5 for _ in range(WIDTH)] for _ in h]),
        }
        return ways.get(self.way, lambda: h * torch.from_numpy(np.random.rand(*h.shape) < 0.5))()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mask(self.layer(x)))


WAYS = ["module", "functional", "rand", "python", "numpy"]


def records() -> Indexed:
    g = torch.Generator().manual_seed(5)
    return Indexed(torch.randn(N, 6, generator=g), torch.randint(0, 3, (N,), generator=g))


def made(module: nn.Module, **options: Any) -> Any:
    arguments = {"noise_generator": None, "batch": N, "loss_reduction": "sum"} | options
    return private(module, records(), **arguments)


def seed(value: int = 0) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


EVERYONE = torch.ones(N, dtype=torch.bool)


def total(run: Any, keep: Tensor = EVERYONE, value: int = 0) -> Tensor:
    """The clipped sum of some records, the user's generators seeded right before the pass."""
    data = records()

    def loss() -> Tensor:
        seed(value)
        return F.cross_entropy(run.module(data.x[keep]), data.y[keep], reduction="sum")

    return sums(run.engine, loss, int(keep.sum()))["gradient"].value


@pytest.mark.parametrize("way", WAYS)
def test_a_known_seed_tells_nothing_about_the_masks(way: str) -> None:
    run = made(Functional(way))
    sums = torch.stack([total(run) for _ in range(3)])
    assert float(torch.cdist(sums, sums)[0, 1:].min()) > 0.1 * C  # the same seed, other masks
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    seed()
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])


@pytest.mark.parametrize("way", WAYS)
def test_runs_for_tests_stay_repeatable_and_are_not_private(way: str) -> None:
    """What the finding measured: with masks that follow the seed, one record shifts those of all after it."""
    run = made(Functional(way), noise_generator=torch.Generator().manual_seed(0))
    assert torch.equal(total(run), total(run))
    assert float((total(run) - total(run, torch.arange(N) != 0)).norm()) > 2 * C
    assert not run.engine.statement(1e-5).private


def test_draws_that_depend_on_other_examples_are_refused() -> None:
    """A random leaky ReLU draws for negative entries only: what one example holds shifts the draws of the next."""
    run = made(Functional("rrelu"))
    with pytest.raises(InvalidInput, match="examples meet"):
        total(run)


def test_the_statement_says_which() -> None:
    assert "secrets of the operating system" in made(Functional("module")).engine.statement(1e-5).words()


def test_parts_called_by_themselves_are_secret_too() -> None:
    run = made(nn.Sequential(nn.Linear(6, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 3)))
    run.engine.driver.begin(Ticket(N))
    masks = []
    for _ in range(2):
        seed()
        masks.append(run.module[1](torch.ones(N, WIDTH)))
    assert not torch.equal(*masks)
    assert torch.initial_seed() == 0 and not generators_hidden()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.drop, self.last = nn.Linear(6, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 3)
        self.reentrant, self.masks = reentrant, None

    def inner(self, h: Tensor) -> Tensor:
        dropped = self.drop(h)
        MASKS.append((dropped == 0).detach())
        return dropped * dropped

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))


MASKS: list[Tensor] = []


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_replays_the_secret_masks(reentrant: bool) -> None:
    run = made(Checkpointed(reentrant))
    MASKS.clear()
    total(run)
    first, again = MASKS[-2:]  # those before were of copies that were tried out
    assert len(first) == N and torch.equal(first, again)
    assert 0.4 < float(first.double().mean()) < 0.6
    assert not generators_hidden()


def test_generators_of_a_modules_own_are_refused() -> None:
    module = Functional("module")
    module.generator = torch.Generator().manual_seed(0)
    with pytest.raises(InvalidInput, match=r"generators of its own \(\['generator'\]\)"):
        made(module)
    run = made(Functional("module"))
    run.module.drop.many = [torch.Generator()]
    with pytest.raises(InvalidInput, match=r"drop.many\[0\]"):
        total(run)
    assert not generators_hidden()


def test_a_module_that_seeds_itself_is_refused() -> None:
    class Seeds(Functional):
        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(0)
            return super().forward(x)

    run = made(Seeds("module"))
    with pytest.raises(InvalidInput, match="inside its forward pass"):
        total(run)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_generators_come_back_after_a_pass_that_failed(error: type[BaseException]) -> None:
    class Fails(Functional):
        fail = True

        def forward(self, x: Tensor) -> Tensor:
            if self.fail:
                raise error
            return super().forward(x)

    run = made(Fails("module"))
    with pytest.raises(error):
        total(run)
    run.module.fail = False
    run.engine.driver.rest()
    assert torch.initial_seed() == 0 and not generators_hidden()
    total(run)


class Augmented(Indexed):
    """Random augmentation follows the place in the batch."""

    def __getitem__(self, i: int) -> tuple[int, Tensor, Tensor]:
        return i, self.x[i] + torch.rand(()) + np.random.rand() + random.random(), self.y[i]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_augmentation_in_the_dataset_is_secret(workers: int, generator: torch.Generator | None) -> None:
    plain, found = records(), []
    for _ in range(2):
        seed()
        if generator is not None:
            generator.manual_seed(0)
        loading = {"num_workers": workers, "generator": generator}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = private(
                Functional("module"), Augmented(plain.x, plain.y), batch=N, loading=loading, noise_generator=None
            )
            seed()
            found.append(next((i, x) for i, x, _ in run.loader))
        assert torch.initial_seed() == 0
    assert not bool((found[0][1] == found[1][1]).any())


# ---------------------------------------------------------------- the hidden state itself


def test_the_hidden_state_is_a_mersenne_twister_with_words_of_the_kernel() -> None:
    """NumPy's twister, given the same words, continues torch's stream: nothing else decides it."""
    back = hide_generators()
    words = torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64).astype(np.uint32)
    drawn = torch.randint(0, 1 << 32, (200,), dtype=torch.int64)
    back()
    twin = np.random.RandomState()
    twin.set_state(("MT19937", words, 624))
    ours = twin.randint(0, 1 << 32, 400, dtype=np.uint32)
    assert np.array_equal(ours.reshape(-1, 2)[:, 1], drawn.numpy().astype(np.uint32))
    bits = np.unpackbits(words.view(np.uint8))
    assert stats.binomtest(int(bits.sum()), len(bits), 0.5).pvalue > 1e-7


def test_hidden_draws_never_repeat_and_have_their_law() -> None:
    drawn = []
    for _ in range(50):
        torch.manual_seed(0)
        back = hide_generators()
        drawn.append(torch.rand(40))
        back()
        assert torch.initial_seed() == 0
    whole = torch.stack(drawn)
    assert len(set(whole.flatten().tolist())) > 0.99 * whole.numel()
    assert stats.kstest(whole.flatten().numpy(), "uniform").pvalue > 1e-7


@pytest.mark.parametrize("seed", ["default", "chosen", "secret", "inside"])
def test_a_loop_that_draws_for_a_batch_from_a_seed_that_may_be_known_is_warned(seed: str) -> None:
    """Torch's generator has one and the same seed in every process in which nobody has called torch.seed()."""
    before = torch.get_rng_state()
    run = private(Functional("module" if seed == "inside" else "none"), records(), noise_generator=None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if seed == "secret":
            torch.seed()
        else:
            torch.manual_seed(torch.Generator().initial_seed() if seed == "default" else 0)
        for _, x, y in run.loader:
            x = x if seed == "inside" else x + torch.randn_like(x)
            step(run, x, y)
    torch.set_rng_state(before)
    drew = [str(each.message) for each in told if "loop drew random numbers" in str(each.message)]
    assert len(drew) == (seed in ("default", "chosen"))


DELTA = 1e-5


def seeded(**options: Any) -> Any:
    return train(private(mlp(), data(), **options), 1)


def secret(**options: Any) -> Any:
    return private(mlp(), data(), noise_generator=None, **options)


def test_a_checkpoint_carries_it_into_a_fresh_engine(tmp_path: Path) -> None:
    run, path = seeded(), tmp_path / "a"
    assert not run.engine.statement(DELTA).private
    for _ in range(2):  # and on from file to file
        run.engine.save_checkpoint(path=path, module=run.module)
        run = secret()
        assert run.engine.statement(DELTA).private
        run.engine.load_checkpoint(path=path, module=run.module)
        stated = run.engine.statement(DELTA)
        assert not stated.private and "seeded noise" in str(stated) and stated.nominal > 0.5
        assert run.engine.ledger.seeded


def test_a_checkpoint_of_a_seeded_engine_that_released_nothing_yet(tmp_path: Path) -> None:
    run = private(mlp(), data())
    run.engine.save_checkpoint(path=tmp_path / "a", module=run.module)
    fresh = secret()
    fresh.engine.load_checkpoint(path=tmp_path / "a", module=fresh.module)
    assert not fresh.engine.statement(DELTA).private


def test_the_same_engine_is_not_private_afterwards() -> None:
    run = private(mlp(), data())
    run.engine.detach()
    assert not train(secret(engine=run.engine), 1).engine.statement(DELTA).private


@pytest.mark.parametrize("where", ["memory", "file", "copied file"])
def test_a_second_engine_on_the_ledger_is_not_private_either(where: str, tmp_path: Path) -> None:
    ledger = Ledger(None if where == "memory" else tmp_path / "l")
    seeded(engine=PrivacyEngine(ledger=ledger))
    if where == "file":
        ledger = Ledger.open(tmp_path / "l")
    elif where == "copied file":
        (tmp_path / "m").write_bytes((tmp_path / "l").read_bytes())
        ledger = Ledger.open(tmp_path / "m")
    run = train(secret(engine=PrivacyEngine(ledger=ledger)), 1)
    assert not run.engine.statement(DELTA).private


def test_secret_training_stays_private_and_its_ledger_is_as_it_was(tmp_path: Path) -> None:
    run = train(secret(engine=PrivacyEngine(ledger=tmp_path / "l")), 1)
    run.engine.save_checkpoint(path=tmp_path / "a", module=run.module)
    fresh = secret()
    fresh.engine.load_checkpoint(path=tmp_path / "a", module=fresh.module)
    assert run.engine.statement(DELTA).private and fresh.engine.statement(DELTA).private
    assert all(record["kind"] in ("open", "begin", "charge") for record in run.engine.ledger.records())


def test_copies_of_engines_and_ledgers_are_refused() -> None:
    run = seeded()
    for each in (run.engine, run.engine.ledger, run.engine.driver.ledger):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            if each is run.engine and way is copy.copy:
                continue
            with pytest.raises(TypeError, match="not copied or pickled"):
                way(each)
    assert not copy.copy(run.engine).statement(DELTA).private


def test_the_record_cannot_be_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "l"
    seeded(engine=PrivacyEngine(ledger=path))
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute('DELETE FROM records WHERE body LIKE \'%"kind":"seeded"%\'').rowcount == 1
    with pytest.raises(LedgerCorrupt):
        Ledger.open(path)


def test_a_seeded_charge_is_never_without_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "l")
    run = ledger.run({"main": {"event": "Gaussian", "noise_multiplier": 2.0}}, seeded=True)
    take = _FileRecords._take

    def interrupted(self: _FileRecords, record: dict[str, Any]) -> None:
        take(self, record)
        if record["kind"] == "seeded":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_FileRecords, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.charge("main")
    assert not ledger.seeded and ledger.rounds() == {}
    run.charge("main")
    for found in (ledger, Ledger.open(tmp_path / "l")):
        assert [record["kind"] for record in found.records()] == ["open", "begin", "seeded", "charge"]


# ---------------------------------------------------------------- minimize and estimators


def problem() -> LeastSquares:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    return LeastSquares(x, x.sum(1))


def fitted(**options: Any) -> Any:
    recipe = dp_gd(epsilon=1.0, delta=DELTA, clip=1.0, step=0.1, n="exact")
    return minimize(problem(), recipe, steps=4, record=None, progress=False, **options)


def test_runs_tell_the_ledger_and_resumed_states_remember(tmp_path: Path) -> None:
    ledger = Ledger()
    state = fitted(noise_seed=3, ledger=ledger).state
    assert ledger.seeded
    half = fitted(noise_seed=3).state.replace(t=2)
    half.save(tmp_path / "s")
    other = Ledger()
    result = fitted(resume=State.load(tmp_path / "s"), ledger=other)
    assert not result.privacy.private and other.seeded
    assert state.parts["seeded"] is True
    clean = Ledger()
    assert fitted(ledger=clean).privacy.private and not clean.seeded


def test_estimators_tell_the_ledger_they_share(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=g).numpy()
    y = (x[:, 0] > 0).astype(int)
    path = tmp_path / "l"
    options: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "classes": [0, 1], "bounds": (-6, 6), "n": 200}
    PrivateClassifier(**options, ledger=path, noise_seed=1).fit(x, y)
    assert Ledger.open(path).seeded
    search = tmp_path / "m"
    own = PrivateClassifier(**{**options, "epsilon": 2.0})
    PrivateSearch(own, {"max_iter": [2, 3]}, epsilon=2.0, delta=DELTA, ledger=search, noise_seed=1).fit(x, y)
    assert Ledger.open(search).seeded
