"""schema, train, predict."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from isthmus.cli import parts
from isthmus.cli.output import Out, output_options, warn_of_plan

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
@click.pass_context
def train(
    ctx: click.Context,
    as_json: bool,
    quiet: bool,
    resume: str | None,
    dry_run: bool,
    write_schema: str | None,
    **given: Any,
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
        _together(out, lambda crew, **how: parts.train.resume(resume, crew=crew, **how))
        return
    config = given.pop("config")
    options = options_of(**given)
    if options.get("data") is None and config is None:
        raise click.UsageError("Give a file to train on, --config or --resume.")
    settings, declared = parts.config.load(config, options)
    if dry_run:
        if rank():
            return
        problem, plan = parts.train.dry_run(settings, declared)
        show_plan(out, settings.n, problem, plan, write_schema)
        return
    _together(out, lambda crew, **how: parts.train.start(settings, declared, crew=crew, **how))


def rank() -> int:
    """The number that torchrun gave this process."""
    return int(os.environ.get("RANK", "0")) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0


def _together(out: Out, carry: Callable[..., Any]) -> None:
    """A run by this process, or by the ranks that torchrun started: rank 0 says what came out."""
    leads = rank() == 0
    mute: Callable[[str], None] = lambda words: None  # noqa: E731
    with parts.train.together() as crew:
        how = {"say": out.say, "warn": out.warn} if leads else {"say": mute, "warn": mute}
        outcome = carry(crew, **how, progress=_bar(out) and leads)
    if outcome is not None:
        finish(out, outcome)


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


def _bar(out: Out) -> bool:
    return not out.quiet and sys.stderr.isatty()


def finish(out: Out, outcome: Any) -> None:
    """Say what came out of a run."""
    record = outcome.record
    lines = [f"run        {outcome.folder}"]
    lines.append(
        f"model      {record.model['algorithm']}, {record.model['rounds']} rounds, {record.model['seconds'] or 0:.1f} s"
    )
    if record.private:
        split = " (training and test figures)" if outcome.charged_test else ""
        covered = "everything counted" if not outcome.warnings else "with the warnings above"
        covered = "of what was released with noise" if outcome.leaks else covered
        epsilon = parts.record.rounded_up(outcome.epsilon)
        lines.append(f"privacy    epsilon {epsilon} at delta {outcome.delta:g}, {covered}{split}")
        lines += [f"NOT COVERED  {leak}" for leak in outcome.leaks]
    else:
        lines.append("privacy    none: this model is NOT private")
    shared = record.budget["shared"]
    if shared is not None:
        spent = parts.record.rounded_up(shared["spent"])
        lines.append(f"budget     {spent} of {shared['epsilon']:g} spent ({shared['file']})")
    little = parts.report.expectation(record)
    lines += [f"expect     {little}"] if little else []
    lines += figure_lines(outcome.figures)
    if not outcome.figures:
        lines.append("test       nothing was measured; --test-fraction 0.2 keeps rows back for that")
    if not out.quiet:
        lines += ["", f"isthmus predict {outcome.folder} DATA -o predictions.csv", f"isthmus report {outcome.folder}"]
    out.result(outcome.to_dict(), str(outcome.folder) if out.quiet else "\n".join(lines))


def figure_lines(figures: Any) -> list[str]:
    """What was measured, and where once, and one line a figure; notes that several share are said once."""
    lines, printed = [], set()
    for figure in figures:
        lines += [f"test       {figure.on}"] if figure.on not in printed else []
        note_seen = figure.value is not None and figure.note in printed
        lines.append(f"           {replace(figure, on='', note='' if note_seen else figure.note).words()}")
        printed |= {figure.on, figure.note}
    return lines


def show_plan(out: Out, estimate: int | None, problem: Any, plan: Any, write_schema: str | None = None) -> None:
    """Say what a run would do; write its schema where that was asked for."""
    n = problem.n if estimate is None else estimate
    for leak in problem.leaks:
        out.warn(leak)
    warn_of_plan(out, plan)
    lines = [f"note: {note}" for note in problem.notes]
    lines += ["", f"{n} rows, {problem.d} columns of numbers, {problem.target.task} of {problem.target.name!r}"]
    if problem.target.classes:
        lines.append(f"classes: {', '.join(problem.target.classes)}")
    lines += [f"  {column.name:24} {column.words()}" for column in problem.schema.columns]
    written = "nothing was written"
    if write_schema is not None:
        text = parts.train.HEADER + problem.schema.to_toml(versioned=True)
        with parts.atomic.atomic_write(write_schema) as partial:
            partial.write_text(text, encoding="utf-8")
        written = f"the schema is in {write_schema}: review it, and give it as --schema"
    lines += ["", plan.words(), "", plan.table(), "", f"nothing was spent, {written}"]
    data = {
        "n": n,
        "d": problem.d,
        "task": problem.target.task,
        "classes": problem.target.classes,
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
    folder = parts.folder.RunFolder.open(run)
    model = parts.model.load(folder)
    options = {name: value for name, value in given.items() if value is not None}
    settings = parts.config.Settings.from_dict({**folder.settings["settings"], **options})
    table = parts.tables.read(data, part="test", reading=settings.reading)
    rows_of = model.encode(table, settings.decimal if "decimal" in options else None)
    carried, columns = model.ids(table, ids), model.predict(rows_of, proba)
    twice = sorted(set(carried) & set(columns))
    parts.validate.check(not twice, "id", twice, "rename the column first: a column of the predictions has that name")
    columns = carried | columns
    parts.tables.write(output, columns)
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
    settings, declared = parts.config.load(None, {"data": data, **options_of(**given)})
    target = parts.config.target_of(settings)
    whole = {"reading": settings.reading, "decimal": settings.decimal, "bounds": settings.bounds}
    draft = parts.template.draft(data, declared, target, sample=sample, **whole)
    Out(as_json, quiet).result({"schema": draft.text, "open": list(draft.open)}, draft.text.rstrip())
    if draft.open and not quiet:
        click.echo(f'fill in what is marked "?": {", ".join(draft.open)}', err=True)


COMMANDS = (schema, train, predict)
