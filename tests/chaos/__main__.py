"""`make chaos`: every scenario, and a table of what went wrong."""

from __future__ import annotations

import argparse
import random
import sys
from typing import Any

import torch

from chaos.interrupts import interrupted
from chaos.scenarios import Result, scenarios


def main() -> int:
    """0 where nothing was lost, corrupt or unclear."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=4, help="of each training in each scenario")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--scenario", action="append", help="only this one; may be given several times")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    moments = random.Random(arguments.seed)
    known: dict[str, Any] = scenarios(arguments.runs, moments) | {
        "interrupts": lambda: interrupted(100 * arguments.runs, moments)
    }
    results: list[Result] = []
    for name in arguments.scenario or known:
        outcome = known[name]()
        if outcome is None:
            print(f"{name}: left out, it cannot be made here", flush=True)
            continue
        results.append(outcome)
        print(line(outcome), flush=True)
    print("\n" + table(results))
    return int(any(result.failed for result in results))


def line(result: Result) -> str:
    """The figures of one scenario."""
    counts = f"{result.runs:5d} {len(result.lost):5d} {len(result.corrupt):8d} {len(result.unclear):8d}"
    return f"{result.name:34} {counts}  {result.said[:90]}"


def table(results: list[Result]) -> str:
    """All of them, and what went wrong in words."""
    lines = [f"{'scenario':34} {'runs':>5} {'lost':>5} {'corrupt':>8} {'unclear':>8}  message"]
    lines += [line(result) for result in results]
    for result in results:
        for kind in ("lost", "corrupt", "unclear"):
            lines += [f"FAILED {result.name}, {kind}: {words}" for words in getattr(result, kind)[:8]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
