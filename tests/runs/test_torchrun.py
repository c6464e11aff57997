"""`isthmus train` on ranks: two real processes, one folder; an error ends all of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from command_line import invoke

from isthmus.privacy import Ledger
from isthmus.runs.prepare import split

N = 400
DECLARED = ["--classes", "low,high", "--categories", "sex=f,m", "--bounds", "age=18,90", "--algorithm", "dp_gd"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    age, sex = rng.integers(18, 90, N), rng.choice(["f", "m"], N)
    income = np.where(age > 50, "high", "low")
    lines = [",".join(map(str, row)) for row in zip(age, sex, income, strict=True)]
    (tmp_path / "people.csv").write_text("\n".join(["age,sex,income", *lines]))
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **more}


def test_torchrun_trains_in_one_folder(table: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "isthmus"]
    entries = ["people.csv", "--target", "income", *DECLARED, "--max-iter", "5", "--epsilon", "20"]
    cases = ["--test-fraction", "0.25", "--out", "run", "--json"]
    process = subprocess.run(
        [*run, "train", *entries, *cases], cwd=table, env=environment(), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout)
    assert data["rounds"] == 5 and data["epsilon"] <= 20 and not data["leaks"]
    record = json.loads((table / "run" / "run.json").read_text())
    assert record["data"]["n"] + record["data"]["test_rows"] == N and record["data"]["test_rows"] > N / 8
    assert next(metric["value"] for metric in data["metrics"] if metric["name"] == "accuracy") > 0.7
    assert Ledger.open(table / "run" / "ledger").rounds()["main"] == 5
    invoke("predict", str(table / "run"), str(table / "people.csv"), "-o", str(table / "p.csv"))
    invoke("train", "--resume", str(table / "run"))  # it is done
    (table / "run" / "run.json").unlink()
    refused = invoke("train", "--resume", str(table / "run"), code=2)
    assert "continue with 2, by which the run was begun" in refused.output


def test_an_error_ends_all_ranks(table: Path) -> None:
    """Types that ranks would have to guess are refused, by all of them, and nothing is left behind."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    place["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is here
    entries = [sys.executable, "-m", "isthmus", "train", "people.csv", "--target", "income", "--out", "run"]
    both = [
        subprocess.Popen(
            entries, cwd=table, env=environment(RANK=str(rank), **place), stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    words = [each.communicate(timeout=300)[1] for each in both]
    assert [each.returncode for each in both] == [2, 2]
    assert "ranks guess nothing from their rows" in words[0] and "error" not in words[1]
    assert not (table / "run").exists()
    shutil.rmtree(table)


def test_coins_of_places_do_not_depend_on_the_parts() -> None:
    x, y = np.arange(40)[:, None], np.arange(40)
    whole = split(x, y, 0.3, "salt")[1][1].tolist()
    parts = [split(x[lo : lo + 20], y[lo : lo + 20], 0.3, "salt", lo)[1][1].tolist() for lo in (0, 20)]
    assert parts[0] + parts[1] == whole
