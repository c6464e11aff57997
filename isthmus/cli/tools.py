"""plan, budget, audit, report, demo, completion."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from isthmus.cli import parts
from isthmus.cli.output import Out, output_options, warn_of_plan

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
            table = parts.tables.read(public)
            parts.validate.check(table.x is not None, "public", public, "give a file of numbers, npz or libsvm")
            public_rows = table.x if table.y is None else (table.x, table.y)
        planned = parts.planner.plan(constraint=parts.config.read_constraint(constraint), public=public_rows, **facts)
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
        parts.validate.refuse(
            "budget", (epsilon, delta), "give both --epsilon and --delta to create a budget, and neither to show it"
        )
    if epsilon is None or delta is None:
        ledger = parts.budget.open_shared(file)
    else:
        ledger = parts.privacy.Ledger.open(file, budget=(epsilon, delta), adjacency=adjacency, dataset=dataset)
    limit = ledger.budget
    assert limit is not None
    spent, runs = ledger.spent(), parts.budget.spenders(ledger)
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
        f"spent    {parts.record.rounded_up(spent)}",
        f"left     {parts.record.rounded_down(data['left'])}",
        *(f"  {run.label:24} epsilon {parts.record.rounded_up(run.epsilon)} alone, {run.began[:19]}" for run in runs),
    ]
    lines += (
        ["NOT PRIVATE: some of the noise came from a seed, and whoever knows it can subtract that noise"]
        if data["seeded"]
        else []
    )
    lines += [] if runs else ["no run has used this budget yet"]
    Out(as_json, quiet).result(data, "\n".join(lines))


@click.command()
@click.option("--draws", default=200_000, show_default=True, help="Draws of each side of a pair.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
def audit(draws: int, as_json: bool) -> None:
    """Attack every private algorithm on its worst neighbours.

    Prints claimed and empirical epsilon. Exits with 1 when a sound mechanism is caught violating its claim, or a broken
    one is not caught.
    """
    raise SystemExit(parts.audit.main(draws=draws, as_json=as_json))


@click.command()
@click.argument("run", type=click.Path())
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="The HTML file; default: report.html in the run.")
@output_options
def report(run: str, output: str | None, as_json: bool, quiet: bool) -> None:
    """Write the report of a RUN (a folder, or its run.json) as one HTML file."""
    folder = Path(run) if os.path.isdir(run) else Path(run).parent
    stopped = os.path.exists(folder / parts.folder.SETTINGS) and not os.path.exists(folder / parts.folder.RUN)
    parts.validate.require(
        not stopped,
        f"The run {run} was stopped before its record was written (what it has spent is in its ledger): go on with "
        f"isthmus train --resume {folder}, then report",
    )
    path = parts.report.write(parts.report.Record.from_file(run), output or folder / "report.html")
    size = path.stat().st_size
    Out(as_json, quiet).result(
        {"report": str(path), "bytes": size}, f"wrote the report to {path} ({size / 1000:.0f} kB)"
    )


@click.command()
def demo() -> None:
    """Train privately on embedded data, compare, write a report."""
    parts.demo.main()


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


COMMANDS = (plan, budget, audit, report, demo, completion)
