"""docs/models.md says of every family what becomes of it: here each is built, and judged."""

import pathlib

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")
import model_zoo
from long_runs import long_run
from model_families import FAMILIES
from model_zoo import LENGTH, judge

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "models.md"


def table() -> dict[str, list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return {first: rest for first, *rest in cells if first != "family"}


def test_the_table_has_every_family():
    assert set(table()) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_what_the_table_says(family):
    outcome, how, _ = table()[family]
    torch.manual_seed(0)
    make, inputs, *tolerance = FAMILIES[family]
    verdict = judge(make(), inputs(), *tolerance)
    assert verdict.outcome == outcome.split(":")[0], (verdict.message, verdict.worst)
    if verdict.outcome == "exact":
        assert how == "one pass"
    else:
        named = "examples meet" in verdict.message or "parameter" in verdict.message
        assert named and ("freeze" in verdict.message or "examples meet" in verdict.message)


EXACT = [family for family, (outcome, *_) in table().items() if outcome == "exact"]


@pytest.mark.parametrize("family", EXACT)
def test_a_first_batch_of_any_size_gives_exact_gradients(family, monkeypatch):
    """Of one example, and of as many as there are heads, words or numbers in a token."""
    make, inputs, *tolerance = FAMILIES[family]
    given = {name: torch.cat([x, x]) for name, x in inputs().items()}
    for n in (1, 2, LENGTH, 8):
        torch.manual_seed(0)
        monkeypatch.setattr(model_zoo, "N", n)
        verdict = judge(make(), {name: x[:n] for name, x in given.items()}, *tolerance)
        assert verdict.outcome == "exact", (n, verdict.message, verdict.worst)


@pytest.mark.parametrize("family", EXACT)
def test_a_run_ends_by_itself_whatever_sizes_chance_draws(family):
    make, inputs, *_ = FAMILIES[family]
    sizes = long_run(make(), inputs(), batches=30, expected=2)
    assert sizes.total() == 30 and len(sizes) > 2
