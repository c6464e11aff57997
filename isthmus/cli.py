"""The command line: `isthmus demo`, `isthmus audit`."""

from __future__ import annotations

from importlib.metadata import version

import click


@click.group()
@click.version_option(version("isthmus"), prog_name="isthmus")
def main() -> None:
    """Training with low-dimensional gradients: private, distributed, constrained."""


@main.command()
def demo() -> None:
    """Compare SGD with its compressed forms on embedded data."""
    from isthmus.demo import main as run

    run()


@main.command()
@click.option("--draws", default=200_000, show_default=True, help="Draws of each side of a pair.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
def audit(draws: int, as_json: bool) -> None:
    """Attack every private algorithm on its worst neighbours and print claimed and empirical epsilon.

    Exits with 1 when a sound mechanism is caught violating its claim, or a broken one is not caught.
    """
    from isthmus.auditing import main as run

    raise SystemExit(run(draws=draws, as_json=as_json))


if __name__ == "__main__":
    main()
