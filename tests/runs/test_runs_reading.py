"""What a newcomer's file once was read as, without a word: each is read right, or refused with what to do."""

import contextlib
import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from command_line import QUICK, invoke
from command_line import prepared as rows_of

from isthmus import InvalidInput, estimators
from isthmus.cli import main
from isthmus.report import Record, render
from isthmus.runs.prepare import FEW, PreparedRows, _as_option


def table(n: int = 120, **columns: Any) -> str:
    """A csv of columns that are functions of the row's number, with the label y."""
    with Path("t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "y"])
        writer.writerows([*(make(k) for make in columns.values()), ["no", "yes"][k % 2]] for k in range(n))
    return "t.csv"


def prepared(**options: Any) -> PreparedRows:
    return rows_of("t.csv", **{"target": "y", "classes": ["no", "yes"], **options})


# ---------------------------------------------------------------- identifiers


@pytest.mark.parametrize("name", ["email", "E-Mail", "user_email", "phone", "Phone number", "ssn", "last_name", "iban"])
def test_a_column_that_names_a_person_is_left_out_by_its_name(name: str) -> None:
    """No row is looked at for it, so that it is no leak; it is said, with how to keep it."""
    table(x=lambda k: k % 5, **{name: lambda k: f"u{k % 3}@x.org"})
    begun = prepared(columns={"x": [0, 5]})
    assert begun.features == ["x"] and begun.leaks == ()
    assert any(f"column {name!r} is left out: its name says" in note and "--hash" in note for note in begun.notes)
    assert prepared(columns={"x": [0, 5], name: "hash"}).d == 18


@pytest.mark.parametrize("name", ["sent_email", "has phone", "n_emails", "Is-Mobile"])
def test_a_column_of_what_was_done_with_an_address_is_a_feature(name: str) -> None:
    table(x=lambda k: k % 5, **{name: lambda k: k % 2})
    assert prepared(columns={"x": [0, 5]}).features == ["x", name]


def test_numbers_of_rows_are_no_feature() -> None:
    for name in ("Nr.", "lfd. Nr.", "No.", "Kunden-Nr."):
        table(x=lambda k: k % 5, **{name: lambda k: k + 1})
        begun = prepared()
        assert begun.features == ["x"] and any(f"{name!r} is left out: it looks like" in note for note in begun.notes)


def test_empty_columns_at_the_end_are_noted() -> None:
    Path("t.csv").write_text("x,y,,\n" + "".join(f"{k},{['no', 'yes'][k % 2]},,\n" for k in range(60)) + ",,,\n" * 9)
    begun = prepared(columns={"x": [0, 60]})
    assert begun.n == 60 and begun.features == ["x"] and begun.leaks == ()
    assert "the columns at the end without a name (2) are empty and left out" in begun.notes


def test_missing_entries_are_declared_for_all_columns() -> None:
    """Of numbers, words and the target, however they are written; predictions and the next run know them too."""
    data = table(x=lambda k: ["-999", "-999.00", k % 5][k % 3], city=lambda k: ["Rome", "unknown"][k % 2])
    rows = ["-999,Rome,unknown"] * 3
    Path(data).write_text(Path(data).read_text() + "\n".join(rows) + "\n")
    options = ["--target", "y", "--bounds", "x=0,4", "--categories", "city=Rome", "--classes", "no,yes"]
    options += ["--missing", "-999", "--missing", "unknown", "--dry-run", "--write-schema", "s.toml"]
    invoke("train", data, *options, "--algorithm", "dp_gd")
    written = Path("s.toml").read_text()
    assert 'missing = ["-999", "unknown"]' in written and 'absent = ["-999", "unknown"]' in written
    for begun in (prepared(schema="s.toml"), rows_of("t.csv", schema="s.toml", target="y", classes=["no", "yes"])):
        assert begun.n == 120 and begun.features == ["x", "city=Rome", "city=(other)", "city=(missing)"]
        assert begun.x[:3, 0].tolist() == [2, 2, 2] and begun.x.sum(0)[1:].tolist() == [60, 0, 60]


def test_words_that_every_row_has_of_its_own_are_left_out() -> None:
    table(x=lambda k: k % 5, contact=lambda k: f"u{k}@x.org")
    begun = prepared()
    assert begun.features == ["x"] and "'contact'" in begun.leaks[0]
    assert any("'contact' is left out: nearly every row has a word of its own" in note for note in begun.notes)


def test_undeclared_words_say_what_to_declare() -> None:
    table(gender=lambda k: ["female", "male"][k % 2], x=lambda k: k % 5)
    begun = prepared()
    assert begun.d == 18
    first = next(note for note in begun.notes if "go into fixed buckets" in note)
    assert "16 for a column even where it has two words" in first and '--categories "gender=a,b,c"' in first
    assert prepared(columns={"gender": ["female", "male"]}).d == 5


def test_ids_are_never_features_and_go_along_with_predictions() -> None:
    data = table(customer=lambda k: f"c{k:03d}", x=lambda k: k % 5)
    invoke("train", data, "--target", "y", "--classes", "no,yes", "--bounds", "x=0,5", "--id", "customer", *QUICK)
    schema = Path("runs/t-1/schema.toml").read_text()
    assert 'type = "id"' in schema and "c001" not in schema
    invoke("predict", "runs/t-1", data, "-o", "out.csv")
    rows = list(csv.reader(Path("out.csv").read_text().splitlines()))
    assert rows[0] == ["customer", "prediction"] and [row[0] for row in rows[1:4]] == ["c000", "c001", "c002"]
    invoke("predict", "runs/t-1", data, "-o", "out.csv", "--id", "x", "--id", "y", "--proba")
    assert Path("out.csv").read_text().splitlines()[1].startswith("0,no,c000,")
    Path("new.csv").write_text("x\n3\n")  # new rows need no identifier
    invoke("predict", "runs/t-1", "new.csv", "-o", "out.csv")
    assert Path("out.csv").read_text().splitlines()[0] == "prediction"
    output = invoke("predict", "runs/t-1", "new.csv", "-o", "o.csv", "--id", "z", code=2).output
    assert "name a column of the file, which has" in output
    Path("new.csv").write_text("x,prediction\n3,4\n")
    output = invoke("predict", "runs/t-1", "new.csv", "-o", "o.csv", "--id", "prediction", code=2).output
    assert "a column of the predictions has that name" in output


def test_rows_of_one_id_are_not_protected_together() -> None:
    """It is said whenever there is an id, whatever the rows hold."""
    table(customer=lambda k: f"c{k // 7}", x=lambda k: k % 5)
    notes = prepared(columns={"customer": "id", "x": [0, 5]}).notes
    assert any("epsilon protects one row; where one 'customer' has several rows" in note for note in notes)


def test_a_matrix_has_no_ids() -> None:
    rng = np.random.default_rng(0)
    np.savez("m.npz", X=rng.uniform(-1, 1, (60, 2)), y=np.arange(60) % 2)
    invoke("train", "m.npz", "--classes", "0,1", "--bounds=-1,1", *QUICK)
    output = invoke("predict", "runs/m-1", "m.npz", "-o", "o.csv", "--id", "a", code=2).output
    assert "this file has no named columns" in output
    np.savez("none.npz", X=np.empty((0, 2)))
    invoke("predict", "runs/m-1", "none.npz", "-o", "o.csv")
    assert Path("o.csv").read_text().split() == ["prediction"]


@pytest.mark.parametrize(("entry", "options"), [("2.5", []), ("2,5", ["--decimal", ","]), ("2.5", ["--decimal", "."])])
def test_new_rows_may_be_written_otherwise(entry: str, options: list[str]) -> None:
    data = table(x=lambda k: k % 5, z=lambda k: k % 3)
    common = ["--classes", "no,yes", "--bounds", "x=0,5", "--bounds", "z=0,5"]
    invoke("train", data, "--target", "y", *common, *QUICK)
    Path("a.csv").write_text("x,z\n2.5,1\n")
    Path("b.csv").write_text(f"x;z\n{entry};1\n")
    invoke("predict", "runs/t-1", "a.csv", "-o", "a-out.csv", "--proba")
    invoke("predict", "runs/t-1", "b.csv", "-o", "b-out.csv", "--proba", *options)
    assert Path("a-out.csv").read_text() == Path("b-out.csv").read_text()
    if "," in entry:
        assert "--decimal" in invoke("predict", "runs/t-1", "b.csv", "-o", "c.csv", code=2).output


# ---------------------------------------------------------------- files without rows, labels, words


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_predictions_for_no_rows_are_none(suffix: str) -> None:
    data = table(x=lambda k: k % 5)
    invoke("train", data, "--target", "y", "--classes", "no,yes", "--bounds", "x=0,5", *QUICK)
    Path("none.csv").write_text("x\n")
    said = json.loads(invoke("predict", "runs/t-1", "none.csv", "-o", f"o.{suffix}", "--proba", "--json").stdout)
    assert said["rows"] == 0 and said["columns"] == ["prediction", "p(no)", "p(yes)"] and Path(f"o.{suffix}").exists()


@pytest.mark.parametrize("option", ["--test", "--public"])
def test_other_files_without_rows_are_refused(option: str) -> None:
    data = table(x=lambda k: k % 5)
    Path("none.csv").write_text("x,y\n")
    output = invoke("train", data, "--target", "y", "--classes", "no,yes", option, "none.csv", *QUICK, code=2).output
    assert f"{option[2:]}='none.csv' is not allowed: give a file with rows" in output and not Path("runs").exists()


def test_one_label_is_not_too_many() -> None:
    Path("t.csv").write_text("x,y\n" + "1,no\n" * 50)
    output = invoke("train", "t.csv", "--target", "y", code=2).output
    assert "classes='1 label' is not allowed: name all labels" in output and "too many" not in output


def test_words_with_commas_are_quoted() -> None:
    table(city=lambda k: ["Rome, Italy", "Paris", 'the "Hague"'][k % 3], **{"a=b": lambda k: k % 2})
    quoted = 'city="Rome, Italy", Paris, "the ""Hague"""'
    common = ["train", "t.csv", "--target", "y", "--classes", "no,yes", "--categories", quoted, "--dry-run"]
    result = invoke(*common, "--bounds", '"a=b"=0,1', "--algorithm", "dp_gd", "--json")
    data = json.loads(result.stdout)
    assert 'categories = ["Rome, Italy", "Paris", "the \\"Hague\\""]' in data["schema"] and '"a=b"' in data["schema"]
    assert "close the quotes" in invoke(*common[:-2], 'city="Rome, Italy', code=2).output


def test_labels_with_commas_come_back_as_an_option() -> None:
    labels = ["Rome, Italy", "it's", "plain"]
    Path("t.csv").write_text("x,y\n" + "".join(f'{k % 5},"{labels[k % 3]}"\n' for k in range(60)))
    told = prepared(classes=None).leaks[-1]
    assert told.endswith(f"give --classes {_as_option(sorted(labels))}") and _as_option(["a", "b"]) == "a,b"
    words = ["--classes", '"Rome, Italy",it\'s,plain']
    result = invoke("train", "t.csv", "-y", "y", *words, "--dry-run", "--algorithm", "dp_gd")
    assert "classes: Rome, Italy, it's, plain" in result.output


def test_declared_words_that_look_missing_are_kept() -> None:
    """NA is Namibia; None is a level of education: the reader of csv files would have taken both for nothing."""
    table(country=lambda k: ["NA", "DE", ""][k % 3], n=60)
    begun = prepared(columns={"country": ["NA", "DE"]})
    assert begun.x.sum(0).tolist() == [20, 20, 0, 20]
    Path("t.csv").write_text("x,y\n" + "1,None\n2,some\n3,\n" * 20)
    assert sorted(set(prepared(classes=["None", "some"], columns={"x": [0, 3]}).y)) == ["None", "some"]


def test_a_quoted_header_does_not_hide_the_separator() -> None:
    Path("t.csv").write_text('"Price, EUR";"Size, m, inside";y\n' + "1.5;2;no\n2.5;3;yes\n" * 30)
    assert prepared().features == ["Price, EUR", "Size, m, inside"]


def test_words_that_never_occur_are_refused() -> None:
    """Written otherwise than declared, all of them would be "(other)" without a word; another case is no other word."""
    table(sex=lambda k: ["FEMALE", "Male", ""][k % 3], x=lambda k: k % 5)
    assert prepared(columns={"sex": ["female", "male"], "x": [0, 5]}).x[:, :4].sum(0).tolist() == [40, 40, 0, 40]
    assert prepared(columns={"sex": ["female", "FEMALE"], "x": [0, 5]}).x[:, :4].sum(0).tolist() == [0, 40, 40, 40]
    with pytest.raises(InvalidInput, match=r"columns.sex='category' .* no row has one of the words declared"):
        prepared(columns={"sex": ["f", "m"], "x": [0, 5]})
    assert prepared(columns={"sex": ["Female"], "x": [0, 5]}).x[:, 1].sum() == 40  # the rest is (other), as asked


def test_all_columns_that_cannot_be_guessed_are_named_at_once() -> None:
    dates = {"a": lambda k: "2020-01-01", "b": lambda k: "01/02/2020"}
    table(**dates, c=lambda k: f"{k},5", d=lambda k: f"{k},25", x=lambda k: k % 5)
    with pytest.raises(InvalidInput) as error:
        prepared()
    words = str(error.value)
    assert words.startswith("The columns 'a', 'b', 'c', 'd' are not allowed as they are:\n  columns.a=")
    assert words.count("not allowed") == 1 and '--drop "a"' in words and "they are not ISO" in words
    assert words.count("--decimal ,") == 1


def test_a_format_and_a_range_of_dates_are_two_options() -> None:
    data = table(when=lambda k: f"{1 + k % 28:02d}/02/2020", x=lambda k: k % 5)
    common = ["train", data, "-y", "y", "--classes", "no,yes", "--bounds", "x=0,5", "--algorithm", "dp_gd", "--dry-run"]
    ranged = ["--bounds", "when=2020-01-01,2020-12-31"]
    result = invoke(*common, *ranged, "--date-format", "when=%d/%m/%Y")
    assert "date, 2020-01-01 to 2020-12-31, written as %d/%m/%Y (declared)" in result.stdout and result.stderr == ""
    assert "another format than ISO" in invoke(*common, *ranged, code=2).output
    assert "another format than %m/%d/%Y" in invoke(*common, *ranged, "--date-format", "when=%m/%d/%Y", code=2).output
    assert "give the public range" in invoke(*common, "--date-format", "when=%d/%m/%Y", code=2).output
    assert "give a format such as" in invoke(*common, *ranged, "--date-format", "when=dmy", code=2).output


def test_a_tab_may_be_written_as_one_types_it() -> None:
    Path("t.csv").write_text("a,b\ty\n" + "1\tno\n2\tyes\n" * 30)
    assert prepared(separator="\\t").features == prepared(separator="\t").features == ["a,b"]


# ---------------------------------------------------------------- answers


WRONG = [
    ("'--epsilon'", "train t.csv --epsilon much"),
    ("--epsilom", "train t.csv --epsilom 1"),
    ("Give a file", "train"),
    ("column=value", "train t.csv --categories sex"),
    ("ranking", "train t.csv --task ranking"),
    ("'nonsense'", "nonsense"),
    ("'DATA'", "predict run"),
    ("few", "plan --rows few"),
    ("File not found: nowhere", "report nowhere"),
]


@pytest.mark.parametrize(("words", "line"), WRONG)
@pytest.mark.parametrize("first", [True, False])
def test_wrong_options_are_answered_in_json(words: str, line: str, first: bool) -> None:
    command, *rest = line.split()
    result = invoke(command, *(["--json", *rest] if first else [*rest, "--json"]), code=2)
    data = json.loads(result.stdout)
    assert data["exit_code"] == 2 and words in data["error"]
    assert invoke(command, *rest, code=2).stdout == ""


def test_an_accident_is_answered_in_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise KeyError("inner")

    monkeypatch.setattr("isthmus.planner.plan", broken)
    arguments = ["plan", "-n", "10", "-d", "5", "--epsilon", "1"]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert json.loads(result.stdout) == {"error": "KeyError: 'inner'", "exit_code": 1} and result.exit_code == 1
    assert isinstance(result.exception, KeyError)


def test_a_report_of_a_stopped_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    data = table(x=lambda k: k % 5)
    with monkeypatch.context() as patch:
        patch.setattr("isthmus.runs.train._write_record", interrupted)
        invoke("train", data, "--target", "y", "--classes", "no,yes", "--bounds", "x=0,5", *QUICK, code=4)
    error = json.loads(invoke("report", "runs/t-1", "--json", code=2).stdout)["error"]
    assert "was stopped before its record was written" in error and "isthmus train --resume runs/t-1" in error
    invoke("train", "--resume", "runs/t-1")
    invoke("report", "runs/t-1")


def test_a_dry_run_writes_the_schema_where_asked() -> None:
    data = table(x=lambda k: k % 5)
    common = ["train", data, "--target", "y", "--classes", "no,yes", "--algorithm", "dp_gd", "--write-schema", "s.toml"]
    assert "Give --write-schema together with --dry-run" in invoke(*common, code=2).output
    result = invoke(*common, "--dry-run")
    assert "nothing was spent, the schema is in s.toml" in result.output and not Path("runs").exists()
    assert "types of 'x' were read from the private rows" in result.stderr
    assert 'source = "data"' in Path("s.toml").read_text()
    again = invoke("train", data, "--schema", "s.toml", "--target", "y", "--dry-run", "--algorithm", "dp_gd")
    assert "warning" not in again.stderr


# ---------------------------------------------------------------- leaks: as few as can be, and said wherever one looks


ALL_DECLARED = ["--classes", "no,yes", "--bounds", "age=0,99", "--categories", "sex=f,m"]


def people(change: Any = None, n: int = 120) -> str:
    """A table, after a change to the list of its rows."""
    rng = np.random.default_rng(0)
    rows = [[str(rng.integers(18, 90)), "fm"[rng.integers(2)], ["no", "yes"][i % 2]] for i in range(n)]
    if change is not None:
        change(rows)
    Path("t.csv").write_text("age,sex,y\n" + "".join(",".join(row) + "\n" for row in rows))
    return "t.csv"


def prepared_people(change: Any = None, **options: Any) -> PreparedRows:
    return rows_of(people(change), target="y", **options)


def put(row: int, column: int, word: str) -> Any:
    def change(rows: list[list[str]]) -> None:
        rows[row][column] = word

    return change


# ---------------------------------------------------------------- one record changes no public thing


@pytest.mark.parametrize("word", ["", "n/a", "unknown", "1e9", "-3"])
@pytest.mark.parametrize("column", [0, 1])
def test_one_cell_adds_no_column(column: int, word: str) -> None:
    assert prepared_people(put(7, column, word)).schema == prepared_people().schema


def test_one_word_among_truth_values_is_a_missing_one() -> None:
    def truths(rows: list[list[str]]) -> None:
        for i, row in enumerate(rows):
            row[1] = ["yes", "no"][i % 2]

    def one(rows: list[list[str]]) -> None:
        truths(rows)
        rows[3][1] = "perhaps"

    assert prepared_people(truths).schema == prepared_people(one).schema
    assert prepared_people(one).schema.columns[1].type == "bool"


def test_a_label_of_few_rows_is_never_read_off_the_data() -> None:
    def rare(rows: list[list[str]]) -> None:
        for row in rows[: FEW - 1]:
            row[2] = "unique-label"

    with pytest.raises(InvalidInput, match="fewer than 10 rows have one of the labels") as error:
        prepared_people(rare)
    assert "--classes A,B,.." in str(error.value) and "unique-label" not in str(error.value)
    assert "yes" not in str(error.value), "no label is said, be it that of many rows"
    assert prepared_people(rare, classes=["no", "yes", "unique-label"]).target.classes == ("no", "yes", "unique-label")
    assert prepared_people(rare, epsilon="inf").target.classes == ("no", "unique-label", "yes")
    result = invoke("train", people(put(5, 2, "unique-label")), "--target", "y", code=2)
    assert "unique-label" not in result.output and not Path("runs").exists()


# ---------------------------------------------------------------- and what leaks is said everywhere


def test_a_run_with_leaks_says_so_everywhere() -> None:
    result = invoke("train", people(), "--target", "y", "--epsilon", "1", *QUICK)
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
    result = invoke("train", people(), "--target", "y", *ALL_DECLARED, *QUICK)
    assert "everything counted" in result.stdout and "NOT COVERED" not in result.output and result.stderr == ""
    record = Record.from_file("runs/t-1")
    assert record.privacy is not None and record.privacy["leaks"] == ()
    assert "not all that was read" not in render(record)


def test_a_large_delta_is_warned_of() -> None:
    result = invoke("train", people(), "--target", "y", *ALL_DECLARED, *QUICK, "--delta", "0.5")
    assert "warning: delta=0.5 is at least 1/n" in result.stderr and "everything counted" not in result.stdout
    record = Record.from_file("runs/t-1")
    assert any("at least 1/n" in warning for warning in record.warnings) and "protects hardly anyone" in record.words


def test_a_plan_warns_of_a_large_delta_too() -> None:
    common = ["--delta", "0.5", "--epsilon"]
    for command in (["plan", "-n", "64", "-d", "3"], ["train", people(), "--target", "y", *ALL_DECLARED, "--dry-run"]):
        assert "warning: delta=0.5 is at least 1/n" in invoke(*command, *common, "1").stderr
    assert invoke("plan", "-n", "64", "-d", "3", *common, "inf").stderr == ""


def test_a_record_that_hides_a_leak_is_refused() -> None:
    invoke("train", people(), "--target", "y", *QUICK)
    data = json.loads(Path("runs/t-1/run.json").read_text())
    leak = data["privacy"]["leaks"][0]
    with pytest.raises(ValueError, match="as leaked"):
        Record.from_dict(data | {"words": data["words"].replace(leak, "")})


# ---------------------------------------------------------------- patterns and queries


def test_a_run_over_a_pattern_and_over_a_query_are_those_over_the_whole_csv() -> None:
    """A file of the pattern is private also as test rows; what a query may do to a row is said."""
    rows = Path(table(x=lambda k: k % 5)).read_text().splitlines(keepends=True)
    for place, part in enumerate((rows[1:60], rows[60:])):
        Path(f"part-{place}.csv").write_text(rows[0] + "".join(part))
    with contextlib.closing(sqlite3.connect("t.sqlite")) as database:
        database.execute("create table t (x text, y text)")
        database.executemany("insert into t values (?, ?)", csv.reader(rows[1:]))
        database.commit()
    declared: dict[str, Any] = {"target": "y", "classes": ["no", "yes"], "columns": {"x": [0, 5]}}
    whole, parts = rows_of("t.csv", **declared), rows_of("part-*.csv", **declared)
    asked = rows_of("t.sqlite", **declared, query="select * from t")
    for other in (parts, asked):
        assert np.array_equal(other.x, whole.x) and np.array_equal(other.y, whole.y)
    assert parts.notes == whole.notes and "one row of what the query gives" in asked.notes[-1]
    for path in ("part-1.csv", "part-?.csv"):
        with pytest.raises(InvalidInput, match="this is the file to train on"):
            rows_of("part-*.csv", **declared, test=path)
    with pytest.raises(InvalidInput, match="query='t' is not allowed: leave it out"):
        rows_of("t.csv", **declared, query="t")
    invoke("train", "t.sqlite", "--query", "select x, y from t", "-y", "y", "--classes", "no,yes", *QUICK, "--out", "r")
    invoke("predict", "r", "t.sqlite", "-o", "o.csv")
    assert len(Path("o.csv").read_text().splitlines()) == 121
