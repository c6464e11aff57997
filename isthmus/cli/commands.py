"""The commands: schema, train, predict; describe; plan, budget, audit, report, demo, completion."""

from __future__ import annotations

import csv
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from isthmus.cli.output import Out, late, output_options, warn_of_plan

_FILE = click.Path(dir_okay=False)

_DATA = click.Path()
"""A file, or a folder of Parquet files."""

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


def _range(text: str, option: str, column: str = "") -> list[Any]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2:
        given = f"{column}={text}" if column else text
        example = f"{column}=0,100" if column else "0,100"
        raise click.UsageError(f"{option} {given!r} is not allowed: write a range as low,high, such as {example}")
    return parts


def _words(text: str | None, option: str = "--classes") -> list[str] | None:
    """Words with commas between them; one that holds a comma is quoted, as in a csv."""
    if text is None:
        return None
    try:
        return [word.strip() for word in next(csv.reader([text], skipinitialspace=True, strict=True))]
    except csv.Error as error:
        raise click.UsageError(
            f"{option} {text!r} is not allowed: close the quotes around each word ({error})"
        ) from None


READING_OPTIONS = [
    click.option(
        "--separator",
        metavar="CHAR",
        help="The separator of a csv file; otherwise the most frequent one in its header.",
    ),
    click.option("--encoding", help="The encoding of a csv file.  [default: utf-8]"),
    click.option("--decimal", metavar="CHAR", help="The decimal sign of a csv file: . or ,  [default: .]"),
]

TABLE_OPTIONS = [
    click.option("--target", "-y", metavar="COLUMN", help="The column to predict (npz and libsvm have their own)."),
    click.option(
        "--task",
        type=click.Choice(["classification", "regression"]),
        help="The kind of target; otherwise guessed, with a warning.",
    ),
    click.option("--classes", metavar="A,B,..", help="All labels; otherwise read from the data, with a warning."),
    click.option(
        "--target-bounds", metavar="LOW,HIGH", help="The public range of the target; otherwise bought from the budget."
    ),
    click.option(
        "--categories", multiple=True, metavar="COL=A,B,..", help='The public words of a column; "A, B" holds a comma.'
    ),
    click.option(
        "--bounds",
        multiple=True,
        metavar="[COL=]LOW,HIGH",
        help="The public range of a column (numbers or dates), or of all.",
    ),
    click.option("--hash", "hashed", multiple=True, metavar="COL=BUCKETS", help="Hash a column's words."),
    click.option(
        "--date-format",
        multiple=True,
        metavar="COL=FORMAT",
        help="How a column writes dates, such as %d/%m/%Y; otherwise ISO.",
    ),
    click.option("--id", "ids", multiple=True, metavar="COL", help="Never a feature; predictions carry it along."),
    click.option("--drop", multiple=True, metavar="COL", help="Leave a column out."),
    *READING_OPTIONS,
]
"""What is public about a table."""

DATA_OPTIONS = [
    click.option("--schema", type=_FILE, help="A schema.toml: types, words and ranges of the columns, all public."),
    click.option("--public", type=_FILE, help="Public rows: types, words, ranges and scales are taken from them."),
    click.option("--features", type=int, metavar="D", help="Columns of a libsvm file."),
    click.option("--zero-based", is_flag=True, default=None, help="Indices of a libsvm file begin with 0."),
]

PRIVACY_OPTIONS = [
    click.option("--epsilon", "-e", type=float, help="The privacy budget; inf trains without privacy.  [default: 1]"),
    click.option("--delta", type=float, help="Default: min(1e-5, n^-1.1)."),
    click.option(
        "--adjacency", type=click.Choice(["add-remove", "replace-one"]), help="Who is protected.  [default: add-remove]"
    ),
    click.option(
        "-n",
        "--rows",
        "n",
        type=click.IntRange(min=1),
        help="A public estimate of the number of rows; otherwise the true number is public.",
    ),
    click.option("--budget", type=_FILE, help="A budget shared with other runs on this data (see isthmus budget)."),
    click.option("--test", type=_DATA, help="Test rows that are public: exact figures."),
    click.option(
        "--test-fraction", type=float, metavar="SHARE", help="The share of rows to keep out of training and measure on."
    ),
    click.option(
        "--test-epsilon", type=float, help="The part of epsilon that buys noisy figures of private test rows."
    ),
    click.option(
        "--release-test-metrics", is_flag=True, default=None, help="Publish figures of held-out rows without noise."
    ),
]

MODEL_OPTIONS = [
    click.option("--loss", help="logistic, softmax, hinge, smooth_hinge; squared, huber, poisson."),
    click.option("--algorithm", help="auto asks the planner.  [default: auto]"),
    click.option("--constraint", help="l1:50, l2:2, linf:1, box:-1,1 or simplex."),
    click.option("--l1", type=float, help="Strength of an l1 penalty."),
    click.option("--l2", type=float, help="Strength of an l2 penalty."),
    click.option("--clip", type=float, help="The bound on the length of a record's gradient."),
    click.option("--step", type=float, help="The size of a step."),
    click.option("--max-iter", type=int, help="The number of rounds."),
    click.option("--batch-size", type=int, help="The expected number of records in a round."),
    click.option("--scale", help="auto, none, columns, moments, shapes or public."),
    click.option(
        "--shape",
        type=click.Choice(["auto", "linear", "smooth"]),
        help="Fit straight lines, or a curve for each column.",
    ),
    click.option("--data-norm", type=float, help="A public bound on the length of a row."),
    click.option("--no-intercept", is_flag=True, help="Fit without an intercept."),
]


def _all(options: list[Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command()
@click.argument("data", required=False, type=_DATA)
@_all(PRIVACY_OPTIONS)
@_all(TABLE_OPTIONS)
@_all(DATA_OPTIONS)
@_all(MODEL_OPTIONS)
@click.option("--config", type=_FILE, help="A TOML file with these options and the tables [target], [columns].")
@click.option("--out", "-o", type=click.Path(file_okay=False), help="The run's folder.  [default: runs/<name>-<k>]")
@click.option("--title", help="The title of the report.")
@click.option("--purpose", help="What the model is for: a sentence of the report.")
@click.option("--owner", help="Who answers for it: a person or a team, in the report.")
@click.option("--resume", type=click.Path(), metavar="RUN", help="Continue a run that was stopped.")
@click.option("--dry-run", is_flag=True, help="Print schema and plan; spend nothing, write nothing.")
@click.option("--write-schema", type=_FILE, metavar="FILE", help="With --dry-run: write the schema to review there.")
@output_options
def train(
    as_json: bool, quiet: bool, resume: str | None, dry_run: bool, write_schema: str | None, **given: Any
) -> None:
    """Train a private model on DATA: csv, tsv, parquet (also a folder of it), npz or libsvm.

    \b
      isthmus train people.csv --target income --epsilon 1
      isthmus train people.csv --target income --classes low,high --bounds age=17,90 --test-fraction 0.2
      isthmus train --resume runs/people-1
      torchrun --nproc-per-node 4 -m isthmus train people.csv --schema schema.toml

    Writes the model, the plan, the ledger, the figures and the record of the run into a folder. Whatever is not
    declared is bought from the budget, or guessed from the data with a warning that names the option to declare it.
    """
    out = Out(as_json, quiet)
    if write_schema is not None and not dry_run:
        raise click.UsageError(
            "Give --write-schema together with --dry-run: a run keeps its schema.toml in its folder."
        )
    if resume is not None:
        set_options = [name for name, value in given.items() if value not in (None, (), False)]
        if set_options or dry_run:
            raise click.UsageError(
                f"--resume continues with the settings of the run: leave out {', '.join(set_options) or '--dry-run'}"
            )
        _carried(out, "resume", resume)
        return
    config = given.pop("config")
    options = options_of(**given)
    if options.get("data") is None and config is None:
        raise click.UsageError("Give a file to train on, --config or --resume.")
    settings, declared = late("runs.config").load(config, options)
    if dry_run:
        if rank():
            return
        problem, plan = late("runs.train").dry_run(settings, declared)
        _show_plan(out, settings.n, problem, plan, write_schema)
        return
    _carried(out, "start", settings, declared)


def rank() -> int:
    """The number that torchrun gave this process."""
    return int(os.environ.get("RANK", "0")) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0


def _carried(out: Out, begin: str, *what: object) -> None:
    """A run by this process, or by the ranks that torchrun started: rank 0 says what came out."""
    train = late("runs.train")
    with train.together() as crew:
        carry = train.resume if begin == "resume" else train.start
        outcome = carry(*what, say=out.say, warn=out.warn, progress=not out.quiet and sys.stderr.isatty(), crew=crew)
    if outcome is not None:
        _finish(out, outcome)


def options_of(
    categories: tuple[str, ...],
    bounds: tuple[str, ...],
    hashed: tuple[str, ...],
    date_format: tuple[str, ...],
    ids: tuple[str, ...],
    drop: tuple[str, ...],
    classes: str | None,
    target_bounds: str | None,
    no_intercept: bool = False,
    **rest: Any,
) -> dict[str, Any]:
    """The options as settings and columns."""
    every = [word for word in bounds if "=" not in word]
    if len(every) > 1:
        raise click.UsageError("Give --bounds LOW,HIGH for all columns once, and --bounds COL=LOW,HIGH for one column.")
    columns: dict[str, Any] = {
        name: _words(words, "--categories") for name, words in _pairs(categories, "--categories").items()
    }
    named = _pairs(tuple(word for word in bounds if "=" in word), "--bounds")
    for name, text in named.items():
        ends = _range(text, "--bounds", name)
        kind = "date" if all(_DATE.fullmatch(end) for end in ends) else "number"
        columns[name] = {"type": kind, "bounds": ends}
    for name, count in _pairs(hashed, "--hash").items():
        columns[name] = {"type": "hash", "buckets": int(count) if count.isdecimal() else count}
    for name, form in _pairs(date_format, "--date-format").items():
        columns[name] = {**(columns[name] if name in named else {}), "type": "date", "format": form}
    columns |= dict.fromkeys(ids, "id") | dict.fromkeys(drop, "drop")
    return {
        **rest,
        "columns": columns,
        "classes": _words(classes),
        "bounds": _range(every[0], "--bounds") if every else None,
        "target_bounds": None if target_bounds is None else _range(target_bounds, "--target-bounds"),
        "intercept": False if no_intercept else None,
    }


def _finish(out: Out, outcome: Any) -> None:
    """Say what came out of a run."""
    record = outcome.record
    model, rounded_up = record.model, late("report.record").rounded_up
    lines = [
        f"run        {outcome.folder}",
        f"model      {model['algorithm']}, {model['rounds']} rounds, {model['seconds'] or 0:.1f} s",
    ]
    if record.private:
        covered = "everything counted"
        if outcome.leaks:
            covered = "of what was released with noise"
        elif outcome.warnings:
            covered = "with the warnings above"
        if outcome.bought:
            covered += " (training and test figures)"
        lines.append(f"privacy    epsilon {rounded_up(outcome.epsilon)} at delta {outcome.delta:g}, {covered}")
        lines += [f"NOT COVERED  {leak}" for leak in outcome.leaks]
    else:
        lines.append("privacy    none: this model is NOT private")
    shared = record.budget["shared"]
    if shared is not None:
        lines.append(f"budget     {rounded_up(shared['spent'])} of {shared['epsilon']:g} spent ({shared['file']})")
    little = late("report").expectation(record)
    if little:
        lines.append(f"expect     {little}")
    told: set[str] = set()  # where figures were measured, and notes that several share, are said once
    for figure in outcome.figures:
        if figure.on not in told:
            lines.append(f"test       {figure.on}")
        note = figure.note
        if figure.value is not None and note in told:
            note = ""
        lines.append(f"           {replace(figure, on='', note=note).words()}")
        told |= {figure.on, figure.note}
    if not outcome.figures:
        lines.append("test       nothing was measured; --test-fraction 0.2 keeps rows back for that")
    if not out.quiet:
        lines += ["", f"isthmus predict {outcome.folder} DATA -o predictions.csv", f"isthmus report {outcome.folder}"]
    out.result(outcome.to_dict(), str(outcome.folder) if out.quiet else "\n".join(lines))


def _show_plan(out: Out, estimate: int | None, problem: Any, plan: Any, write_schema: str | None) -> None:
    """Say what a run would do; write its schema where that was asked for."""
    n = problem.n if estimate is None else estimate
    for leak in problem.leaks:
        out.warn(leak)
    warn_of_plan(out, plan)
    lines = [f"note: {note}" for note in problem.notes]
    target = problem.target
    lines += ["", f"{n} rows, {problem.d} columns of numbers, {target.task} of {target.name!r}"]
    if target.classes:
        lines.append(f"classes: {', '.join(target.classes)}")
    lines += [f"  {column.name:24} {column.words()}" for column in problem.schema.columns]
    written = "nothing was written"
    if write_schema is not None:
        text = late("runs.train").HEADER + problem.schema.to_toml(versioned=True)
        with late("base.atomic").atomic_write(write_schema) as partial:
            partial.write_text(text, encoding="utf-8")
        written = f"the schema is in {write_schema}: review it, and give it as --schema"
    lines += ["", plan.words(), "", plan.table(), "", f"nothing was spent, {written}"]
    data = {
        "n": n,
        "d": problem.d,
        "task": target.task,
        "classes": target.classes,
        "schema": problem.schema.to_toml(),
        "leaks": problem.leaks,
        "notes": problem.notes,
        "plan": plan.to_dict(),
    }
    out.result(data, "\n".join(lines))


@click.command()
@click.argument("run", type=click.Path())
@click.argument("data", type=_DATA)
@click.option("--output", "-o", required=True, type=_FILE, help="A file ending in .csv, .tsv, .npz or .parquet.")
@click.option("--proba", is_flag=True, help="Also the probability of each class.")
@click.option("--id", "ids", multiple=True, metavar="COL", help="Carry a column of DATA along, to tell the rows apart.")
@_all(READING_OPTIONS)
@output_options
def predict(
    run: str, data: str, output: str, proba: bool, ids: tuple[str, ...], as_json: bool, quiet: bool, **given: str | None
) -> None:
    """Predict for the rows of DATA with the model of a RUN.

    Rows are encoded by the run's schema; its columns of type "id" are carried along. How the file is written is as it
    was in training unless options say otherwise. A prediction tells something about the row it is made for: only the
    rows the model was trained on are protected by its epsilon.
    """
    folder = late("runs.folder").RunFolder.open(run)
    model = late("runs.folder").load_model(folder)
    options = {name: value for name, value in given.items() if value is not None}
    settings = late("runs.config").Settings.from_dict({**folder.settings["settings"], **options})
    table = late("tables.files").read(data, part="test", reading=settings.reading)
    rows_of = model.encode(table, settings.decimal if "decimal" in options else None)
    carried, columns = model.ids(table, ids), model.predict(rows_of, proba)
    twice = sorted(set(carried) & set(columns))
    late("base.validate").check(
        not twice, "id", twice, "rename the column first: a column of the predictions has that name"
    )
    columns = carried | columns
    late("tables.files").write(output, columns)
    rows = len(columns["prediction"])
    Out(as_json, quiet).result(
        {"output": str(Path(output)), "rows": rows, "columns": list(columns)}, f"wrote {rows} predictions to {output}"
    )


@click.command()
@click.argument("data", type=_DATA)
@_all(TABLE_OPTIONS)
@click.option("--sample", type=_FILE, help="Public rows of the same columns: types, words, ranges are taken from them.")
@output_options
def schema(data: str, sample: str | None, as_json: bool, quiet: bool, **given: Any) -> None:
    """Begin a schema.toml for DATA from its header and the options; reads no row of it and spends nothing.

    \b
      isthmus schema people.csv --target income > schema.toml
      isthmus schema people.csv --target income --sample public.csv > schema.toml
      isthmus train people.csv --schema schema.toml

    What neither the options nor the sample tell stands there as "?", to be filled in from what is publicly known.
    """
    settings, declared = late("runs.config").load(None, {"data": data, **options_of(**given)})
    target = late("runs.config").target_of(settings)
    whole = {"reading": settings.reading, "decimal": settings.decimal, "bounds": settings.bounds}
    draft = late("tables.infer").draft(data, declared, target, sample=sample, **whole)
    Out(as_json, quiet).result({"schema": draft.text, "open": list(draft.open)}, draft.text.rstrip())
    if draft.open and not quiet:
        click.echo(f'fill in what is marked "?": {", ".join(draft.open)}', err=True)


@click.command()
@click.argument("data", type=_FILE)
@click.option("--epsilon", "-e", type=float, required=True, help="The privacy budget of the summary.")
@click.option("--delta", type=float, help="Default: that of the --budget, else 1e-6.")
@click.option("--adjacency", type=click.Choice(["add-remove", "replace-one"]), help="Who is protected.")
@click.option("--budget", type=_FILE, help="A budget shared with other runs on this data (see isthmus budget).")
@click.option("--bins", type=int, default=20, show_default=True, help="Parts of a range in a histogram.")
@_all(TABLE_OPTIONS)
@click.option("--schema", type=_FILE, help="A schema.toml: types, words and ranges of the columns, all public.")
@output_options
def describe(
    data: str, as_json: bool, quiet: bool, bins: int, delta: float | None, adjacency: str | None, **given: Any
) -> None:
    """Summarise the columns of DATA privately: counts, histograms, quantiles, means.

    \b
      isthmus describe people.csv --schema schema.toml --epsilon 0.5 --budget people.budget

    Only declared columns are looked at; the range of a number without one is bought. Every figure has noise, whose
    standard deviation is beside it, and the number of rows is one of them.
    """
    out = Out(as_json, quiet)
    options = options_of(**given)
    if given["budget"] and adjacency is None:
        adjacency = late("runs.budget").open_shared(given["budget"]).adjacency.value
    settings, declared = late("runs.config").load(
        None, {**options, "data": data, "adjacency": adjacency, "delta": delta}
    )
    summary = late("runs.budget").describe(settings, declared, bins)
    out.result(summary.to_dict(), summary.table() if quiet else f"{summary.table()}\n\n{summary.privacy}")


COUNT = click.IntRange(min=1)


@click.command()
@click.option(
    "--rows",
    "-n",
    "n",
    type=COUNT,
    required=True,
    metavar="N",
    help="The number of records, as a public number or estimate.",
)
@click.option(
    "--columns",
    "-d",
    "d",
    type=COUNT,
    required=True,
    metavar="D",
    help="The number of columns of numbers, once encoded.",
)
@click.option("--epsilon", type=float, required=True, help="The budget; inf plans a run that is not private.")
@click.option("--delta", type=float, help="Default: min(1e-5, n^-1.1).")
@click.option("--loss", default="logistic", show_default=True, help="logistic, softmax, squared, huber, hinge ...")
@click.option("--classes", type=int, default=2, show_default=True, help="The number of classes.")
@click.option("--constraint", help="l1:50, l2:2, linf:1, box:-1,1 or simplex.")
@click.option("--public", type=click.Path(dir_okay=False), help="Public rows (npz, libsvm) to learn from.")
@click.option("--sparse", is_flag=True, help="The data is sparse (CSR).")
@click.option("--density", type=float, help="The share of entries that are not 0.")
@click.option("--adjacency", type=click.Choice(["add-remove", "replace-one"]), default="add-remove", show_default=True)
@click.option("--max-passes", type=float, help="The largest number of passes over the data.")
@click.option("--max-dims", type=int, help="The most numbers of a gradient that may be released in a round.")
@click.option("--scale", default="auto", show_default=True, help="auto, none, columns, moments or shapes.")
@click.option("--penalty", is_flag=True, help="An l1 or l2 penalty is part of the objective.")
@output_options
def plan(as_json: bool, quiet: bool, constraint: str | None, public: str | None, **facts: Any) -> None:
    """Rank the algorithms for a problem, from public facts alone.

    Reads no private data and spends nothing.

    \b
      isthmus plan --rows 30000 --columns 120 --epsilon 1
    """
    out = Out(as_json, quiet)
    with uncollected():
        public_rows = None
        if public is not None:
            table = late("tables.files").read(public)
            late("base.validate").check(table.x is not None, "public", public, "give a file of numbers, npz or libsvm")
            public_rows = table.x if table.y is None else (table.x, table.y)
        planned = late("planner").plan(
            constraint=late("runs.config").read_constraint(constraint), public=public_rows, **facts
        )
    warn_of_plan(out, planned)
    out.result(planned.to_dict(), planned.table() if quiet else f"{planned.words()}\n\n{planned.table()}")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--epsilon", type=float, help="To create it: the epsilon that all runs together must not exceed.")
@click.option(
    "--delta", type=float, help="To create it: delta, such as 1e-6; well below one over the number of records."
)
@click.option("--adjacency", type=click.Choice(["add-remove", "replace-one"]), help="To create it: who is protected.")
@click.option("--dataset", help="To create it: a public name for the data.")
@output_options
def budget(
    file: str,
    epsilon: float | None,
    delta: float | None,
    adjacency: str | None,
    dataset: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show or create the budget FILE that several runs on one data set share.

    \b
      isthmus budget census.budget --epsilon 3 --delta 1e-6
      isthmus train census.csv --target income --epsilon 1 --budget census.budget
      isthmus budget census.budget
    """
    if (epsilon is None) != (delta is None):
        late("base.validate").refuse(
            "budget", (epsilon, delta), "give both --epsilon and --delta to create a budget, and neither to show it"
        )
    if epsilon is None or delta is None:
        ledger = late("runs.budget").open_shared(file)
    else:
        ledger = late("privacy").Ledger.open(file, budget=(epsilon, delta), adjacency=adjacency, dataset=dataset)
    record, limit = late("report.record"), ledger.budget
    assert limit is not None
    spent, runs = ledger.spent(), late("runs.budget").spenders(ledger)
    data = {
        "file": str(file),
        "dataset": ledger.dataset,
        "epsilon": limit[0],
        "delta": limit[1],
        "adjacency": ledger.adjacency.value,
        "spent": spent,
        "left": ledger.remaining(),
        "seeded": ledger.seeded,
        "runs": [vars(run) for run in runs],
    }
    lines = [
        f"budget   epsilon {limit[0]:g} at delta {limit[1]:g}, {ledger.adjacency.describe()}",
        f"spent    {record.rounded_up(spent)}",
        f"left     {record.rounded_down(data['left'])}",
        *(f"  {run.label:24} epsilon {record.rounded_up(run.epsilon)} alone, {run.began[:19]}" for run in runs),
    ]
    if ledger.seeded:
        lines.append("NOT PRIVATE: some of the noise came from a seed, and whoever knows it can subtract that noise")
    if not runs:
        lines.append("no run has used this budget yet")
    Out(as_json, quiet).result(data, "\n".join(lines))


@click.command()
@click.option("--draws", default=200_000, show_default=True, help="Draws of each side of a pair.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
def audit(draws: int, as_json: bool) -> None:
    """Attack every private algorithm on its worst neighbours.

    Prints claimed and empirical epsilon. Exits with 1 when a sound mechanism is caught violating its claim, or a broken
    one is not caught.
    """
    raise SystemExit(late("audit.suite").main(draws=draws, as_json=as_json))


@click.command()
@click.argument("run", type=click.Path())
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="The HTML file; default: report.html in the run.")
@output_options
def report(run: str, output: str | None, as_json: bool, quiet: bool) -> None:
    """Write the report of a RUN (a folder, or its run.json) as one HTML file."""
    folder = Path(run) if os.path.isdir(run) else Path(run).parent
    files = late("runs.folder")
    stopped = os.path.exists(folder / files.SETTINGS) and not os.path.exists(folder / files.RUN)
    late("base.validate").require(
        not stopped,
        f"The run {run} was stopped before its record was written (what it has spent is in its ledger): go on with "
        f"isthmus train --resume {folder}, then report",
    )
    path = late("report").write(late("report").Record.from_file(run), output or folder / "report.html")
    size = path.stat().st_size
    Out(as_json, quiet).result(
        {"report": str(path), "bytes": size}, f"wrote the report to {path} ({size / 1000:.0f} kB)"
    )


@click.command()
def demo() -> None:
    """Train privately on embedded data, compare, write a report."""
    late("demo").main()


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
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look through a short command's imports again and again.

    What is there in the end is kept, so that the exit does not look through it either: a fifth of a plan's time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if before:
            gc.enable()
