"""What a run reads off private rows: as little as can be, and said wherever a reader would look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import QUICK, invoke
from command_line import prepared as rows_of

from isthmus import estimators
from isthmus.base.validate import InvalidInput
from isthmus.report import Record, render
from isthmus.runs.prepare import FEW, PreparedRows

DECLARED = ["--classes", "no,yes", "--bounds", "age=0,99", "--categories", "sex=f,m"]


def table(change: Any = None, n: int = 120) -> str:
    """A table, after a change to the list of its rows."""
    rng = np.random.default_rng(0)
    rows = [[str(rng.integers(18, 90)), "fm"[rng.integers(2)], ["no", "yes"][i % 2]] for i in range(n)]
    if change is not None:
        change(rows)
    Path("t.csv").write_text("age,sex,y\n" + "".join(",".join(row) + "\n" for row in rows))
    return "t.csv"


def prepared(change: Any = None, **options: Any) -> PreparedRows:
    return rows_of(table(change), target="y", **options)


def put(row: int, column: int, word: str) -> Any:
    def change(rows: list[list[str]]) -> None:
        rows[row][column] = word

    return change


# ---------------------------------------------------------------- one record changes no public thing


@pytest.mark.parametrize("word", ["", "n/a", "unknown", "1e9", "-3"])
@pytest.mark.parametrize("column", [0, 1])
def test_one_cell_adds_no_column(column: int, word: str) -> None:
    assert prepared(put(7, column, word)).schema == prepared().schema


def test_one_word_among_truth_values_is_a_missing_one() -> None:
    def truths(rows: list[list[str]]) -> None:
        for i, row in enumerate(rows):
            row[1] = ["yes", "no"][i % 2]

    def one(rows: list[list[str]]) -> None:
        truths(rows)
        rows[3][1] = "perhaps"

    assert prepared(truths).schema == prepared(one).schema
    assert prepared(one).schema.columns[1].type == "bool"


def test_a_label_of_few_rows_is_never_read_off_the_data() -> None:
    def rare(rows: list[list[str]]) -> None:
        for row in rows[: FEW - 1]:
            row[2] = "unique-label"

    with pytest.raises(InvalidInput, match="fewer than 10 rows have one of the labels") as error:
        prepared(rare)
    assert "--classes A,B,.." in str(error.value) and "unique-label" not in str(error.value)
    assert "yes" not in str(error.value), "no label is said, be it that of many rows"
    assert prepared(rare, classes=["no", "yes", "unique-label"]).target.classes == ("no", "yes", "unique-label")
    assert prepared(rare, epsilon="inf").target.classes == ("no", "unique-label", "yes")
    result = invoke("train", table(put(5, 2, "unique-label")), "--target", "y", code=2)
    assert "unique-label" not in result.output and not Path("runs").exists()


# ---------------------------------------------------------------- and what leaks is said everywhere


def test_a_run_with_leaks_says_so_everywhere() -> None:
    result = invoke("train", table(), "--target", "y", "--epsilon", "1", *QUICK)
    assert "everything counted" not in result.output and "of what was released with noise" in result.stdout
    assert result.stdout.count("NOT COVERED  ") == 3 and result.stderr.count("warning: ") == 3
    run = Path("runs/t-1")
    record = json.loads((run / "run.json").read_text())
    leaks = record["privacy"]["leaks"]
    assert len(leaks) == 3 and all(f"NOT COVERED  {leak}" in result.stdout for leak in leaks)
    for words in ("the types of 'age', 'sex'", "the task, classification", "the classes ['no', 'yes']"):
        assert any(words in leak for leak in leaks)
    assert "Epsilon does NOT cover the following" in record["words"] and all(leak in record["words"] for leak in leaks)
    model = estimators.load(run / "model.safetensors").privacy_
    assert list(model.leaks) == leaks and "except for 3 facts that were read from the data" in str(model)
    page = render(Record.from_file(run))
    assert "but not all that was read is covered" in page and page.count("Not covered by epsilon: ") == 3
    again = json.loads(invoke("train", "--resume", str(run), "--json").stdout)
    assert again["leaks"] == leaks and "Epsilon does NOT cover" in again["words"]


def test_a_run_without_leaks_says_that_everything_is_counted() -> None:
    result = invoke("train", table(), "--target", "y", *DECLARED, *QUICK)
    assert "everything counted" in result.stdout and "NOT COVERED" not in result.output and result.stderr == ""
    record = Record.from_file("runs/t-1")
    assert record.privacy is not None and record.privacy["leaks"] == ()
    assert "not all that was read" not in render(record)


def test_a_large_delta_is_warned_of() -> None:
    result = invoke("train", table(), "--target", "y", *DECLARED, *QUICK, "--delta", "0.5")
    assert "warning: delta=0.5 is at least 1/n" in result.stderr and "everything counted" not in result.stdout
    record = Record.from_file("runs/t-1")
    assert any("at least 1/n" in warning for warning in record.warnings) and "protects hardly anyone" in record.words


def test_a_plan_warns_of_a_large_delta_too() -> None:
    common = ["--delta", "0.5", "--epsilon"]
    for command in (["plan", "-n", "64", "-d", "3"], ["train", table(), "--target", "y", *DECLARED, "--dry-run"]):
        assert "warning: delta=0.5 is at least 1/n" in invoke(*command, *common, "1").stderr
    assert invoke("plan", "-n", "64", "-d", "3", *common, "inf").stderr == ""


def test_a_record_that_hides_a_leak_is_refused() -> None:
    invoke("train", table(), "--target", "y", *QUICK)
    data = json.loads(Path("runs/t-1/run.json").read_text())
    leak = data["privacy"]["leaks"][0]
    with pytest.raises(ValueError, match="as leaked"):
        Record.from_dict(data | {"words": data["words"].replace(leak, "")})
