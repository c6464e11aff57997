"""`make attack`: a long search, its table and its JSON; or one case again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from attack import cases, modules
from attack.cases import replay
from attack.search import LIMIT, Search, result


def main() -> int:
    """0 where no bound was broken."""
    parser = argparse.ArgumentParser(prog="attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=1 << 18, help="records of the longest sums")
    parser.add_argument("--json", type=Path, default=Path("attack.json"))
    parser.add_argument("--replay", default="", help="seed:most:number[:step...] of a case that was reported")
    parser.add_argument("--device", default="cpu", help="another device attacks modules only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device != "cpu":
        modules.DEVICE, cases.FAMILIES[:] = arguments.device, [0.0, 1.0, 0.0]
    if arguments.replay:
        seed, most, number, *path = (int(part) for part in arguments.replay.split(":"))
        case = replay(seed, number, most, tuple(path))
        moved = case.moved()
        print(case.label if moved is None else result(case, moved, seed, number, most, tuple(path)))
        return int(moved is not None and moved.ratio > LIMIT)
    search = Search(arguments.seed, arguments.most)
    try:
        search.run(seconds=60 * arguments.minutes)
    except KeyboardInterrupt:
        pass
    print(search.table)
    search.table.write(arguments.json)
    print(f"written to {arguments.json}")
    return int(bool(search.table.broken()))


if __name__ == "__main__":
    sys.exit(main())
