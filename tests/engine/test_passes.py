"""Whose pass it is: every record is clipped once a round, and no sample is used in two."""

import pytest
import torch
import torch.nn.functional as F
from engine_cases import MODELS, data, private, step, sums, train
from refusals import refuses
from torch import nn

from isthmus import InvalidInput, PrivacyEngine


def mlp() -> nn.Module:
    return MODELS["mlp"]()


def batches(run):
    return ((x, y) for _, x, y in run.loader)


def test_a_piece_that_was_summed_is_not_summed_again() -> None:
    run = private(mlp(), data(), max_physical_batch_size=3)
    for x, y in batches(run):
        last = run.engine.driver._ticket.last
        step(run, x, y)
        if not last:
            with pytest.raises(InvalidInput, match="handed out 0"):
                run.module(x)
            break


def test_a_gradient_that_comes_after_its_round_is_refused() -> None:
    run = private(mlp(), data())
    x, y = next(batches(run))
    first, second = F.cross_entropy(run.module(x), y), F.cross_entropy(run.module(x), y)
    first.backward()
    run.optimizer.step()
    with pytest.raises(InvalidInput, match="after its batch was closed"):
        second.backward()


def test_two_batches_in_one_loss_are_refused() -> None:
    run = private(mlp(), data(), poisson_sampling=False)
    found = batches(run)
    x, y = next(found)
    total = F.cross_entropy(run.module(x), y)
    with pytest.warns(UserWarning, match="no step was taken"):
        x, y = next(found)
    with pytest.raises(InvalidInput, match="before the one before it was used"):
        run.module(x)
    assert run.engine.ledger.rounds() == {}
    with pytest.raises(InvalidInput, match="after its batch was closed"):
        total.backward()


def test_without_a_batch_in_hand_nothing_goes_through_the_module() -> None:
    run = private(mlp(), data())
    x, y = next(batches(run))
    run.engine.driver.rest()
    with pytest.raises(InvalidInput, match="handed out 0"):
        run.module(x)


def test_cancelling_gradients_of_a_table_keep_the_bound() -> None:
    """A record that names one word twice, with gradients +-1e10 there, moves the sum by no more than C."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(8, 1, bias=False))
    module[2].requires_grad_(False)
    zeros = torch.utils.data.TensorDataset(torch.zeros(400, 1))
    engine = private(module, zeros, batch=200, max_grad_norm=1.0, loss_reduction="sum", criterion=None).engine
    with torch.no_grad():
        module[2].weight[:, :4], module[2].weight[:, 4:] = 1.0, -1.0
    index, scale = torch.zeros(200, 2, dtype=torch.long), torch.ones(200)
    index[:, 1], scale[-1] = 7, 1e10
    index[-1] = 0

    def total(n: int) -> torch.Tensor:
        return sums(engine, lambda: (module(index[:n]).squeeze(1) * scale[:n]).sum(), n)["gradient"].value

    assert float((total(200) - total(199)).double().norm()) <= 1.0 + 1e-4


def test_a_table_that_is_rewritten_by_the_data_is_refused_even_when_it_is_frozen() -> None:
    module = nn.Sequential(nn.Embedding(9, 3, max_norm=1.0), nn.Flatten(), nn.Linear(6, 2))
    module[0].weight.requires_grad_(False)
    problems = PrivacyEngine.validate(module=module)
    assert any("max_norm" in str(problem) for problem in problems)


def test_norms_that_keep_statistics_are_refused_when_they_are_switched_to_training() -> None:
    norm = nn.InstanceNorm1d(1, track_running_stats=True)
    module = nn.Sequential(nn.Unflatten(1, (1, 6)), norm, nn.Flatten(), MODELS["mlp"](torch.float32))
    module[1].eval()
    run = private(module, data(dtype=torch.float32))
    module.train()
    with pytest.raises(InvalidInput, match="takes statistics from the batch"):
        train(run, 1)


test_losses_that_are_no_mean_over_examples_are_refused = refuses(
    (nn.CrossEntropyLoss(weight=torch.ones(3)), "class weights"),
    (nn.CrossEntropyLoss(reduction="sum"), "reduction"),
    by=lambda criterion: private(mlp(), data(), criterion=criterion),
)


def test_public_rows_cost_nothing() -> None:
    run = private(mlp(), data(), criterion=F.cross_entropy)
    train(run, 1)
    rounds, spent = run.engine.driver.state.t, run.engine.get_epsilon(1e-5)
    public = (torch.randn(6, 6, dtype=torch.float64), torch.randint(0, 3, (6,)))
    rows = run.engine.public_rows(public)
    assert rows.n == 6 and run.engine.get_epsilon(1e-5) == spent and run.engine.driver.state.t == rounds
