"""Every option is supported, or refused by its name with a reason; bad input is refused before anything happens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, N, cnn, data, loader, mlp, private, train
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from isthmus import (
    CountSketch,
    GradientEmbedding,
    InvalidInput,
    Kronecker,
    L2Ball,
    PrivacyEngine,
    Progressive,
    PublicSubspace,
)
from isthmus.engine import BatchMemoryManager

BAD = [math.nan, math.inf, -math.inf, 0.0, -1.0, "1", None]


def refused(match: str, **options: Any) -> None:
    engine = options.pop("on", None) or PrivacyEngine()
    module = options.pop("module", None) or mlp()
    weights = [p.clone() for p in module.parameters()]
    asking = [p.requires_grad for p in module.parameters()]
    with pytest.raises(InvalidInput, match=match):
        private(module, options.pop("dataset", data()), engine=engine, **options)
    assert all(torch.equal(a, b) for a, b in zip(weights, module.parameters(), strict=True))
    assert [p.requires_grad for p in module.parameters()] == asking
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert engine.ledger.rounds() == {}


@pytest.mark.parametrize("value", [value for value in BAD if value != 0.0])  # 0 is a run without noise, and says so
def test_noise_multipliers(value: Any) -> None:
    refused("noise_multiplier", noise_multiplier=value)


@pytest.mark.parametrize("clipping", ["flat", "adaptive", "per_layer"])
@pytest.mark.parametrize("value", BAD[:-1])
def test_clip_bounds(value: Any, clipping: str) -> None:
    refused("max_grad_norm", max_grad_norm=value, clipping=clipping)


@pytest.mark.parametrize(
    "clipping, norm",
    [
        ("flat", [1.0, 1.0]),
        ("flat", {"0": 1.0, "2": 1.0}),
        ("adaptive", [1.0]),
        ("per_layer", [1.0]),
        ("per_layer", [1.0, math.nan]),
        ("per_layer", {"0": 1.0}),
        ("per_layer", {"0": 1.0, "2": 1.0, "3": 1.0}),
        ("per_layer", {"0": 1.0, "2": -1.0}),
    ],
)
def test_shapes_of_clip_bounds(clipping: str, norm: Any) -> None:
    refused("max_grad_norm", max_grad_norm=norm, clipping=clipping)


TARGET = {"target_epsilon": 1.0, "target_delta": 1e-5, "epochs": 1}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", ["target_epsilon", "target_delta", "epochs"])
def test_targets(name: str, value: Any) -> None:
    refused(name, **{**TARGET, name: value})


def test_more_targets() -> None:
    refused("target_delta", **{**TARGET, "target_delta": 1.0})
    module = mlp()
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        PrivacyEngine().make_private_with_epsilon(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=loader(data()),
            max_grad_norm=1.0,
            noise_multiplier=1.0,
            **TARGET,
        )


@pytest.mark.parametrize(
    "option, value, reason",
    [
        ("grad_sample_mode", "ghost_fsdp", "sharded modules"),
        ("grad_sample_mode", "other", "choose one of"),
        ("rand_on_empty", True, "empty batch"),
        ("noise_scheduler", object(), "fixed when training is made private"),
        ("grad_clip_scheduler", object(), "adaptive"),
        ("max_clipbound", 9.0, "factor"),
        ("min_clipbound", 0.1, "factor"),
        ("unclipped_num_std", 1.0, "share of the budget"),
        ("n_splits", 2, "pipeline-parallel"),
        ("strict", True, "always validated"),
        ("target_unclipped_quantile", 0.5, "adaptive"),
        ("clipbound_learning_rate", 0.5, "adaptive"),
        ("no_such_thing", 1, "no such option"),
        ("clipping", "ghost", "choose one of"),
        ("loss_reduction", "none", "choose one of"),
        ("micro_batch_size", 0, "give a whole number of at least 1"),
        ("micro_batch_size", 2.5, "give a whole number of at least 1"),
        ("max_physical_batch_size", 0, "give a whole number of at least 1"),
        ("normaliser", -1.0, "give a finite number above 0"),
        ("normaliser", math.nan, "give a finite number above 0"),
        ("sketch", "count", "a sketch of isthmus"),
        ("constraint", {"9": L2Ball(1.0)}, "name layers"),
        ("constraint", {"0": "ball"}, "set from isthmus"),
        ("constraint", 3.0, "set from isthmus"),
        ("noise_generator", 5, "torch.Generator"),
    ],
)
def test_options_are_refused_by_name(option: str, value: Any, reason: str) -> None:
    refused(f"{option}.*{reason}", **{option: value})


@pytest.mark.parametrize(
    "options, name",
    [
        ({"micro_batch_size": 2, "max_physical_batch_size": 5}, "max_physical_batch_size"),
        ({"micro_batch_size": 2, "clipping": "per_layer"}, "micro_batch_size"),
        ({"micro_batch_size": 2, "clipping": "adaptive"}, "micro_batch_size"),
        ({"micro_batch_size": 2, "poisson_sampling": False}, "micro_batch_size"),
        ({"normaliser": 5.0, "poisson_sampling": False}, "normaliser"),
        ({"clipping": "per_layer", "sketch": CountSketch(9)}, "sketch"),
        ({"clipping": "per_layer", "sketch": Progressive([(1, Kronecker(2, 2)), (2, CountSketch(9))])}, "sketch"),
        ({"clipping": "per_layer", "sketch": GradientEmbedding(PublicSubspace(2), 0.1)}, "clipping"),
        ({"constraint": L2Ball(1.0), "sketch": GradientEmbedding(PublicSubspace(2), 0.1)}, "constraint"),
        ({"sketch": GradientEmbedding(PublicSubspace(2, clip="before"), 0.1)}, "sketch"),
        ({"sketch": Progressive([(1, PublicSubspace(2)), (2, PublicSubspace(2, clip="before"))])}, "sketch"),
        ({"on": PrivacyEngine(secure_mode=True)}, "noise_generator"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], name: str) -> None:
    refused(name, **options)


@pytest.mark.parametrize("clip_rest, share", [(0.0, 0.5), (math.nan, 0.5), (1.0, 0.0), (1.0, 1.0)])
def test_gradient_embeddings(clip_rest: float, share: float) -> None:
    with pytest.raises(InvalidInput):
        GradientEmbedding(PublicSubspace(2), clip_rest, share)
    with pytest.raises(InvalidInput, match="encoder"):
        GradientEmbedding(None, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [True, False])
def test_supported_options(wrap: bool) -> None:
    run = train(private(mlp(), data(), wrap_model=wrap, grad_sample_mode="hooks", rand_on_empty=False), 1)
    assert len(run.rounds) == 4
    assert not hasattr(run.module, "_module")


def test_fixed_batches_are_accounted_for_replacing_a_record() -> None:
    run = train(private(mlp(), data(), poisson_sampling=False), 1)
    assert {len(batch) for batch in run.batches} == {BATCH}
    assert run.engine.ledger.adjacency.value == "replace-one"


@pytest.mark.parametrize("accountant", ["nonsense", 3])
def test_engines(accountant: Any) -> None:
    with pytest.raises(InvalidInput, match="accountant"):
        PrivacyEngine(accountant=accountant)


@pytest.mark.parametrize("options", [{"seed": -1}, {"adjacency": "neighbours"}, {"seed": 1.5}])
def test_more_engines(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        PrivacyEngine(**options)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, -1e-5, 2.0])
def test_deltas(delta: float) -> None:
    run = private(mlp(), data())
    with pytest.raises(InvalidInput, match="delta"):
        run.engine.get_epsilon(delta)
    with pytest.raises(InvalidInput, match="delta"):
        run.engine.statement(delta)


# ---------------------------------------------------------------- loaders


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ()


class SizedStream(Stream):
    def __len__(self) -> int:
        return N


class Empty(TensorDataset):
    def __len__(self) -> int:
        return 0


WEIGHTS = torch.ones(N).tolist()
LOADERS: dict[str, tuple[Any, str]] = {
    "list": (lambda: [(torch.ones(2, 6), torch.ones(2))], "DataLoader"),
    "none": (lambda: None, "DataLoader"),
    "stream": (lambda: DataLoader(Stream(), batch_size=4), "map-style"),
    "sized stream": (lambda: DataLoader(SizedStream(), batch_size=4), "map-style"),
    "empty": (lambda: DataLoader(Empty(torch.ones(1)), batch_size=4), "at least one record"),
    "too large": (lambda: loader(data(), N + 1), "number of records"),
    "no batch size": (lambda: DataLoader(data(), batch_size=None), "batch_size"),
    "subset": (lambda: loader(data(), sampler=SubsetRandomSampler(range(9))), "Subset"),
    "weights": (lambda: loader(data(), sampler=WeightedRandomSampler(WEIGHTS, N)), "whole dataset"),
    "replacement": (lambda: loader(data(), sampler=RandomSampler(data(), replacement=True)), "whole dataset"),
    "batch sampler": (
        lambda: DataLoader(data(), batch_sampler=Batches(RandomSampler(data()), 4, False)),
        "batch_sampler",
    ),
}


class Batches(BatchSampler):
    """A batch sampler of the user's own."""


@pytest.mark.parametrize("name", list(LOADERS))
def test_loaders(name: str) -> None:
    make, match = LOADERS[name]
    module = mlp()
    with pytest.raises(InvalidInput, match=match):
        PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=make(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("options", [{"shuffle": True}, {"drop_last": True}, {"pin_memory": False}, {"timeout": 0}])
def test_ordinary_loaders(options: dict[str, Any]) -> None:
    assert len(train(private(mlp(), data(), loading=options), 1).rounds) == 4


def test_managers() -> None:
    run = private(mlp(), data(), micro_batch_size=2)
    for options in ({"max_physical_batch_size": 0}, {"max_physical_batch_size": 4}):
        with pytest.raises(InvalidInput, match="max_physical_batch_size"):
            BatchMemoryManager(data_loader=run.loader, optimizer=run.optimizer, **options)
    with pytest.raises(InvalidInput, match="data_loader"):
        BatchMemoryManager(data_loader=loader(data()), max_physical_batch_size=4, optimizer=run.optimizer)


# ---------------------------------------------------------------- modules and optimisers


def frozen() -> nn.Module:
    return mlp().requires_grad_(False)


MODULES: dict[str, tuple[Any, str]] = {
    "batch norm": (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "get_compatible_module"),
    "lstm": (lambda: nn.LSTM(6, 3), "get_compatible_module"),
    "wrapped": (lambda: nn.DataParallel(mlp()), "DataParallel"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy"),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)),
        "running",
    ),
}


@pytest.mark.parametrize("name", list(MODULES))
@pytest.mark.filterwarnings("ignore:.*[Ll]azy:UserWarning")
def test_modules(name: str) -> None:
    make, match = MODULES[name]
    module = make()
    with pytest.raises(InvalidInput, match=match):
        private(module, data())


def test_a_module_wrapped_for_several_processes() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        refused("DistributedDataParallel", module=nn.parallel.DistributedDataParallel(mlp()))
    finally:
        dist.destroy_process_group()


def test_a_module_with_nothing_to_train() -> None:
    module = frozen()
    with pytest.raises(InvalidInput, match="trainable"):
        private(module, data(), optimizer=lambda p: torch.optim.SGD(module.parameters(), lr=0.1))


def test_what_the_engine_says_of_modules() -> None:
    bad = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3))
    assert not PrivacyEngine.is_compatible(module=bad)
    assert PrivacyEngine.validate(module=bad)
    with pytest.raises(InvalidInput, match="BatchNorm2d"):
        PrivacyEngine.validate(module=bad, strict=True)
    good = PrivacyEngine.get_compatible_module(bad)
    assert PrivacyEngine.is_compatible(module=good)
    assert PrivacyEngine.validate(module=good, strict=True) == []
    run = train(private(good.double(), data("cnn")), 1)  # a fixed module with an in-place activation after the norm
    assert len(run.rounds) == 4


OPTIMIZERS = {
    "lbfgs": (lambda p: torch.optim.LBFGS(p), "release"),
    "missing": (lambda p: torch.optim.SGD(p[:2], lr=0.1), "exactly the . parameters that the module trains"),
    "foreign": (
        lambda p: torch.optim.SGD([*p, nn.Parameter(torch.ones(2))], lr=0.1),
        "exactly the . parameters that the module trains",
    ),
    "other module": (
        lambda p: torch.optim.SGD(cnn().parameters(), lr=0.1),
        "exactly the . parameters that the module trains, of which it has 0",
    ),
    "function": (lambda p: F.mse_loss, "torch optimiser"),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimisers(name: str) -> None:
    make, match = OPTIMIZERS[name]
    refused(f"optimizer.*{match}", optimizer=make)


def test_public_data_that_is_missing() -> None:
    run = private(mlp(), data(), sketch=PublicSubspace(3))
    with pytest.raises(InvalidInput, match="public"):
        train(run, 1)
    assert run.engine.ledger.rounds() == {}
    run = private(mlp(), data(), sketch=PublicSubspace(3), public=(data().x, data().y), criterion=None)
    with pytest.raises(InvalidInput, match="loss"):
        train(run, 1)
    assert run.engine.ledger.rounds() == {}
