"""Benchmarks of a device, small and on whatever device there is: kept as they come, gone on with, never done twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from lab.__main__ import main
from lab.bench import carry, columns, kept, measure, networks, page, results
from lab.bench.cases import PeerBenchmark, Work
from lab.bench.models import Gpt
from lab.bench.registry import BENCHMARKS, HOMES

NAMES = ("device-gpt-bf16", "device-gpt-tf32-1", "device-mlp", "device-noise")


def bench(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["bench", *arguments, "--quick"])
    assert result.exit_code == 0, result.output
    return result


def test_all_that_is_measured_of_a_device(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    told = bench(*NAMES, "--json", str(file)).output
    data = json.loads(file.read_text())
    by_key = {(each["name"], each["way"]): each for each in data["columns"]}
    rows = {(row["name"], row["ours"]): row for row in data["rows"]}
    for name in NAMES:
        case = BENCHMARKS[name]
        there = [way for way in case.wanted() if (name, way) in by_key]
        assert set(case.wanted()) - set(there) <= {"Opacus ghost"} and f"{name}, {case.peers[0]}: " in told
        assert all(len(by_key[name, way]["ms"]) == 2 and min(by_key[name, way]["ms"]) > 0 for way in there)
        assert all(by_key[name, way]["facts"]["host ms"] >= 0 for way in there)
        for own in case.ours:
            assert set(rows[name, own]["peers"]) == set(there) - set(case.ours)
            assert set(rows[name, own]["skipped"]) == set(case.peers) - set(there)
    text = page.filled("<!-- bench:begin device-gpt -->\n<!-- bench:end -->", [kept.load(file)])
    assert "| bfloat16 autocast, batch 16 |" in text and "ms waiting" in text and "per-layer clipping" in text

    before = file.read_text()
    again = bench(*NAMES, "--json", str(file)).output
    measured_now = [line for line in again.splitlines() if line.startswith("device") and " ms" in line and ": " in line]
    assert not [line for line in measured_now if "Opacus" not in line]
    assert json.loads(before)["columns"] == json.loads(file.read_text())["columns"]


def test_a_killed_run_keeps_what_it_had_and_another_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "killed.json"
    command = [sys.executable, "-m", "lab", "bench", "device-noise", "--quick", "--json", str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not file.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    (first, *_) = json.loads(file.read_text())["columns"]
    assert first["way"] == BENCHMARKS["device-noise"].wanted()[0]
    bench("device-noise", "--json", str(file))
    found = json.loads(file.read_text())["columns"]
    assert found[0] == first and [each["way"] for each in found] == list(BENCHMARKS["device-noise"].wanted())


def test_no_time_leaves_everything_and_other_code_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "noise.json"
    late = bench("device-noise", "project-l1", "--json", str(file), "--minutes", "0")
    assert "The time was up before all was measured of: project-l1, device-noise" in late.output
    assert not json.loads(file.read_text()).get("columns")
    bench("device-noise", "project-l1", "--json", str(file))
    data = json.loads(file.read_text())
    stale = data["columns"][1]["way"]
    data["columns"][1] |= {"stamp": "another", "ms": [1e9]}
    file.write_text(json.dumps(data))
    told = bench("device-noise", "project-l1", "--json", str(file)).output
    assert f"device-noise, {stale}: " in told and told.count("device-noise, ") == 1
    found = json.loads(file.read_text())
    assert {row["name"] for row in found["rows"]} == {"project-l1", "device-noise"}
    assert max(max(each["ms"]) for each in found["columns"]) < 1e9
    done = carry.carry_out([BENCHMARKS["device-noise"]], True, file, progress=False, again=True)
    assert len(done.report["rows"]) == 1 and json.loads(file.read_text())["columns"] != found["columns"]


def test_rows_that_were_there_stay_until_they_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "h200.json"
    old = {"name": "device-mlp", "ours": "no sketch", "ours_ms": 2.0, "peers": {"plain torch": 1.0}, "note": "By hand."}
    file.write_text(json.dumps([old]))
    told = results.BenchResults(file, quick=False)
    told.add(BENCHMARKS["device-mlp"], columns.rows(BENCHMARKS["device-mlp"], {}))  # nothing was measured
    assert json.loads(file.read_text()) == [old]
    told.add_column(BENCHMARKS["device-noise"], {"name": "device-noise", "way": "FastSource", "ms": [1.0], "facts": {}})
    rows = {row["ours"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["no sketch"] == old | {"before": results.EARLIER} and "ours_ms" not in rows["Kronecker(64, 64)"]
    assert "* `device-mlp`, no sketch: of an earlier run." in page.page([kept.load(file)])
    told.add_column(BENCHMARKS["device-mlp"], {"name": "device-mlp", "way": "no sketch", "ms": [3.0, 4.0], "facts": {}})
    (row,) = (row for row in json.loads(file.read_text())["rows"] if row["ours"] == "no sketch")
    assert row["ours_ms"][0] == 3.5 and "note" not in row and "before" not in row
    with pytest.raises(ValueError, match="is no file of a quick run"):
        results.BenchResults(file, quick=True)


MODULE = """
import os
from lab.bench.cases import PeerBenchmark, Work
done = []
def build(way, quick):
    if way == "alone" and done or way == "never":
        raise RuntimeError(f"{way}: not beside {done}")
    done.append(way)
    return Work(lambda: None, lambda: {"process": os.getpid()})
BENCHMARKS = (PeerBenchmark("made-up", "", build, ("alone", "never", "last"), ("first",), device=True),)
"""


def test_a_way_that_fails_beside_others_is_tried_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_home.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    monkeypatch.setitem(HOMES, "made-up", "made_up_home")
    import made_up_home

    (case,) = made_up_home.BENCHMARKS
    found = {each["way"]: each for each in columns.measured([case], True, set(), lambda: False)}
    assert list(found) == ["first", "alone", "never", "last"]
    assert found["never"]["skipped"] == "it failed: RuntimeError: never: not beside []"
    processes = [found[way]["facts"]["process"] for way in ("first", "alone", "last")]
    assert len(set(processes)) == 3
    left = list(columns.measured([case], True, {("made-up", "first")}, lambda: True))
    assert [each["skipped"] for each in left] == [columns.LATER] * 3


def test_one_network_serves_several_batches_and_another_way_has_another() -> None:
    make = partial(Gpt, 50, 32, 1, 8)
    first = networks.network("no sketch", make, nn.CrossEntropyLoss(), 4)
    x = torch.randint(0, 50, (4, 8), device=next(first.module.parameters()).device)
    for batch in (4, 2):
        assert networks.network("no sketch", make, nn.CrossEntropyLoss(), batch) is first
        first.begin(batch)
        first.optimizer.zero_grad()
        first.loss(first.module(x[:batch]).flatten(0, 1), x[:batch].flatten()).backward()
        first.optimizer.step()
    assert networks.network("per-layer clipping", make, nn.CrossEntropyLoss(), 4) is not first
    assert networks.network("no sketch", make, nn.CrossEntropyLoss(), 4) is not first
    networks.network("plain torch", make, nn.CrossEntropyLoss(), 4)
    assert not networks._LAST


def test_the_most_wanted_come_first() -> None:
    cases = [each for each in BENCHMARKS.values() if isinstance(each, PeerBenchmark) and each.device]
    order = [(case.name, way) for case, way in columns._todo(cases, set())]
    assert len(set(order)) == len(order) == sum(len(case.wanted()) for case in cases)
    assert order[:4] == [(f"device-gpt-{p}", way) for way in ("plain torch", "no sketch") for p in ("tf32", "bf16")]
    assert {name for name, _ in order[:10]} == {"device-gpt-tf32", "device-gpt-bf16"}


def test_samples_of_unequal_number_are_compared() -> None:
    case = PeerBenchmark("x-y", "", lambda way, quick: Work(lambda: None), ("ours",), ("peer",))
    row = measure.row_of(
        case, "ours", {"ours": [2.0, 4.0], "peer": [1.0]}, {w: {"facts": {}} for w in ("ours", "peer")}, {}
    )
    assert row["peers"]["peer"]["ratio"] == [2.0, 2.0, 2.0]
