"""`make_private(group=)`: real gloo ranks train one private module, with one ledger and noise once."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo import caught, once
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import InvalidInput, Kronecker, PrivacyEngine, PublicSubspace
from isthmus.engine.engine import SHARED
from isthmus.engine.loader import Draws
from isthmus.privacy import Ledger, Poisson, SeededSource

SIZE, N = 2, 40


def records() -> TensorDataset:
    draws = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, 6, generator=draws), torch.randint(0, 3, (N,), generator=draws))


def mlp(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def public() -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(20, 6, generator=draws).double(), torch.randint(0, 3, (20,), generator=draws)


def made(engine: PrivacyEngine, module: nn.Module, batch: int, optimizer: Any = None, **more: Any) -> Any:
    moves = torch.optim.SGD(module.parameters(), lr=0.5) if optimizer is None else optimizer(module.parameters())
    options = {"max_grad_norm": 0.7} | more
    make = engine.make_private_with_epsilon if "target_epsilon" in more else engine.make_private
    if "target_epsilon" not in more:
        options = {"noise_multiplier": 0.8} | options
    return make(module=module, optimizer=moves, data_loader=DataLoader(records(), batch_size=batch), **options)


def train(triple: Any, steps: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    module, optimizer, loader = triple
    first = loader._driver.state.t
    while loader._driver.state.t < first + steps:
        for x, y in loader:
            nn.functional.cross_entropy(module(x.to(dtype)), y).backward()
            optimizer.step()
            if loader._driver.state.t == first + steps:
                break
    return flat(module)


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kronecker": {"sketch": Kronecker(3, 3, refresh=2)},
    "layers": {"clipping": "per_layer"},
    "adaptive": {"clipping": "adaptive"},
    "learned": {"sketch": PublicSubspace(4, data=public(), loss=nn.functional.cross_entropy, refresh=2)},
    "pieces": {"max_physical_batch_size": 7},
}


def scenario(rank: int) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for name, way in WAYS.items():  # every record in every batch and no noise: the same sums
        engine = PrivacyEngine()
        triple = made(engine, mlp(rank, torch.float64), N, group=True, noise_multiplier=0, **way)
        by_name[name] = train(triple, 3, torch.float64)
    engine = PrivacyEngine()
    triple = made(engine, mlp(rank), 4, group=True, sketch=Kronecker(3, 3, refresh=4), optimizer=_adam)
    by_name["secret"], by_name["epsilon"] = train(triple, 12), engine.get_epsilon(1e-5)
    by_name["sent"] = dict(engine.driver.group.sent)
    by_name["said"], by_name["steps"] = engine.statement(1e-5).assumptions, engine.ledger.rounds()

    by_name["noise"] = _noise()
    shared = Ledger()
    engine = PrivacyEngine(ledger=shared)
    triple = made(engine, mlp(rank), 10, group=True, target_epsilon=2.0, target_delta=1e-5, epochs=1)
    train(triple, 4)
    by_name["over"] = caught(lambda: train(triple, 1))
    by_name["charged"] = sum(shared.rounds().values())

    engine, module = PrivacyEngine(), mlp(0)
    triple = made(engine, module, N, group=True)
    for _ in triple[2]:
        if rank == 0:
            nn.functional.cross_entropy(module(records()[:N:2][0]), records()[:N:2][1]).backward()
        by_name["silent"] = caught(triple[1].step)
        break
    engine, module = PrivacyEngine(), mlp(0)
    by_name["clip"] = caught(lambda: made(engine, module, N, group=True, max_grad_norm=1.0 + rank))
    by_name["one fails"] = caught(lambda: made(engine, module, N, group=True, clipping="flat" if rank == 0 else "no"))
    by_name["free"] = caught(lambda: made(engine, module, N))
    by_name["fixed"] = caught(lambda: made(PrivacyEngine(), mlp(), N, group=True, poisson_sampling=False))
    by_name["kept"] = _saved(rank)
    wrapped = nn.parallel.DistributedDataParallel(mlp())
    by_name["wrapped"] = caught(lambda: made(PrivacyEngine(), wrapped, N, group=True))
    by_name["threads"] = _threads()
    by_name["sharded"] = caught(lambda: made(PrivacyEngine(), _sharded(), N, group=True))
    return by_name


def _threads() -> tuple[int, list[int]]:
    """Threads of this rank, and those that a round is closed with: last bits of products depend on their number."""
    engine, seen = PrivacyEngine(), []
    triple = made(engine, mlp(), N, group=True)
    engine.driver.observers.append(lambda round: seen.append(torch.get_num_threads()))
    train(triple, 1)
    return torch.get_num_threads(), seen


def _noise() -> torch.Tensor:
    module = nn.Linear(6, 3000, bias=False)
    made_of = made(PrivacyEngine(), module, 10, group=True, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    before = flat(module)
    for x, _ in made_of[2]:
        (0.0 * module(x)).sum(1).mean().backward()
        made_of[1].step()
        break
    return flat(module) - before


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def _sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module: nn.Module = fully_shard(mlp(), mesh=init_device_mesh("cpu", (SIZE,)))
    return module


def _saved(rank: int) -> dict[str, Any]:
    """Two steps, a checkpoint of rank 0, two more; and two more after it was read back."""
    folder = Path(tempfile.gettempdir(), f"isthmus-group-{torch.distributed.get_world_size()}-{_token()}")
    folder.mkdir(exist_ok=True)
    path, generator = folder / "a.checkpoint", seeded()
    engine = PrivacyEngine()
    triple = made(engine, mlp(rank, torch.float64), N, group=True, noise_generator=generator)
    train(triple, 2, torch.float64)
    engine.save_checkpoint(path=path, module=triple[0], optimizer=triple[1])
    kept = generator.get_state()
    going = train(triple, 2, torch.float64)
    again = PrivacyEngine()
    fresh = torch.Generator()
    fresh.set_state(kept)
    triple = made(again, mlp(7, torch.float64), N, group=True, noise_generator=fresh)
    again.load_checkpoint(path=path, module=triple[0], optimizer=triple[1])
    back = train(triple, 2, torch.float64)
    return {"going": going, "back": back, "rounds": [sum(each.ledger.rounds().values()) for each in (engine, again)]}


def _token() -> str:
    """A name that all ranks share."""
    entries = [torch.randint(0, 1 << 62, (1,))]
    torch.distributed.broadcast(entries[0], 0)
    return str(int(entries[0]))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> list[dict[str, Any]]:
    return once(scenario, tmp_path_factory, SIZE)


@pytest.mark.parametrize("name", list(WAYS))
def test_ranks_train_as_one_process(ranks: list[dict[str, Any]], name: str) -> None:
    """With every record in every batch, and no noise, weights are those of one process that starts as rank 0 does."""
    engine = PrivacyEngine()
    alone = train(made(engine, mlp(0, torch.float64), N, noise_multiplier=0, **WAYS[name]), 3, torch.float64)
    torch.testing.assert_close(ranks[0][name], alone, rtol=0, atol=1e-9)
    assert torch.equal(ranks[0][name], ranks[1][name])


def test_secret_coins_and_noise(ranks: list[dict[str, Any]]) -> None:
    assert torch.equal(ranks[0]["secret"], ranks[1]["secret"])
    engine = PrivacyEngine()
    train(made(engine, mlp(), 4, sketch=Kronecker(3, 3, refresh=4)), 12)
    assert [rank["epsilon"] for rank in ranks] == [engine.get_epsilon(1e-5)] * SIZE
    assert all(SHARED in rank["said"] and rank["steps"] == {"main": 12} for rank in ranks)
    assert ranks[1]["sent"]["reduce"] == 12 * 4 * 18 and "reduce" not in ranks[0]["sent"]  # float32 codes of 3x3


def test_noise_is_added_once(ranks: list[dict[str, Any]]) -> None:
    """Records without gradients leave the noise alone: 0.8 times the clip bound over the batch size, and no more."""
    told = 0.8 * 0.7 / 10
    for rank in ranks:
        assert abs(float(rank["noise"].std()) / told - 1) < 0.03
    assert torch.equal(ranks[0]["noise"], ranks[1]["noise"])


def test_the_budget_is_rank_0s(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["over"][0] == "BudgetExceeded" for rank in ranks)
    assert [rank["charged"] for rank in ranks] == [4, 0]


def test_errors_of_one_rank(ranks: list[dict[str, Any]]) -> None:
    for rank, kind, words in (
        (1, "RuntimeError", "optimizer.step() was called, and no gradient"),
        (0, "RankFailed", "rank 1 failed with RuntimeError: optimizer.step()"),
    ):
        assert ranks[rank]["silent"][0] == kind and ranks[rank]["silent"][1].startswith(words)
    assert all("the ranks differ" in rank["clip"][1] for rank in ranks)
    assert all("clipping='no'" in rank["one fails"][1] for rank in ranks)
    assert [rank["free"] for rank in ranks] == [("", "")] * SIZE  # what had been made private was taken apart


def test_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "poisson_sampling=False" in rank["fixed"][1]
        assert "wrapped in DistributedDataParallel" in rank["wrapped"][1] and "group=" in rank["wrapped"][1]
        assert "wrapped in FSDP" in rank["sharded"][1] and "raw gradients" in rank["sharded"][1]
    with pytest.raises(InvalidInput, match="init_process_group"):
        made(PrivacyEngine(), mlp(), N, group=True)
    with pytest.raises(InvalidInput, match="group='nccl'"):
        made(PrivacyEngine(), mlp(), N, group="nccl")


def test_a_checkpoint_of_rank_0_goes_on_everywhere(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert torch.equal(rank["kept"]["back"], ranks[0]["kept"]["back"])
    torch.testing.assert_close(ranks[0]["kept"]["back"], ranks[0]["kept"]["going"], rtol=0, atol=1e-12)
    assert ranks[0]["kept"]["rounds"] == [4, 4]


def test_every_record_is_one_ranks() -> None:
    drawn = [
        torch.cat([torch.tensor(draw) for draw in Draws(Poisson(1.0), N, SeededSource(0), None, shard=(rank, 3))])
        for rank in range(3)
    ]
    assert torch.cat(drawn).sort().values.tolist() == list(range(N))
    some = [i for draw in Draws(Poisson(0.3), N, SeededSource(0), None, shard=(1, 3)) for i in draw]
    assert some and all(i % 3 == 1 for i in some)


def test_what_must_be_equal_is_computed_on_one_thread(ranks: list[dict[str, Any]]) -> None:
    assert [rank["threads"] for rank in ranks] == [(1, [1]), (2, [1])]
