"""The hooks of DistributedDataParallel on two real gloo processes with different thread counts."""

import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import together
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper, fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel as DDP

from isthmus.base.validate import InvalidInput
from isthmus.distributed.hooks import SketchState, WarmRank, sketch_hook
from isthmus.sketches import SRHT, Coordinates, CountSketch, Kronecker

WAYS = {
    "low rank": WarmRank(3),
    "halves": WarmRank(3, halves=True),
    "count": CountSketch(0.2),
    "srht": SRHT(0.2),
    "coordinates": Coordinates(0.2),
}


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def batch(rank: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(1000 * t + rank)
    x = torch.randn(32, 40, generator=draws)
    return x, x[:, :10].argmax(1)


def wrapped(state: SketchState, hook: Any = sketch_hook) -> DDP:
    """Buckets of 1 KB: several from the first step on, and others after it."""
    made = DDP(model(), bucket_cap_mb=0.001)
    made.register_comm_hook(state, lambda state, bucket: hook(state, bucket))  # DDP refuses bfloat16 on gloo by name
    return made


def train(module: nn.Module, rank: int, steps: range, lr: float = 0.1) -> list[float]:
    optimizer, losses = torch.optim.SGD(module.parameters(), lr), []
    for t in steps:
        x, y = batch(rank, t)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def errors(state: SketchState, module: nn.Module) -> torch.Tensor:
    """What is left, in the order of the module's parameters."""
    found = state.state_dict()["errors"]
    return torch.cat([found[state._name(parameter)] for parameter in module.parameters()])


def conserved(rank: int, way: Any) -> dict[str, Any]:
    """Every step's gradient is in the weights or in the errors, through the making of new buckets too."""
    state = SketchState(way, seed=5)
    module = wrapped(state)
    begin, due, lr, layouts = flat(module), torch.zeros(flat(module).numel()), 0.1, []
    for t in range(6):
        twin = model()
        twin.load_state_dict(module.module.state_dict())
        x, y = batch(rank, t)
        nn.functional.cross_entropy(twin(x), y).backward()
        due += torch.cat([p.grad.reshape(-1) for p in twin.parameters()])  # type: ignore[union-attr]
        train(module, rank, range(t, t + 1), lr)
        layouts.append(set(state._compared))
    left = errors(state, module)
    both = torch.stack([due, left])
    dist.all_reduce(both)
    mean_due, mean_left = both / 2
    done = (begin - flat(module)) / lr
    return {
        "weights": flat(module),
        "gap": float((done + mean_left - mean_due).norm() / mean_due.norm()),
        "left": float(mean_left.norm() / mean_due.norm()),
        "rebuilt": layouts[0] != layouts[-1],
        "buckets": len(layouts[-1] - layouts[0]),
        "ratio": state.plain / state.sent,
    }


def everything(rank: int) -> dict[str, dict[str, Any]]:
    return {name: conserved(rank, way) for name, way in WAYS.items()}


def test_gradients_are_in_the_weights_or_in_the_errors_and_ranks_are_equal_to_the_bit() -> None:
    first, second = together(everything)
    for name in WAYS:
        mine, other = first[name], second[name]
        assert torch.equal(mine["weights"], other["weights"]), name
        assert mine["gap"] < 1e-5 and mine["left"] > 0.05, name
        assert mine["rebuilt"] and mine["buckets"] > 2 and mine["ratio"] > 1.9, name


def resumed(rank: int) -> dict[str, Any]:
    """A run that was stopped, its state stored, and a new module and state made: as if nothing had happened.

    (But for last bits: buckets of a new module lie otherwise in memory for one step.)  Without the state it is another.
    """
    whole = wrapped(SketchState(WarmRank(2)))
    train(whole, rank, range(8))
    state = SketchState(WarmRank(2))
    first = wrapped(state)
    train(first, rank, range(4))
    stored = io.BytesIO()
    torch.save({"state": state.state_dict(), "model": first.module.state_dict()}, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=True)
    again = {}
    pickled = pickle.loads(pickle.dumps(state))
    fresh = SketchState(WarmRank(2))
    for name, taken in (("state_dict", SketchState(WarmRank(2))), ("pickle", pickled), ("none", fresh)):
        if name == "state_dict":
            taken.load_state_dict(loaded["state"])
        module = model()
        module.load_state_dict(loaded["model"])
        second = DDP(module, bucket_cap_mb=0.001)
        second.register_comm_hook(taken, sketch_hook)
        train(second, rank, range(4, 8))
        again[name] = float((flat(second) - flat(whole)).norm() / flat(whole).norm()), taken.t
    return again


def halves(rank: int) -> dict[str, Any]:
    """torch's wrappers: half of the bytes, and as good a model."""
    by_name = {}
    for name, hook in (
        ("whole", sketch_hook),
        ("bfloat16", bf16_compress_wrapper(sketch_hook)),
        ("float16", fp16_compress_wrapper(sketch_hook)),
    ):
        state = SketchState(WarmRank(3))
        module = wrapped(state, hook)
        losses = train(module, rank, range(40), 1.0)
        by_name[name] = {"sent": state.sent, "loss": sum(losses[-8:]) / 8, "weights": flat(module)}
    return by_name


def spoiled(rank: int) -> dict[str, Any]:
    """One rank has a gradient that is not finite, in a coordinate that the map does not read."""
    state = SketchState(CountSketch(0.2))
    module = wrapped(state)
    train(module, rank, range(3))
    before = state.state_dict()
    x, y = batch(rank, 3)
    nn.functional.cross_entropy(module(x * (torch.nan if rank else 1.0)), y).backward()
    gradients = torch.cat([p.grad.reshape(-1) for p in module.parameters()])  # type: ignore[union-attr]
    after = state.state_dict()
    module.zero_grad()
    kept = all(torch.equal(before["errors"][name], after["errors"][name]) for name in before["errors"])
    return {"nan": bool(gradients.isnan().all()), "kept": kept, "loss": train(module, rank, range(4, 6))}


def unequal(rank: int) -> str:
    """Ranks with different seeds."""
    try:
        train(wrapped(SketchState(SRHT(0.2), seed=rank)), rank, range(1))
    except (InvalidInput, RuntimeError) as error:
        return str(error)
    return ""


def rarer(rank: int) -> dict[str, Any]:
    return {"resumed": resumed(rank), "halves": halves(rank), "spoiled": spoiled(rank), "unequal": unequal(rank)}


def test_checkpoints_halves_and_what_goes_wrong() -> None:
    answers = together(rarer)
    for each in answers:
        (first, t), (second, s), (other, _) = (each["resumed"][name] for name in ("state_dict", "pickle", "none"))
        assert first == second < 1e-5 and t == s == 8 and other > 1e-3
        whole, *half = (each["halves"][name] for name in ("whole", "bfloat16", "float16"))
        assert all(2 * found["sent"] == whole["sent"] for found in half)
        assert whole["loss"] < 2.0 and all(abs(found["loss"] - whole["loss"]) < 0.2 for found in half)
        assert each["spoiled"]["nan"] and each["spoiled"]["kept"]
        assert all(loss == loss for loss in each["spoiled"]["loss"])
        assert "seed=" in each["unequal"] and "the ranks differ" in each["unequal"]
    for name in ("whole", "bfloat16", "float16"):
        assert torch.equal(*(ranks_result["halves"][name]["weights"] for ranks_result in answers))


WRONG = [
    ({"way": WarmRank(1), "feedback": False}, "feedback=False is not allowed"),
    ({"way": "srht"}, "way='srht' is not allowed: give WarmRank"),
    ({"way": Kronecker(8, 8)}, "give WarmRank"),
    ({"way": SRHT(0.1), "start": -1}, "start=-1"),
    ({"way": SRHT(0.1), "seed": 1.5}, "seed=1.5"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_wrong_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        SketchState(**given)
    with pytest.raises(InvalidInput, match="rank=0"):
        WarmRank(0)


def test_a_state_of_another_run_is_refused() -> None:
    state = SketchState(WarmRank(2), seed=1)
    with pytest.raises(InvalidInput, match="seed=1, as it was saved"):
        SketchState(WarmRank(2)).load_state_dict(state.state_dict())
    with pytest.raises(InvalidInput, match="way=WarmRank.*as it was saved"):
        SketchState(SRHT(0.1), seed=1).load_state_dict(state.state_dict())
