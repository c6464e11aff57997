"""`private_summary` and `isthmus describe`: right on average, noise as large as they say, nothing else is read."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke
from estimator_tables import Seen

from isthmus import InvalidInput, private_summary
from isthmus.core.pipeline import Promise
from isthmus.estimators import summary
from isthmus.privacy import Ledger, noise_multiplier
from isthmus.tables.columns import TYPES, ColumnType

SCHEMA = {
    "age": [0, 100],
    "sex": ["f", "m"],
    "member": "bool",
    "joined": {"type": "date", "bounds": ["2010-01-01", "2019-12-31"]},
    "income": "number",
    "city": "hash",
}


def people(n: int = 4000, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 60, n)
    age[: n // 10] = np.nan
    days = rng.integers(0, 3650, n)
    return {
        "age": age,
        "sex": rng.choice(["f", "m", "x"], n, p=[0.5, 0.4, 0.1]).tolist(),
        "member": rng.choice(["yes", "no"], n, p=[0.3, 0.7]).tolist(),
        "joined": (np.datetime64("2010-01-01") + days).astype("datetime64[D]").astype(str).tolist(),
        "income": rng.lognormal(10, 0.5, n),
        "city": ["hidden"] * n,
        "note": ["hidden"] * n,
    }


def test_it_is_right_on_average_and_its_noise_is_what_it_says() -> None:
    table = people()
    values = [private_summary(table, SCHEMA, epsilon=2.0, noise_seed=seed) for seed in range(40)]
    rows = np.array([value.rows for value in values])
    assert abs(rows.mean() - 4000) < 4 * values[0].rows_noise / math.sqrt(40)
    assert 0.7 < rows.std() / values[0].rows_noise < 1.4
    women = np.array([dict(value["sex"].cells)["f"] for value in values])
    assert abs(women.mean() - table["sex"].count("f")) < 4 * values[0]["sex"].noise / math.sqrt(40)
    assert 0.6 < women.std() / values[0]["sex"].noise < 1.4
    means = np.array([value["age"].mean for value in values])
    mean = np.mean([value["age"].mean_noise for value in values])
    assert abs(means.mean() - np.nanmean(table["age"])) < 4 * mean / math.sqrt(40) and 0.6 < means.std() / mean < 1.5
    first = values[0]
    assert abs(first["age"].missing - 400) < 5 * first["age"].noise
    assert abs(dict(first["sex"].cells)["(other)"] - table["sex"].count("x")) < 5 * first["sex"].noise
    assert abs(dict(first["member"].cells)["true"] - table["member"].count("yes")) < 5 * first["member"].noise
    true = np.nanquantile(table["age"], list(first["age"].quantiles))
    assert np.abs(np.array(list(first["age"].quantiles.values())) - true).max() < 5  # a cell is 5 years
    assert abs(first["age"].sd - np.nanstd(table["age"])) < 2
    assert abs(first["income"].mean / np.mean(table["income"]) - 1) < 0.1 and first["income"].bounds is not None
    middle = (np.datetime64("2010-01-01") + np.timedelta64(1825, "D")).astype(int)
    assert abs(first["joined"].mean - middle) < 120 and "joined: date from 2010-01-01 to 2019-12-31" in first.table()


def test_what_was_not_declared_is_not_read() -> None:
    found = private_summary(people(), SCHEMA, epsilon=1.0)
    assert found.left_out == {"city": "its words were not declared", "note": "it was not declared"}
    assert "hidden" not in found.table() and "hidden" not in json.dumps(found.to_dict())
    assert "left out because it was not declared: note" in found.table()
    with pytest.raises(InvalidInput, match=r"name='city' is not allowed: name a column that was summarised"):
        found["city"]


def test_all_looks_together_cost_epsilon(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", budget=(2.0, 1e-6))
    found = private_summary(people(), SCHEMA, epsilon=1.0, ledger=ledger)
    assert ledger.rounds() == {"summary ranges": 1, "summary counts": 1, "summary means": 1}
    assert ledger.spent() == pytest.approx(1.0, rel=1e-6) and found.privacy.epsilon == pytest.approx(1.0, rel=1e-6)
    assert found.privacy.n is None and found.privacy.private
    private_summary(people(), {"sex": ["f", "m"]}, epsilon=0.5, ledger=tmp_path / "l")
    assert ledger.rounds()["summary counts"] == 2 and ledger.rounds()["summary means"] == 1
    before = ledger.spent()
    with pytest.raises(RuntimeError, match="needs epsilon"):  # all of it or nothing
        private_summary(people(), SCHEMA, epsilon=1.9, ledger=ledger)
    assert ledger.spent() == before
    assert not private_summary(people(), SCHEMA, noise_seed=0).privacy.private


def test_a_row_moves_what_is_released_by_its_bound_whatever_it_holds() -> None:
    table = people(500)
    table["age"][:4] = [1e300, -1e300, np.inf, 5e-324]
    table["income"][:4] = [1e300, -1e300, np.nan, 5e-324]
    frame = summary.as_frame(table)
    columns, _ = summary._chosen(frame, summary.Schema.from_dict({"columns": SCHEMA}))
    entries = {column.name: summary._entries(frame, column) for column in columns}
    looks = Seen(noise_multiplier(epsilon=1.0, delta=1e-6), Promise(1.0, 1e-6), Ledger())
    summary._look(columns, entries, 20, looks)
    assert len(looks.rows) == 3 and all(length <= bound for length, bound in looks.rows)


def test_entries_that_were_declared_missing_are_missing() -> None:
    table = {"a": [-999.0] * 1000 + [5.0] * 1000, "d": ["9999-12-31"] * 1000 + ["2020-01-02"] * 1000}
    dates = {"type": "date", "bounds": ["2020-01-01", "2020-01-31"], "absent": ["9999-12-31"]}
    found = private_summary(table, {"a": {"bounds": [0, 10], "absent": [-999]}, "d": dates}, epsilon=3.0)
    for name in ("a", "d"):
        assert abs(found[name].missing - 1000) < 6 * found[name].noise
    assert abs(found["a"].mean - 5) < 6 * found["a"].mean_noise + 0.1


def test_few_rows_have_no_mean() -> None:
    found = private_summary(people(30), {"age": [0, 100]}, epsilon=0.1)
    assert found["age"].mean is None and found["age"].quantiles == {} and "too few rows" in found.table()


WRONG = [
    ({"schema": {}}, "declare at least one column"),
    ({"schema": {"agee": [0, 1]}}, r"schema=\['agee'\] is not allowed: name columns of the table, which has"),
    ({"schema": 3}, "give a Schema, its file, or columns"),
    ({"epsilon": math.inf}, "epsilon=inf is not allowed"),
    ({"bins": 0}, "bins=0 is not allowed"),
    ({"delta": 0.0}, "delta=0.0 is not allowed"),
    ({"table": [1]}, "give a pandas or polars DataFrame"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_is_wrong_is_refused_before_anything_is_spent(given: dict[str, Any], words: str) -> None:
    ledger = Ledger()
    call = {"table": people(100), "schema": SCHEMA, "epsilon": 1.0, "ledger": ledger} | given
    with pytest.raises(InvalidInput, match=words):
        private_summary(**call)
    assert ledger.rounds() == {}


def test_describe_charges_the_shared_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = people(2000)
    rows = zip(table["age"], table["sex"], table["note"], strict=True)
    Path("p.csv").write_text("age,sex,note\n" + "\n".join(f"{a},{s},{n}" for a, s, n in rows))

    invoke("budget", "b", "--epsilon", "1", "--delta", "1e-6", "--adjacency", "replace-one")
    common = ["describe", "p.csv", "--bounds", "age=0,100", "--categories", "sex=f,m", "--budget", "b"]
    data = json.loads(invoke(*common, "--epsilon", "0.6", "--json").stdout)
    assert [column["name"] for column in data["columns"]] == ["sex", "age"] and data["left_out"] == {
        "note": "it was not declared"
    }
    assert data["epsilon"] == pytest.approx(0.6, rel=1e-6) and abs(data["rows"] - 2000) < 6 * data["rows_noise"]
    shown = json.loads(invoke("budget", "b", "--json").stdout)
    assert shown["spent"] == pytest.approx(0.6, rel=1e-6) and [run["label"] for run in shown["runs"]] == ["describe p"]
    before = Path("b").read_bytes()
    assert "needs epsilon" in invoke(*common, "--epsilon", "0.9", code=3).output
    assert Path("b").read_bytes() == before
    Path("s.toml").write_text('[target]\nname = "sex"\nclasses = ["f", "m"]\n[columns]\nage = "number"\n')
    text = invoke("describe", "p.csv", "--schema", "s.toml", "--epsilon", "1").output
    assert "age: number from" in text and "sex: category" in text and "noise s.d." in text and "hidden" not in text
    assert "give a finite number" in invoke("describe", "p.csv", "--schema", "s.toml", "-e", "inf", code=2).output


def test_every_type_of_column_is_counted_or_says_why_not() -> None:
    entries = {"date": ["2024-01-02"] * 9, "bool": ["yes"] * 9, "category": ["a"] * 9}
    more = {
        "date": {"bounds": ["2024-01-01", "2024-12-31"]},
        "category": {"categories": ["a"]},
        "number": {"bounds": [0, 2]},
    }
    table = {kind: entries.get(kind, [1.0] * 9) for kind in TYPES}
    found = private_summary(table, {kind: {"type": kind} | more.get(kind, {}) for kind in TYPES}, noise_seed=0)
    assert found.left_out == {kind: TYPES[kind].left_out for kind in TYPES if TYPES[kind].left_out}
    assert {column.name for column in found.columns} == TYPES.keys() - found.left_out.keys()
    assert ColumnType("a type of nobody's").left_out


def test_a_range_between_whole_numbers_is_cut_at_whole_numbers() -> None:
    """By the declared range alone: whether the entries are whole is not looked at."""
    ages = np.arange(17, 90).repeat(30)
    for entries in (ages, ages + 0.5):
        column = private_summary({"age": entries}, {"age": [17, 90]}, epsilon=50.0)["age"]
        inner = column.cells[1:-1]
        assert [cell for cell, _ in inner[:2]] == ["17 to 21", "21 to 25"] and inner[-1][0] == "89 to 90"
        assert max(abs(count - 120) for _, count in inner[:-1]) < 10
    cells = private_summary({"n": [0.0, 1.0, 2.0] * 100}, {"n": [0, 2]}, epsilon=50.0)["n"].cells
    assert len(cells) == 22 and all(abs(dict(cells)[cell] - 100) < 10 for cell in ("0 to 0.1", "1 to 1.1", "1.9 to 2"))
