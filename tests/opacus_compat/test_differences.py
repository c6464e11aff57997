"""docs/migrating/opacus.md: everything it lists as different is so, and nothing else of Opacus' names is missing."""

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_compat as compat
import torch
from gradients.layers.layer_reference import Built
from test_compat import loop, made, net, weights
from torch import nn
from torch.nn.functional import cross_entropy

from isthmus import InvalidInput, PrivacyEngine
from isthmus.opacus_compat import PrivacyEngine as Compat
from isthmus.opacus_compat.schedulers import StepNoise
from isthmus.privacy import BudgetExceeded

PAGE = (Path(__file__).parents[2] / "docs" / "migrating" / "opacus.md").read_text(encoding="utf-8")
DIFFERENT, MISSING = (
    PAGE[PAGE.index(f"## {start}") : PAGE.index(f"## {end}")]
    for start, end in (
        ("What is different, and why", "Names that are not there"),
        ("Names that are not there", "What you gain"),
    )
)
ROWS = [line.strip("| ").split(" | ")[0] for line in DIFFERENT.splitlines() if line.startswith("| ")][1:]
COUNTS = {"eighteen": 18, "nineteen": 19, "twenty": 20}


def trained(module: Any, optimizer: Any, loader: Any) -> torch.Tensor:
    loop(module, optimizer, loader)
    return weights(module)


def the_module_is_the_users_own() -> None:
    module = net()
    assert made(PrivacyEngine(), module=module)[1] is module and list(module.state_dict()) == list(net().state_dict())


def modes_are_one() -> None:
    criterion, found = nn.CrossEntropyLoss(), []
    for kind, mode in itertools.product((PrivacyEngine, Compat), ("hooks", "functorch", "ew", "ghost")):
        options = {"criterion": criterion, "noise_generator": torch.Generator().manual_seed(2)}
        _, module, optimizer, *middle, loader = made(kind(), grad_sample_mode=mode, **options)
        assert middle == ([criterion] if mode == "ghost" else [])
        found.append(trained(module, optimizer, loader))
    assert all(torch.equal(found[0], each) for each in found)


def wrappers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="group="):
        made(PrivacyEngine(), grad_sample_mode="ghost_fsdp")
    with pytest.raises(InvalidInput, match="bare module"):
        made(PrivacyEngine(), module=nn.DataParallel(net()))


def noise_has_no_seed() -> None:
    found = []
    for _ in range(2):
        _, module, optimizer, loader = made(PrivacyEngine(), poisson_sampling=False)
        torch.manual_seed(3)
        found.append(trained(module, optimizer, loader))
    assert not torch.equal(*found)


def fixed_batches_are_accounted_as_such() -> None:
    spent = []
    for poisson in (True, False):
        engine, module, optimizer, loader = made(PrivacyEngine(), poisson_sampling=poisson)
        trained(module, optimizer, loader)
        spent.append(engine.get_epsilon(1e-3))
    assert spent[1] > spent[0]


def gdp_is_refused() -> None:
    with pytest.raises(InvalidInput, match="gdp"):
        PrivacyEngine(accountant="gdp")


def a_mean_is_an_assumption() -> None:
    engine, *_ = made(PrivacyEngine())
    assert any("the mean loss divides by that number" in line for line in engine.statement(1e-3).assumptions)


def a_budget_is_a_budget() -> None:
    _, module, optimizer, loader = made(PrivacyEngine(), target_epsilon=3.0, target_delta=1e-3, epochs=1)
    trained(module, optimizer, loader)
    with pytest.raises(BudgetExceeded):
        trained(module, optimizer, loader)


def layers_without_a_rule_train() -> None:
    module = nn.Sequential(Built(lambda m, x: x * m.by, by=nn.Parameter(torch.ones(6))), nn.Linear(6, 3))
    _, module, optimizer, loader = made(PrivacyEngine(), module=module)
    trained(module, optimizer, loader)
    assert not torch.equal(module[0].by.detach(), torch.ones(6))


def schedulers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="what the ledger charges"):
        StepNoise(None, step_size=1, gamma=0.5)
    with pytest.raises(InvalidInput, match="adaptive"):
        made(PrivacyEngine(), grad_clip_scheduler=object())


def bounds_are_those_of_layers() -> None:
    _, module, optimizer, loader = made(clipping="per_layer", max_grad_norm=[1.0] * 4)
    assert optimizer.max_grad_norm == {"0": pytest.approx(2**0.5), "2": pytest.approx(2**0.5)}
    with pytest.raises(InvalidInput, match="max_grad_norm"):
        made(PrivacyEngine(), clipping="per_layer", max_grad_norm=[1.0] * 4)


def names_are_listed() -> None:
    assert "`register_grad_sampler`" in MISSING and len(LISTED) > 40 and len(WHOLE) > 40


def clipping_by_hand_is_said_to_do_nothing() -> None:
    _, module, _, loader = made(PrivacyEngine())
    x, y = next(batch for batch in loader if len(batch[0]))
    cross_entropy(module(x), y).backward()
    with pytest.warns(UserWarning, match="max_grad_norm"):
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)


def weighted_means_are_refused() -> None:
    _, module, _, loader = made(PrivacyEngine())
    x, y = next(batch for batch in loader if len(set(batch[1].tolist())) > 1)
    with pytest.raises(InvalidInput, match="weight"):
        cross_entropy(module(x), y, weight=torch.tensor([1.0, 3.0, 1.0])).backward()


def freezing_later_is_refused() -> None:
    _, module, _, loader = made(PrivacyEngine())
    module[0].requires_grad_(False)
    x, _ = next(batch for batch in loader if len(batch[0]))
    with pytest.raises(InvalidInput, match="frozen"):
        module(x)


CHECKS: dict[str, Callable[[], None]] = {
    "the module comes back wrapped": the_module_is_the_users_own,
    "`p.grad_sample`": compat.test_there_are_no_raw_gradients_anywhere,
    '`grad_sample_mode="ghost"`': modes_are_one,
    '`grad_sample_mode="ghost_fsdp"`': wrappers_are_refused,
    "`torch.manual_seed`": noise_has_no_seed,
    "`poisson_sampling=False`": fixed_batches_are_accounted_as_such,
    'the "gdp" accountant': gdp_is_refused,
    "the rounding of a mean": a_mean_is_an_assumption,
    "training may go on": a_budget_is_a_budget,
    "layers without a rule": layers_without_a_rule_train,
    "schedulers": schedulers_are_refused,
    "`optimizer.signal_skip_step`": lambda: compat.test_names_without_a_sound_meaning_say_why(*compat.REFUSED[0]),
    "a bound for each parameter": bounds_are_those_of_layers,
    "`ModuleValidator.fix`": compat.test_what_fix_is_given_is_done_or_refused,
    "`save_checkpoint(": compat.test_checkpoints_go_into_open_files_and_on_the_same_terms_only,
    "names for those": names_are_listed,
    "`clip_grad_norm_`": clipping_by_hand_is_said_to_do_nothing,
    "a loss that is no mean": weighted_means_are_refused,
    "a layer that is frozen later": freezing_later_is_refused,
}


def test_the_page_counts_its_differences_and_each_has_a_check() -> None:
    (word,) = re.findall(r"one of the \[(\w+) things that differ\]", PAGE)
    assert COUNTS[word] == len(ROWS) == len(CHECKS)
    assert all(row.startswith(name) for row, name in zip(ROWS, CHECKS, strict=True))


@pytest.mark.parametrize("name", list(CHECKS))
def test_a_difference_is_what_the_page_says(name: str) -> None:
    CHECKS[name]()


# ---------------------------------------------------------------- names

TABLE = {cells[0]: cells[1] for line in MISSING.splitlines() if len(cells := line.strip("| ").split(" | ")) == 2}
LISTED = {
    (module.strip("`"), name)
    for module, names in TABLE.items()
    if module.startswith("`opacus")
    for name in re.findall(r"`(\w+)`", names)
}
WHOLE = set(re.findall(r"`(opacus\.[\w.]+)`", MISSING[MISSING.index("as a whole") :]))
OURS = "isthmus.opacus_compat"


def ours(module: str) -> str:
    return OURS + module.removeprefix("opacus")


def test_names_that_are_not_there_are_not() -> None:
    for module, name in LISTED:
        assert not hasattr(importlib.import_module(ours(module)), name), (module, name)
    for module in WHOLE:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(ours(module))


@pytest.mark.filterwarnings("ignore")
def test_nothing_else_of_opacus_is_missing() -> None:
    opacus = pytest.importorskip("opacus")
    missing, absent = set(), set()
    for found in pkgutil.walk_packages(opacus.__path__, "opacus."):
        if any(part in found.name for part in (".tests", ".research", ".benchmarks")) or found.name in WHOLE:
            continue
        try:
            here = importlib.import_module(ours(found.name))
        except ModuleNotFoundError:
            absent |= {found.name} if not any(found.name.startswith(f"{whole}.") for whole in WHOLE) else set()
            continue
        module = importlib.import_module(found.name)
        public = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == found.name}
        public = {name for name in public | set(getattr(module, "__all__", ())) if not name.startswith("_")}
        missing |= {(found.name, name) for name in public if hasattr(module, name) and not hasattr(here, name)}
    assert not absent
    assert missing == LISTED
