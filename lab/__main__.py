"""The laboratory's two commands, `python -m lab bench` and `python -m lab reproduce`, run in a checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from isthmus.cli import Commands
from isthmus.cli.commands import Out
from lab import reproduce as experiments_of_papers
from lab.bench import carry
from lab.bench import page as bench_page
from lab.reproduce import command
from lab.reproduce import page as reproduction_page

ROOT = Path(__file__).parents[1]


@click.group(cls=Commands)
def main() -> None:
    """How we know that the library works: figures beside peers, and the papers run again."""


@main.command()
@click.argument("names", nargs=-1)
@click.option("--list", "listed", is_flag=True, help="Print the names and exit.")
@click.option("--quick", is_flag=True, help="Run small sizes and two rounds, to see that everything runs.")
@click.option(
    "--json",
    "results",
    metavar="FILE",
    help="Keep the results there as they come; what is there is not measured again. - prints them, and nothing else.",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0), help="Begin nothing after so many minutes; another call goes on."
)
@click.option("--again", is_flag=True, help="Measure also what the FILE has from the same code and machine.")
@click.option("--pages", is_flag=True, help="Only write the tables of a checkout from lab/bench/results/*.json.")
@click.option("--quiet", "-q", is_flag=True, help="Print results and errors only.")
def bench(names: tuple[str, ...], listed: bool, pages: bool, results: str | None, quiet: bool, **how: Any) -> None:
    """Measure ours beside peers: all benchmarks, a family (step), or those NAMED.

    Ours and every peer take turns in the same run; a peer that is not installed is skipped and named. The table has
    medians, ratios and their quartiles, and goals that were met or missed. A FILE that is there is added to: rows of
    the same code on the same machine are not measured again, and others stay until they are.

    \b
      python -m lab bench --list
      python -m lab bench step lift-cosamp --json bench.json
      python -m lab bench device --json h200.json --minutes 9
    """
    if listed:
        click.echo(bench_page.listed())
    elif pages:
        for path in bench_page.write(ROOT):
            click.echo(f"written: {path}")
    else:
        screen = Out(results == "-", quiet)
        chosen = carry.chosen(names)
        done = carry.carry_out(chosen, keep=None if results == "-" else results, progress=not quiet, **how)
        screen.result(done.report, bench_page.table(done.report["rows"]))
        if done.left:
            click.echo(f"The time was up before all was measured of: {', '.join(done.left)}", err=True)
        for name, why in done.failed.items():
            click.echo(f"error: {name} failed: {why}", err=True)
        if done.failed:
            raise SystemExit(1)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Run every experiment.")
@click.option("--list", "listed", is_flag=True, help="Print names, figures and titles, and exit.")
@click.option("--scale", type=click.Choice(["small", "full"]), default="small", show_default=True)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="The number of runs of every cell."
)
@click.option("--seed", "first", type=int, default=1000, show_default=True, help="The first seed.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="The number of processes at once. Default: one for each core."
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("reproduced"), show_default=True)
@click.option("--expect", is_flag=True, help="Keep the results as what is expected from now on (in a checkout).")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Only write the page of verdicts there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", "-q", is_flag=True, help="Print results and errors only.")
def reproduce(
    names: tuple[str, ...],
    everything: bool,
    listed: bool,
    page: Path | None,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Run the papers' figures and tables again: all, a paper's (001), or those NAMED.

    Each is compared with the mean of five seeds or more plus or minus three standard deviations, and judged: does the
    paper's claim hold? Results (JSON and SVG) go to --out; runs that are done there are not done again. Data sets are
    read from the folder ISTHMUS_DATA.
    """
    if page is not None:
        page.write_text(reproduction_page.page(), encoding="utf-8")
        return
    screen, experiments = Out(as_json, quiet), experiments_of_papers.all_experiments()
    if listed:
        rows = [
            {"name": experiment.name, "item": experiment.item, "title": experiment.title}
            for experiment in experiments.values()
        ]
        screen.result(rows, "\n".join(f"{row['name']:28} {row['item']:18} {row['title']}" for row in rows))
        return
    if everything == bool(names):
        raise click.UsageError("Name the experiments to run, or give --all; `reproduce --list` shows them.")
    wanted = list(experiments.values()) if everything else experiments_of_papers.chosen(names)
    _refuse_without_data(wanted, everything)
    _run(screen, wanted, **how)


def _refuse_without_data(wanted: list[Any], everything: bool) -> None:
    """A named experiment needs its data; of all of them, those without data are left out unless none has any."""
    missing = {experiment.name: command.missing(experiment) for experiment in wanted}
    absent = {name: ", ".join(sets) for name, sets in missing.items() if sets}
    if absent and not (everything and len(absent) < len(wanted)):
        needs = "; ".join(f"{name} needs {sets}" for name, sets in absent.items())
        raise click.UsageError(
            f"Data sets are missing: {needs}. Set ISTHMUS_DATA to the folder that holds them as .npz files."
        )


def _run(screen: Out, experiments: list[Any], **how: Any) -> None:
    expect = how.pop("expect")
    first, seeds, workers = how.pop("first"), how.pop("seeds"), how.pop("workers") or os.cpu_count() or 1
    plan = command.Request(experiments, seeds=range(first, first + seeds), workers=workers, **how)
    finished = command.carry_out(plan, screen.say, progress=not screen.quiet)
    for outcome in finished if expect else ():
        command.expect(outcome, plan, Path("docs"))
    outside = [(outcome.experiment.name, figure) for outcome in finished for figure in outcome.outside]
    words = [f"{len(finished)} experiments; results are in {plan.out / plan.scale}."]
    words += [f"{outcome.experiment.name}: {outcome.judgement.kind}. {outcome.judgement.why}" for outcome in finished]
    words += [
        f"outside its band: {name}, {x.key}: {x.value:.4g}, not {x.low:.4g} to {x.high:.4g}" for name, x in outside
    ]
    screen.result([command.record(outcome, plan) for outcome in finished], "\n".join(words))
    if outside and not expect:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
