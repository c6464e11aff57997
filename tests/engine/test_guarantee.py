"""What the guarantee rests on, through the whole engine: sensitivity without noise, and noise two-sidedly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, CLASSES, MODELS, C, N, Trained, Z, data, private
from scipy import stats
from test_sketches import SKETCHES, public

from isthmus import CountSketch, GradientEmbedding, Kronecker, KroneckerSubspace, PrivacyEngine, PublicSubspace
from isthmus.core.driver import Ticket
from isthmus.gradients.adding import KAPPA

EXTRA: dict[str, dict[str, Any]] = {
    "clip-before": {"sketch": PublicSubspace(5, refresh=1, clip="before")},
    "embedding": {"sketch": GradientEmbedding(PublicSubspace(4, refresh=1), clip_rest=0.1)},
    "embedding-kronecker": {"sketch": GradientEmbedding(KroneckerSubspace(3, 2), clip_rest=0.1)},
    "per-layer": {"clipping": "per_layer"},
    "per-layer-kronecker": {"clipping": "per_layer", "sketch": Kronecker(4, 2)},
    "per-layer-public-kronecker": {"clipping": "per_layer", "sketch": KroneckerSubspace(3, 2)},
    "adaptive": {"clipping": "adaptive"},
    "adaptive-kronecker": {"clipping": "adaptive", "sketch": Kronecker(4, 2)},
    "adaptive-count": {"clipping": "adaptive", "sketch": CountSketch(12)},
    "adaptive-before": {"clipping": "adaptive", "sketch": PublicSubspace(5, refresh=1, clip="before")},
    "micro": {"micro_batch_size": 5},
    "micro-kronecker": {"micro_batch_size": 5, "sketch": Kronecker(4, 2)},
    "micro-embedding": {
        "micro_batch_size": 5,
        "sketch": GradientEmbedding(PublicSubspace(4, refresh=1), clip_rest=0.1),
    },
}
RECORDS = {"ordinary": 1.0, "large": 1e6, "huge": 1e30, "not-a-number": math.nan, "infinite": math.inf}
STEP = 4


def options(name: str, kind: str) -> dict[str, Any]:
    return {"public": public(kind)} | (EXTRA[name] if name in EXTRA else {"sketch": SKETCHES[name](kind)})


def sums(run: Trained, x: torch.Tensor, y: torch.Tensor, groups: torch.Tensor | None) -> dict[str, Any]:
    """The bounded sums of one batch, as they would be handed to the mechanisms."""
    driver = run.engine.driver
    driver.rest()
    driver.begin(Ticket(len(x), groups=groups))
    F.cross_entropy(run.module(x), y).backward()
    driver._finish_backward()
    found, driver._sum = driver._sum.values, None
    return dict(found)


@pytest.mark.parametrize("record", list(RECORDS))
@pytest.mark.parametrize("name", [*SKETCHES, *EXTRA])
def test_one_record_moves_each_release_by_at_most_its_bound(name: str, record: str) -> None:
    kind = "cnn" if name in ("none", "kronecker", "count", "per-layer") else "mlp"
    run, dataset = private(MODELS[kind](), data(kind), **options(name, kind)), data(kind, 12, seed=8)
    x, y = dataset.x.clone(), dataset.y
    x[STEP] *= RECORDS[record]
    micro = EXTRA.get(name, {}).get("micro_batch_size", 1)
    groups = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(1)) if micro > 1 else None
    left = torch.arange(12) != STEP
    whole = sums(run, x, y, groups)
    without = sums(run, x[left], y[left], None if groups is None else groups[left])
    stated = {"main/code": C, "main/rest": 0.1, "main/gradient": C, "main/below": 0.5}
    for release, bounded in whole.items():
        factor = (2 if micro > 1 else 1) * (1 + KAPPA) * (1 + (1e-5 if "before" in name else 1e-9))  # or a gain
        assert bounded.bound <= stated[f"main/{release}"] * factor
        assert bool(torch.isfinite(bounded.value).all())
        moved = float((bounded.value - without[release].value).norm())
        assert moved <= bounded.bound
        if record == "large" and micro == 1 and release != "rest":
            assert moved >= 0.4 * bounded.bound or "blocks" in name or "coordinates" in name or "nice" in name


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("sketch", [None, Kronecker(4, 2)])
def test_a_micro_batch_can_turn_round_by_twice_the_bound_and_no_more(sketch: Any, sign: float) -> None:
    """A group whose mean points one way without the record and the other way with it: nearly 2C, never beyond."""
    torch.manual_seed(0)
    run = private(torch.nn.Linear(6, 1).double(), data(), sketch=sketch, micro_batch_size=5)
    x, y = torch.ones(3, 6, dtype=torch.float64), torch.full((3, 1), 1e3, dtype=torch.float64)
    x[2], y[2] = 1e3, sign * 1e6
    collected = []
    for keep in (torch.tensor([0, 1, 2]), torch.tensor([0, 1])):
        driver = run.engine.driver
        driver.rest()
        driver.begin(Ticket(len(keep), groups=torch.zeros(len(keep), dtype=torch.long)))
        F.mse_loss(run.module(x[keep]), y[keep]).backward()
        driver._finish_backward()
        collected.append(driver._sum.values["gradient"])
        driver._sum = None
    moved = float((collected[0].value - collected[1].value).norm())
    assert collected[0].bound == 2 * C * (1 + KAPPA)
    assert moved <= 2 * C * (1 + 1e-9)
    assert sign > 0 or moved >= 1.9 * C


def test_random_micro_batches_stay_within_twice_the_bound() -> None:
    run, g, worst = private(MODELS["mlp"](), data(), micro_batch_size=5), torch.Generator().manual_seed(4), 0.0
    for _ in range(30):
        x = torch.randn(9, 6, generator=g, dtype=torch.float64) * 10 ** float(torch.randn((), generator=g))
        y, groups = torch.randint(0, CLASSES, (9,), generator=g), torch.randint(0, 2, (9,), generator=g)
        whole, without = sums(run, x, y, groups), sums(run, x[1:], y[1:], groups[1:])
        worst = max(worst, float((whole["gradient"].value - without["gradient"].value).norm()))
    assert 0 < worst <= 2 * C


NOISY: dict[str, dict[str, Any]] = {
    "plain": {},
    "secure": {"engine": lambda: PrivacyEngine(secure_mode=True)},
    "seeded": {"noise_generator": torch.Generator().manual_seed(7)},
    "kronecker": {"sketch": Kronecker(4, 2)},
    "per-layer": {"clipping": "per_layer", "max_grad_norm": {"0": 0.3, "2": 0.4}},
    "micro": {"micro_batch_size": 5},
    "normaliser": {"normaliser": 25.0},
    "physical": {"max_physical_batch_size": 4},
    "fixed": {"poisson_sampling": False},
    "embedding": {"sketch": GradientEmbedding(KroneckerSubspace(3, 2), clip_rest=0.1, share=0.4)},
    "adaptive": {"clipping": "adaptive", "clipbound_learning_rate": 1e-9},
}
SCALES = {
    "per-layer": {"gradient": Z * 0.5},
    "micro": {"gradient": Z * 2 * C},
    "embedding": {"code": Z * C / math.sqrt(0.4), "rest": Z * 0.1 / math.sqrt(0.6)},
    "adaptive": {"gradient": Z * C / math.sqrt(0.95), "below": Z * 0.5 / math.sqrt(0.05)},
}
DIVISORS = {"micro": BATCH / 5, "normaliser": 25.0}


@pytest.mark.parametrize("name", list(NOISY))
def test_the_noise_has_the_stated_scale_and_no_other(name: str) -> None:
    arguments = {"noise_generator": None} | NOISY[name]
    engine = arguments.pop("engine", PrivacyEngine)()
    run, noise = private(MODELS["mlp"](), data(), engine=engine, public=public("mlp"), **arguments), {}
    driver = engine.driver
    divisor = DIVISORS.get(name, BATCH)
    for _ in range(40 if name == "adaptive" else 6):
        for _, x, y in run.loader:
            F.cross_entropy(run.module(x), y).backward()
            driver._finish_backward()
            whole = {} if driver._sum is None else driver._sum.values
            before = {release: bounded.value.clone() for release, bounded in whole.items()}  # it is noised in place
            before_t = driver.state.t
            run.optimizer.step()
            if driver.state.t == before_t or not before:
                continue
            for release, value in run.rounds[-1].released["main"].items():
                difference = value.double() * divisor - before[release]
                noise.setdefault(release, []).append(difference)
    for release, scale in SCALES.get(name, {"gradient": Z * C}).items():
        drawn = torch.cat(noise[release]).numpy() / scale
        assert len(drawn) >= 150
        assert stats.kstest(drawn, "norm").pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            energy = float(((drawn * wrong) ** 2).sum())
            assert min(stats.chi2.cdf(energy, len(drawn)), stats.chi2.sf(energy, len(drawn))) < 1e-5
            assert len(drawn) < 1000 or stats.kstest(drawn * wrong, "norm").pvalue < 1e-5
        if name != "seeded":
            assert len(set(drawn.tolist())) == len(drawn)


def test_noise_differs_between_engines_and_rounds() -> None:
    rounds = []
    for _ in range(2):
        run = private(MODELS["mlp"](), data(), noise_generator=None, normaliser=1.0, noise_multiplier=1e6)
        for _, x, y in run.loader:
            F.cross_entropy(run.module(x), y).backward()
            run.optimizer.step()
        rounds += [round.released["main"]["gradient"] for round in run.rounds]
    assert len(rounds) == 2 * N // BATCH
    whole = torch.stack(rounds)
    assert float(torch.corrcoef(whole).fill_diagonal_(0).abs().max()) < 0.75
