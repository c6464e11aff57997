"""`make replay`: trials of all doors for a while, their table; or one trial again."""

from __future__ import annotations

import argparse
import secrets
import sys

import torch

from replay.doors import DOORS
from replay.search import attempt, search


def main() -> int:
    """0 where everything held."""
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None, help="what is drawn; unless given, another every time")
    parser.add_argument("--only", default="", help="doors whose name begins so")
    parser.add_argument("--replay", default="", help="seed:number:door of a trial that was reported")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.replay:
        seed, number, door = arguments.replay.split(":", 2)
        label, found = attempt(door, int(seed), int(number))
        print(label)
        print("nothing to compare: secret draws by the place in a batch" if found is None else found)
        return int(found is not None and not found.holds)
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    table = search(seed, 60 * arguments.minutes, doors=[door for door in DOORS if door.startswith(arguments.only)])
    print(table)
    return int(bool(table.failures))


if __name__ == "__main__":
    sys.exit(main())
