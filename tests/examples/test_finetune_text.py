"""The fine-tuning experiment: what is trained and what is not, the choice on validation texts, a whole small run."""

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

EXPERIMENTS = Path(__file__).parents[2] / "lab" / "studies"
sys.path.insert(0, str(EXPERIMENTS))

import finetune_data  # noqa: E402
import finetune_text as experiment  # noqa: E402
from _text import Encoder, WordPiece, sentence_vectors  # noqa: E402

IDS = torch.tensor([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0], [2, 9, 8, 7, 3]])


def tiny() -> Encoder:
    torch.manual_seed(0)
    return Encoder(2, size=8, heads=2, inner=16, vocabulary=12, places=6)


def test_doctests() -> None:
    found = doctest.testmod(finetune_data)
    assert found.failed == 0 and found.attempted >= 1


def test_both_ends_of_a_long_text_are_kept_and_short_ones_whole() -> None:
    words = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"])
    ids = finetune_data.encode(words, ["a a b b b b c c", "a c", ""], 6)
    assert ids.tolist() == [[2, 4, 4, 6, 6, 3], [2, 4, 6, 3, 0, 0], [2, 3, 0, 0, 0, 0]]


@pytest.mark.parametrize(("blocks", "lora"), [(0, 0), (1, 0), (2, 0), (2, 3)])
def test_the_frozen_part_and_the_trained_end_are_the_encoder(blocks: int, lora: int) -> None:
    """LoRA begins where the encoder is; half precision of what is kept is the only difference."""
    encoder = tiny()
    module = experiment.network(encoder, experiment.Method(blocks, (), lora=lora, scale=1.0))
    with torch.no_grad():
        module.head.weight.copy_(torch.arange(16.0).reshape(2, 8))
        outputs = module(experiment.frozen(encoder, IDS, 2 - blocks).float())
    expected = sentence_vectors(encoder, IDS) @ module.head.weight.T
    torch.testing.assert_close(outputs, expected.detach(), rtol=0, atol=0.1)
    trained = [name for name, p in module.named_parameters() if p.requires_grad and not name.startswith("head")]
    assert all(".up." in name or ".down." in name for name in trained) == bool(lora or not blocks)
    assert bool(trained) == bool(blocks)


def test_rates_rise_and_fall_once() -> None:
    factor = [experiment.schedule(50)(t) for t in range(50)]
    top = factor.index(max(factor))
    assert max(factor) == 1.0 and 0 < min(factor) < 0.1
    assert factor[: top + 1] == sorted(factor[: top + 1]) and factor[top:] == sorted(factor[top:], reverse=True)


def test_batches_are_those_of_single_records() -> None:
    data = experiment.Records(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    many = experiment.stacked(data.__getitems__([4, 1]))
    one = experiment.stacked([data[4], data[1]])
    assert all(torch.equal(a, b) for a, b in zip(many, one, strict=True))
    assert data.__getitems__([]) == [] and len(data) == 6


def test_the_choice_is_made_on_validation_texts_and_waits_for_all(tmp_path: Path) -> None:
    tried = (experiment.Choice(1, 0.1), experiment.Choice(1, 0.2))
    lines = experiment.Lines(tmp_path, "any", "0/1")
    lines.add(experiment.key("probe", 1.0, tried[0], 0, False), {"validation": 0.6, "test": 0.9})
    assert experiment.best(lines, "probe", 1.0, tried) is None
    lines.add(experiment.key("probe", 1.0, tried[1], 0, False), {"validation": 0.7, "test": 0.1})
    assert experiment.best(lines, "probe", 1.0, tried) is tried[1]


def test_a_step_moves_what_is_trained_and_nothing_else() -> None:
    bench, methods = experiment.small(experiment.Settings())
    method = methods["LoRA"]
    module = experiment.network(bench.encoder, method)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    engine = experiment.train(
        module, method, experiment.Choice(1, 0.01, 0.1), bench.records(method)[0], 0.9, bench.size
    )
    moved = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name, p in module.named_parameters() if p.requires_grad} and engine.get_epsilon(1e-5) > 0
    assert isinstance(module.blocks[0].attention["self"].query, experiment.LoRA)
    assert isinstance(module.blocks[0].attention["self"].key, nn.Linear)


@pytest.mark.filterwarnings("default")  # as where it is run as a script
def test_the_script_runs_goes_on_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(EXPERIMENTS / "finetune_text.py"), "--small", "--out", str(tmp_path)]
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda kind: None)  # of the whole process

    def said(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*command, *more])
        experiment.main()
        return capsys.readouterr().out

    said("--shard", "0/2")
    done = said()
    rows = json.loads((tmp_path / "finetune_text.json").read_text())["rows"]
    assert [row["method"] for row in rows] == list(experiment.METHODS)
    assert all(row["runs"] == 2 and 7.9 < row["spent"] <= 8 and 0 <= row["test"] <= 1 for row in rows)
    again = said()
    assert "final" not in again and again in done
    lost = subprocess.run([sys.executable, command[0]], capture_output=True, text=True)
    assert lost.returncode == 2 and "--folder" in lost.stderr
