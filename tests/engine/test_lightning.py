"""Lightning's Trainer around private training: closures, schedulers, validation, checkpoints."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import Trained, assert_same, data, loader, mlp, private, train
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.lr_scheduler import StepLR

from isthmus.opacus_compat.utils.batch_memory_manager import wrap_data_loader

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own advice


def lit(run: Trained, **more: Any) -> Any:
    """A LightningModule around what make_private returned."""

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = run.module, []

        def training_step(self, batch: Any, index: int) -> Any:
            i, x, y = batch
            run.batches.append(i.tolist())
            return F.cross_entropy(self.net(x), y)

        def validation_step(self, batch: Any, index: int) -> None:
            _, x, y = batch
            self.seen.append(float(F.cross_entropy(self.net(x), y)))

        def configure_optimizers(self) -> Any:
            schedule = more.get("schedule")
            return run.optimizer if schedule is None else ([run.optimizer], [schedule(run.optimizer)])

    return Lit()


def fit(module: Any, batches: Any, tmp_path: Any, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    facts = {"max_epochs": 2, "enable_checkpointing": False, "default_root_dir": tmp_path, "num_sanity_val_steps": 0}
    trainer = lightning.Trainer(**(quiet | facts | options))
    trainer.fit(module, batches, loader(data(seed=6)))
    return trainer


def adam(parameters: Any) -> Adam:
    return Adam(parameters, lr=0.05)


def test_a_trainer_trains_as_the_plain_loop_does(tmp_path: Any) -> None:
    plain, run = (private(mlp(), data(), optimizer=adam) for _ in range(2))
    train(plain)
    module = lit(run)
    fit(module, run.loader, tmp_path)
    assert len(run.rounds) == 8 == len(run.engine.accountant) and len(module.seen) == 8
    assert run.batches == plain.batches
    assert_same(run.module, plain.module, 1e-12)


def test_the_lightning_module_itself_is_made_private(tmp_path: Any) -> None:
    class Whole(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Any:
            return F.cross_entropy(self(batch[1]), batch[2])

        def configure_optimizers(self) -> Any:
            return self.made

    module: Any = Whole()
    run = private(module, data(), optimizer=adam)
    module.made = run.optimizer
    plain = train(private(mlp(), data(), optimizer=adam))
    fit(module, run.loader, tmp_path)
    assert run.engine.ledger.rounds() == {"main": 8}
    assert_same(module.net, plain.module, 1e-12)
    assert isinstance(copy.deepcopy(module.net), nn.Module)


def test_schedulers_and_clips_of_the_trainer(tmp_path: Any) -> None:
    """The trainer's clip sees released values of the step before, or nothing: it cannot touch a record's gradient."""
    plain, run = (private(mlp(), data(), optimizer=adam) for _ in range(2))
    schedule = StepLR(plain.optimizer, 1, 0.5)
    for _ in range(2):
        train(plain, 1)
        schedule.step()
    fit(lit(run, schedule=lambda o: StepLR(o, 1, 0.5)), run.loader, tmp_path, gradient_clip_val=1e-3)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 4)
    assert_same(run.module, plain.module, 1e-12)


def test_accumulated_batches_are_rounds_of_their_own(tmp_path: Any) -> None:
    run = private(mlp(), data(), optimizer=adam)
    fit(lit(run), run.loader, tmp_path, accumulate_grad_batches=2)
    assert run.engine.ledger.rounds() == {"main": 8}


def test_checkpoints_of_the_trainer_hold_plain_weights(tmp_path: Any) -> None:
    run = private(mlp(), data(), optimizer=adam)
    trainer = fit(lit(run), run.loader, tmp_path, enable_checkpointing=True)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = torch.load(tmp_path / "last.ckpt", weights_only=False)
    assert sorted(loaded["state_dict"]) == sorted(f"net.{name}" for name in mlp().state_dict())
    assert len(loaded["optimizer_states"][0]["state"]) == 4


def test_a_scaler_of_the_trainer(tmp_path: Any) -> None:
    """`MixedPrecision(scaler=)` takes the scaler that make_private was told of."""
    from lightning.pytorch.plugins.precision import MixedPrecision

    plain = train(private(mlp(), data(), optimizer=adam))
    amp = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    run = private(mlp(), data(), optimizer=adam, grad_scaler=amp)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=amp)
    plugin.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)  # type: ignore[method-assign]
    fit(lit(run), run.loader, tmp_path, plugins=[plugin])
    assert amp.get_scale() == 2.0**10 and len(run.rounds) == 8
    assert_same(run.module, plain.module, 1e-12)


def test_pieces_are_counted_by_the_loader_that_a_trainer_is_given(tmp_path: Any) -> None:
    """A trainer stops after len(loader) batches: that of the memory manager counts pieces."""
    plain, run = (private(mlp(), data(), optimizer=adam, poisson_sampling=False) for _ in range(2))
    train(plain)
    pieces = wrap_data_loader(data_loader=run.loader, max_batch_size=3, optimizer=run.optimizer)
    fit(lit(run), pieces, tmp_path)
    assert len(run.rounds) == 8 and len(run.batches) == 2 * len(pieces) == 32
    assert_same(run.module, plain.module, 1e-12)
