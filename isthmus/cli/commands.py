"""The commands: schema, train, predict; describe; plan, budget, audit, report, demo, completion.

What every command says, and where: JSON on standard output, words for people, all else on standard error.
"""

from __future__ import annotations

import csv
import functools
import gc
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:  # what a command needs is loaded when it runs
    from isthmus.planner import Plan
    from isthmus.runs.prepare import PreparedRows
    from isthmus.runs.train import Outcome

_Command = TypeVar("_Command", bound=Callable[..., object])
_Decorator = Callable[[_Command], _Command]


def _late(module: str) -> ModuleType:
    """A module of the package, loaded when a command first asks for it: `isthmus --help` answers at once."""
    return importlib.import_module(f"isthmus.{module}")


class Out:
    """Where a command writes.

    >>> Out(as_json=True, quiet=False).result({"epsilon": float("inf")}, "words")
    {"epsilon": "inf"}
    """

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet

    def result(self, data: object, words: str, brief: str | None = None) -> None:
        """The outcome: as JSON, or in words, which are `brief` where only results are asked for."""
        if self.quiet and brief is not None:
            words = brief
        if self.as_json:
            words = json.dumps(_plain(data), allow_nan=False, ensure_ascii=False)
        click.echo(words)

    def say(self, words: str = "") -> None:
        """Something a person may want to know; on standard error beside JSON."""
        if not self.quiet:
            click.echo(words, err=self.as_json)

    def warn(self, words: str) -> None:
        """Something a person must know: always, on standard error."""
        click.echo(f"warning: {words}", err=True)


def _warn_of_plan(screen: Out, plan: Plan) -> None:
    """Warn of a delta that would allow publishing whole records."""
    if plan.facts.epsilon < math.inf:
        caution = _late("privacy.leaks").large_delta(plan.facts.delta, plan.facts.n)
        if caution:
            screen.warn(caution)


def _plain(value: object) -> object:
    """What JSON can hold: infinity as text, NaN as null, arrays as lists."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": None}.get(str(value), str(value))
    return value


# ---------------------------------------------------------------- options

_FILE = click.Path(dir_okay=False)

_DATA = click.Path()
"""A file, or a folder of Parquet files."""

_COUNT = click.IntRange(min=1)

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

_PAIR = re.compile(r'\s*(?:"([^"]+)"|([^="][^=]*?))\s*=\s*(\S.*?)\s*', re.S)


def _pairs(text: tuple[str, ...], option: str) -> dict[str, str]:
    """`name=value` arguments by their names; a name with an `=` in it is quoted."""
    by_column = {}
    for word in text:
        pair = _PAIR.fullmatch(word)
        if pair is None:
            raise click.UsageError(f"{option} {word!r} is not allowed: write it as column=value")
        by_column[(pair[1] or pair[2]).strip()] = pair[3]
    return by_column


def _range(text: str | None, option: str, column: str = "") -> list[float | str] | None:
    """Two numbers, or two dates as text."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2:
        start = column and f"{column}="
        words = f"{option} {start + text!r} is not allowed: write a range as low,high, such as {start}0,100"
        raise click.UsageError(words)
    with suppress(ValueError):
        return [float(part) for part in parts]
    return list(parts)


def _words(text: str | None, option: str = "--classes") -> list[str] | None:
    """Words with commas between them; one that holds a comma is quoted, as in a csv."""
    if text is None:
        return None
    try:
        return [word.strip() for word in next(csv.reader([text], skipinitialspace=True, strict=True))]
    except csv.Error as error:
        words = f"{option} {text!r} is not allowed: close the quotes around each word ({error})"
        raise click.UsageError(words) from None


def _option(flags: str, kind: object, words: str, **more: Any) -> _Decorator:
    """An option; `kind` is its type, a list of what it may be, or how its text is called."""
    if isinstance(kind, str):
        more["metavar"] = kind
    elif isinstance(kind, list):
        more["type"] = click.Choice(kind)
    else:
        more |= {"is_flag": True} if kind is bool else {"type": kind}
    return click.option(*flags.split(), help=words, **more)


_EPSILON = _option("--epsilon -e", float, "The privacy budget; inf trains without privacy.  [default: 1]")
_DELTA = _option("--delta", float, "Default: min(1e-5, n^-1.1).")
_ADJACENCIES = ["add-remove", "replace-one"]
_BUDGET = _option("--budget", _FILE, "A budget shared with other runs on this data (see isthmus budget).")
_SCHEMA = _option("--schema", _FILE, "A schema.toml: types, words and ranges of the columns, all public.")
_READING = [
    _option("--separator", "CHAR", "The separator of a csv file; otherwise the most frequent one in its header."),
    _option("--encoding", str, "The encoding of a csv file.  [default: utf-8]"),
    _option("--decimal", "CHAR", "The decimal sign of a csv file: . or ,  [default: .]"),
    _option("--query", "SELECT", "The rows of a SQLite or DuckDB file that are meant; the sheet of an Excel file."),
]
_TASKS = ["classification", "regression"]
_FORMS = "How a column writes dates, such as %d/%m/%Y; otherwise ISO."
_TABLE = [
    _option("--target -y", "COLUMN", "The column to predict (npz and libsvm have their own)."),
    _option("--task", _TASKS, "The kind of target; otherwise guessed, with a warning."),
    _option("--classes", "A,B,..", "All labels; otherwise read from the data, with a warning."),
    _option("--target-bounds", "LOW,HIGH", "The public range of the target; otherwise bought from the budget."),
    _option("--categories", "COL=A,B,..", 'The public words of a column; "A, B" holds a comma.', multiple=True),
    _option("--bounds", "[COL=]LOW,HIGH", "The public range of a column (numbers or dates), or of all.", multiple=True),
    _option("--hash hashed", "COL=BUCKETS", "Hash a column's words.", multiple=True),
    _option("--date-format", "COL=FORMAT", _FORMS, multiple=True),
    _option("--id ids", "COL", "Never a feature; predictions carry it along.", multiple=True),
    _option("--drop", "COL", "Leave a column out.", multiple=True),
    _option("--missing", "ENTRY", "An entry that counts as missing in all columns, such as -999.", multiple=True),
    *_READING,
]
"""What is public about a table."""
_N = "A public estimate of the number of rows; otherwise the true number is public."
_RECORDS = "The number of records, as a public number or estimate."
_SHARE = "The share of rows to keep out of training and measure on."
_TRAIN = [
    _EPSILON,
    _DELTA,
    _option("--adjacency", _ADJACENCIES, "Who is protected.  [default: add-remove]"),
    _option("-n --rows n", _COUNT, _N),
    _BUDGET,
    _option("--test", _DATA, "Test rows that are public: exact figures."),
    _option("--test-fraction", float, _SHARE, metavar="SHARE"),
    _option("--test-epsilon", float, "The part of epsilon that buys noisy figures of private test rows."),
    _option("--release-test-metrics", bool, "Publish figures of held-out rows without noise.", default=None),
    *_TABLE,
    _SCHEMA,
    _option("--public", _FILE, "Public rows: types, words, ranges and scales are taken from them."),
    _option("--features", int, "Columns of a libsvm file.", metavar="D"),
    _option("--zero-based", bool, "Indices of a libsvm file begin with 0.", default=None),
    _option("--loss", str, "logistic, softmax, hinge, smooth_hinge; squared, huber, poisson."),
    _option("--algorithm", str, "auto asks the planner.  [default: auto]"),
    _option("--constraint", str, "l1:50, l2:2, linf:1, box:-1,1 or simplex."),
    _option("--l1", float, "Strength of an l1 penalty."),
    _option("--l2", float, "Strength of an l2 penalty."),
    _option("--clip", float, "The bound on the length of a record's gradient."),
    _option("--step", float, "The size of a step."),
    _option("--max-iter", int, "The number of rounds."),
    _option("--batch-size", int, "The expected number of records in a round."),
    _option("--scale", str, "auto, none, columns, moments, shapes or public."),
    _option("--shape", ["auto", "linear", "smooth"], "Fit straight lines, or a curve for each column."),
    _option("--data-norm", float, "A public bound on the length of a row."),
    _option("--no-intercept", bool, "Fit without an intercept."),
    _option("--config", _FILE, "A TOML file with these options and the tables [target], [columns]."),
    _option("--out -o", click.Path(file_okay=False), "The run's folder.  [default: runs/<name>-<k>]"),
    _option("--title", str, "The title of the report."),
    _option("--purpose", str, "What the model is for: a sentence of the report."),
    _option("--owner", str, "Who answers for it: a person or a team, in the report."),
    _option("--resume", click.Path(), "Continue a run that was stopped.", metavar="RUN"),
    _option("--dry-run", bool, "Print schema and plan; spend nothing, write nothing."),
    _option("--write-schema", _FILE, "With --dry-run: write the schema to review there.", metavar="FILE"),
]


def command(*parts: _Decorator) -> Callable[[Callable[..., object]], click.Command]:
    """A command with these arguments and options, and `--json` and `--quiet`, which it is handed as its `Out`."""

    def declare(work: Callable[..., object]) -> click.Command:
        @functools.wraps(work)
        def speaking(as_json: bool, quiet: bool, **given: object) -> object:
            return work(Out(as_json, quiet), **given)

        json_option = _option("--json as_json", bool, "Print one JSON object.")
        quiet_option = _option("--quiet -q", bool, "Print results and errors only.")
        for part in reversed([*parts, json_option, quiet_option]):
            part(speaking)
        return click.command()(speaking)

    return declare


@command(click.argument("data", required=False, type=_DATA), *_TRAIN)
def train(screen: Out, resume: str | None, dry_run: bool, write_schema: str | None, **given: Any) -> None:
    """Train a private model on DATA: csv, tsv, JSON lines, parquet (also a folder of it), feather, Excel, SQLite,
    DuckDB, npz or libsvm, or a quoted pattern such as "part-*.csv".

    \b
      isthmus train people.csv --target income --epsilon 1
      isthmus train people.csv --target income --classes low,high --bounds age=17,90 --test-fraction 0.2
      isthmus train --resume runs/people-1
      torchrun --nproc-per-node 4 -m isthmus train people.csv --schema schema.toml

    Writes the model, the plan, the ledger, the figures and the record of the run into a folder. Whatever is not
    declared is bought from the budget, or guessed from the data with a warning that names the option to declare it.
    """
    if write_schema is not None and not dry_run:
        words = "Give --write-schema together with --dry-run: a run keeps its schema.toml in its folder."
        raise click.UsageError(words)
    if resume is not None:
        more = [name for name, value in given.items() if value not in (None, (), False)] or ["--dry-run"] * dry_run
        if more:
            raise click.UsageError(f"--resume continues with the settings of the run: leave out {', '.join(more)}")
        _carried(screen, "resume", resume)
        return
    config = given.pop("config")
    options = _options_of(**given)
    if options.get("data") is None and config is None:
        raise click.UsageError("Give a file to train on, --config or --resume.")
    settings, declared = _late("runs.config").load(config, options)
    if dry_run:
        if not _rank():
            problem, plan = _late("runs.train").dry_run(settings, declared)
            _show_plan(screen, settings.n, problem, plan, write_schema)
        return
    _carried(screen, "start", settings, declared)


def _rank() -> int:
    """The number that torchrun gave this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0
    return int(os.environ.get("RANK", "0"))


def _carried(screen: Out, begin: str, *what: object) -> None:
    """A run by this process, or by the ranks that torchrun started: rank 0 says what came out."""
    train = _late("runs.train")
    with train.together() as crew:
        carry = {"start": train.start, "resume": train.resume}[begin]
        progress = not screen.quiet and sys.stderr.isatty()
        outcome = carry(*what, say=screen.say, warn=screen.warn, progress=progress, crew=crew)
    if outcome is not None:
        _finish(screen, outcome)


def _options_of(
    bounds: tuple[str, ...], ids: tuple[str, ...], drop: tuple[str, ...], no_intercept: bool = False, **given: Any
) -> dict[str, Any]:
    """The options as settings and columns."""
    every, ranged = [word for word in bounds if "=" not in word], given.pop("target_bounds")
    if len(every) > 1:
        raise click.UsageError("Give --bounds LOW,HIGH for all columns once, and --bounds COL=LOW,HIGH for one column.")
    categories = _pairs(given.pop("categories"), "--categories")
    columns: dict[str, Any] = {name: _words(words, "--categories") for name, words in categories.items()}
    named = _pairs(tuple(word for word in bounds if "=" in word), "--bounds")
    for name, text in named.items():
        ends = _range(text, "--bounds", name) or []
        columns[name] = {"type": "date" if all(_DATE.fullmatch(str(end)) for end in ends) else "number", "bounds": ends}
    for name, count in _pairs(given.pop("hashed"), "--hash").items():
        columns[name] = {"type": "hash", "buckets": int(count) if count.isdecimal() else count}
    for name, form in _pairs(given.pop("date_format"), "--date-format").items():
        own = columns[name] if name in named else {}
        columns[name] = {**own, "type": "date", "format": form}
    if no_intercept:
        given["intercept"] = False
    columns |= dict.fromkeys(ids, "id") | dict.fromkeys(drop, "drop")
    return {
        **given,
        "columns": columns,
        "classes": _words(given["classes"]),
        "bounds": _range(next(iter(every), None), "--bounds"),
        "target_bounds": _range(ranged, "--target-bounds"),
    }


def _finish(screen: Out, outcome: Outcome) -> None:
    """Say what came out of a run."""
    record = outcome.record
    model, rounded_up = record.model, _late("base.notebook").rounded_up
    lines = [f"run        {outcome.folder}"]
    lines += [f"model      {model['algorithm']}, {model['rounds']} rounds, {model['seconds'] or 0:.1f} s"]
    if record.privacy is not None and record.private:
        covered = "everything counted"
        if outcome.leaks:
            covered = "of what was released with noise"
        elif record.warnings:
            covered = "with the warnings above"
        if outcome.measured.releases:
            covered += " (training and test figures)"
        delta = record.privacy["delta"]
        lines.append(f"privacy    epsilon {rounded_up(outcome.epsilon)} at delta {delta:g}, {covered}")
        lines += [f"NOT COVERED  {leak}" for leak in outcome.leaks]
    else:
        lines.append("privacy    none: this model is NOT private")
    shared = record.budget["shared"]
    if shared is not None:
        lines.append(f"budget     {rounded_up(shared['spent'])} of {shared['epsilon']:g} spent ({shared['file']})")
    little = _late("report").expectation(record)
    if little:
        lines.append(f"expect     {little}")
    told: set[str] = set()  # where figures were measured, and notes that several share, are said once
    for figure in outcome.measured.figures:
        if figure.on not in told:
            lines.append(f"test       {figure.on}")
        short = replace(figure, on="")
        if figure.value is not None and figure.note in told:
            short = replace(short, note="")
        lines.append(f"           {short.words()}")
        told |= {figure.on, figure.note}
    if not outcome.measured.figures:
        lines.append("test       nothing was measured; --test-fraction 0.2 keeps rows back for that")
    lines += ["", f"isthmus predict {outcome.folder} DATA -o predictions.csv", f"isthmus report {outcome.folder}"]
    screen.result(outcome.to_dict(), "\n".join(lines), str(outcome.folder))


def _show_plan(screen: Out, estimate: int | None, problem: PreparedRows, plan: Plan, write_schema: str | None) -> None:
    """Say what a run would do; write its schema where that was asked for."""
    n, target = estimate or problem.n, problem.target
    for leak in problem.leaks:
        screen.warn(leak)
    _warn_of_plan(screen, plan)
    lines = [f"note: {note}" for note in problem.notes]
    lines += ["", f"{n} rows, {problem.d} columns of numbers, {target.task} of {target.name!r}"]
    if target.classes:
        lines.append(f"classes: {', '.join(target.classes)}")
    lines += [f"  {column.name:24} {column.words()}" for column in problem.schema.columns]
    written = "nothing was written"
    if write_schema is not None:
        text = _late("runs.train").HEADER + problem.schema.to_toml(versioned=True)
        with _late("base.atomic").atomic_write(write_schema) as partial:
            partial.write_text(text, encoding="utf-8")
        written = f"the schema is in {write_schema}: review it, and give it as --schema"
    lines += ["", plan.words(), "", plan.table(), "", f"nothing was spent, {written}"]
    data = {"n": n, "d": problem.d, "task": target.task, "classes": target.classes, "schema": problem.schema.to_toml()}
    screen.result(data | {"leaks": problem.leaks, "notes": problem.notes, "plan": plan.to_dict()}, "\n".join(lines))


@command(
    click.argument("run", type=click.Path()),
    click.argument("data", type=_DATA),
    _option("--output -o", _FILE, "A file ending in .csv, .tsv, .npz or .parquet.", required=True),
    _option("--proba", bool, "Also the probability of each class."),
    _option("--id ids", "COL", "Carry a column of DATA along, to tell the rows apart.", multiple=True),
    *_READING,
)
def predict(
    screen: Out, run: str, data: str, output: str, proba: bool, ids: tuple[str, ...], **given: str | None
) -> None:
    """Predict for the rows of DATA with the model of a RUN.

    Rows are encoded by the run's schema; its columns of type "id" are carried along. How the file is written is as it
    was in training unless options say otherwise. A prediction tells something about the row it is made for: only the
    rows the model was trained on are protected by its epsilon.
    """
    folder = _late("runs.folder").RunFolder.open(run)
    options = {name: value for name, value in given.items() if value is not None}
    settings = _late("runs.config").Settings.from_dict({**folder.settings["settings"], **options})
    table = _late("tables.files").read(data, part="test", reading=settings.reading)
    columns = _late("runs.folder").predictions(folder, table, ids, proba, given["decimal"])
    _late("tables.files").write(output, columns)
    rows = len(columns["prediction"])
    told = {"output": str(Path(output)), "rows": rows, "columns": list(columns)}
    screen.result(told, f"wrote {rows} predictions to {output}")


@command(
    click.argument("data", type=_DATA),
    *_TABLE,
    _option("--sample", _FILE, "Public rows of the same columns: types, words, ranges are taken from them."),
)
def schema(screen: Out, data: str, sample: str | None, **given: Any) -> None:
    """Begin a schema.toml for DATA from its header and the options; reads no row of it and spends nothing.

    \b
      isthmus schema people.csv --target income > schema.toml
      isthmus schema people.csv --target income --sample public.csv > schema.toml
      isthmus train people.csv --schema schema.toml

    What neither the options nor the sample tell stands there as "?", to be filled in from what is publicly known.
    """
    settings, declared = _late("runs.config").load(None, {"data": data, **_options_of(**given)})
    target = _late("runs.config").target_of(settings)
    whole = {name: vars(settings)[name] for name in ("decimal", "bounds", "missing")} | {"reading": settings.reading}
    text, missing = _late("tables.infer").draft(data, declared, target, sample=sample, **whole)
    screen.result({"schema": text, "open": missing}, text.rstrip())
    if missing and not screen.quiet:
        click.echo(f'fill in what is marked "?": {", ".join(missing)}', err=True)


@command(
    click.argument("data", type=_FILE),
    _option("--epsilon -e", float, "The privacy budget of the summary.", required=True),
    _option("--delta", float, "Default: that of the --budget, else 1e-6."),
    _option("--adjacency", _ADJACENCIES, "Who is protected."),
    _BUDGET,
    _option("--bins", int, "Parts of a range in a histogram.", default=20, show_default=True),
    *_TABLE,
    _SCHEMA,
)
def describe(screen: Out, data: str, bins: int, delta: float | None, adjacency: str | None, **given: Any) -> None:
    """Summarise the columns of DATA privately: counts, histograms, quantiles, means.

    \b
      isthmus describe people.csv --schema schema.toml --epsilon 0.5 --budget people.budget

    Only declared columns are looked at; the range of a number without one is bought. Every figure has noise, whose
    standard deviation is beside it, and the number of rows is one of them.
    """
    options = _options_of(**given) | {"data": data, "delta": delta}
    if given["budget"] and adjacency is None:
        adjacency = _late("runs.budget").open_shared(given["budget"]).adjacency.value
    settings, declared = _late("runs.config").load(None, options | {"adjacency": adjacency})
    summary = _late("runs.budget").describe(settings, declared, bins)
    screen.result(summary.to_dict(), f"{summary.table()}\n\n{summary.privacy}", summary.table())


@command(
    _option("--rows -n n", _COUNT, _RECORDS, required=True, metavar="N"),
    _option("--columns -d d", _COUNT, "The number of columns of numbers, once encoded.", required=True, metavar="D"),
    _option("--epsilon", float, "The budget; inf plans a run that is not private.", required=True),
    _DELTA,
    _option("--loss", str, "logistic, softmax, squared, huber, hinge ...", default="logistic", show_default=True),
    _option("--classes", int, "The number of classes.", default=2, show_default=True),
    _option("--constraint", str, "l1:50, l2:2, linf:1, box:-1,1 or simplex."),
    _option("--public", _FILE, "Public rows (npz, libsvm) to learn from."),
    _option("--sparse", bool, "The data is sparse (CSR)."),
    _option("--density", float, "The share of entries that are not 0."),
    _option("--adjacency", _ADJACENCIES, "", default="add-remove", show_default=True),
    _option("--max-passes", float, "The largest number of passes over the data."),
    _option("--max-dims", int, "The most numbers of a gradient that may be released in a round."),
    _option("--scale", str, "auto, none, columns, moments or shapes.", default="auto", show_default=True),
    _option("--penalty", bool, "An l1 or l2 penalty is part of the objective."),
)
def plan(screen: Out, constraint: str | None, public: str | None, **facts: object) -> None:
    """Rank the algorithms for a problem, from public facts alone.

    Reads no private data and spends nothing.

    \b
      isthmus plan --rows 30000 --columns 120 --epsilon 1
    """
    with _uncollected():
        public_rows = None
        if public is not None:
            table = _late("tables.files").read(public)
            _late("base.validate").check(table.x is not None, "public", public, "give a file of numbers, npz or libsvm")
            public_rows = table.x if table.y is None else (table.x, table.y)
        facts["constraint"] = _late("runs.config").read_constraint(constraint)
        planned = _late("planner").plan(public=public_rows, **facts)
    _warn_of_plan(screen, planned)
    screen.result(planned.to_dict(), f"{planned.words()}\n\n{planned.table()}", planned.table())


@command(
    click.argument("file", type=_FILE),
    _option("--epsilon", float, "To create it: the epsilon that all runs together must not exceed."),
    _option("--delta", float, "To create it: delta, such as 1e-6; well below one over the number of records."),
    _option("--adjacency", _ADJACENCIES, "To create it: who is protected."),
    _option("--dataset", str, "To create it: a public name for the data."),
)
def budget(screen: Out, file: str, epsilon: float | None, delta: float | None, **public: str | None) -> None:
    """Show or create the budget FILE that several runs on one data set share.

    \b
      isthmus budget census.budget --epsilon 3 --delta 1e-6
      isthmus train census.csv --target income --epsilon 1 --budget census.budget
      isthmus budget census.budget
    """
    remedy = "give both --epsilon and --delta to create a budget, and neither to show it"
    _late("base.validate").check((epsilon is None) == (delta is None), "budget", (epsilon, delta), remedy)
    if epsilon is None:
        ledger = _late("runs.budget").open_shared(file)
    else:
        ledger = _late("privacy").Ledger.open(file, budget=(epsilon, delta), **public)
    show, limit = _late("base.notebook"), ledger.budget
    spent, runs = ledger.spent(), _late("runs.budget").spenders(ledger)
    data = {"file": str(file), "dataset": ledger.dataset, "epsilon": limit[0], "delta": limit[1]}
    data |= {"adjacency": ledger.adjacency.value, "spent": spent, "left": ledger.remaining(), "seeded": ledger.seeded}
    data["runs"] = runs
    lines = [
        f"budget   epsilon {limit[0]:g} at delta {limit[1]:g}, {ledger.adjacency.describe()}",
        f"spent    {show.rounded_up(spent)}",
        f"left     {show.rounded_down(data['left'])}",
        *(f"  {run['label']:24} epsilon {show.rounded_up(run['epsilon'])} alone, {run['began'][:19]}" for run in runs),
    ]
    if ledger.seeded:
        lines.append("NOT PRIVATE: some of the noise came from a seed, and whoever knows it can subtract that noise")
    if not runs:
        lines.append("no run has used this budget yet")
    screen.result(data, "\n".join(lines))


@click.command()
@_option("--draws", int, "Draws of each side of a pair.", default=200_000, show_default=True)
@_option("--json as_json", bool, "Print the reports as JSON.")
def audit(draws: int, as_json: bool) -> None:
    """Attack every private algorithm on its worst neighbours.

    Prints claimed and empirical epsilon. Exits with 1 when a sound mechanism is caught violating its claim, or a broken
    one is not caught.
    """
    raise SystemExit(_late("audit.suite").main(draws=draws, as_json=as_json))


@command(
    click.argument("run", type=click.Path()),
    _option("--output -o", _FILE, "The HTML file; default: report.html in the run."),
)
def report(screen: Out, run: str, output: str | None) -> None:
    """Write the report of a RUN (a folder, or its run.json) as one HTML file."""
    folder, files = Path(run), _late("runs.folder")
    if not os.path.isdir(run):
        folder = folder.parent
    stopped = os.path.exists(folder / files.SETTINGS) and not os.path.exists(folder / files.RUN)
    lost = f"The run {run} was stopped before its record was written (its ledger says what it has spent): go on with"
    _late("base.validate").require(not stopped, f"{lost} isthmus train --resume {folder}, then report")
    path = _late("report").write(_late("report").Record.from_file(run), output or folder / "report.html")
    size = path.stat().st_size
    screen.result({"report": str(path), "bytes": size}, f"wrote the report to {path} ({size / 1000:.0f} kB)")


@click.command()
def demo() -> None:
    """Train privately on embedded data, compare, write a report."""
    _late("demo").main()


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL.

    \b
      isthmus completion bash >> ~/.bashrc
      isthmus completion zsh >> ~/.zshrc
      isthmus completion fish > ~/.config/fish/completions/isthmus.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    if shell == "bash":  # its check of the installed version needs a bash, and only warns
        kind = type("Bash", (kind,), {"_check_version": staticmethod(lambda: None)})
    click.echo(kind(root, {}, "isthmus", "_ISTHMUS_COMPLETE").source())


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look through a short command's imports again and again.

    What is there in the end is kept, so that the exit does not look through it either: a fifth of a plan's time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
