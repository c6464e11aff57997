"""`auto` on tables kept apart, beside what others offer.

22 tables of a package (`apart_data`), epsilon .1, .5, 1 and 3, delta = 1e-5, three seeds: each seed takes a random
fifth of the rows for the test and 100 labelled rows as public; they are used only where a row says so.  The estimators
are told the ranges of the columns and of the target, or the classes, and nothing else; so are the peers (`peers`).

    python lab/studies/apart.py --out OUT --label today --methods isthmus --root CHECKOUT
    python lab/studies/apart.py --out OUT --label peers --methods peers --diffprivlib PEERS/bin/python
    python lab/studies/apart.py --out OUT --label new --baseline today --summary

Cells go to OUT as lines of JSON as they are done and are not run again; `--shard 0/2` and `1/2` are two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apart_data
import peers
import torch
from apart_summary import summary
from peers import DELTA, DIFFPRIVLIB, FREE, PRIVATE, Parts

import isthmus
from isthmus import PrivateClassifier, PrivateRegressor

EPSILONS, SEEDS = (0.1, 0.5, 1.0, 3.0), 3
AUTO, LABELLED = "auto", "auto, 100 public labelled rows"


def arguments() -> argparse.Namespace:
    """The options; `--root` starts again with another checkout of isthmus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the result files")
    parser.add_argument("--label", default="cells", help="name of the result files")
    parser.add_argument("--root", type=Path, default=None, help="checkout of isthmus to measure")
    parser.add_argument("--methods", default="isthmus", help="isthmus, peers, or names with ; between them")
    parser.add_argument("--tables", default="", help="names with commas between them; all if empty")
    parser.add_argument("--shard", default="0/1", help="i/k: every k-th table and seed")
    parser.add_argument("--diffprivlib", default=None, help="a Python that has diffprivlib")
    parser.add_argument("--summary", action="store_true", help="print the tables of what has been measured")
    parser.add_argument("--baseline", default="today", help="label of the results that gains are over")
    args = parser.parse_args()
    if args.root and Path(isthmus.__file__).parents[1] != args.root.resolve():
        if os.environ.get("PYTHONPATH") == str(args.root.resolve()):
            parser.error(f"--root {args.root}: there is no isthmus; give a checkout's root")
        os.environ["PYTHONPATH"] = str(args.root.resolve())
        os.execv(sys.executable, [sys.executable, *sys.argv])
    return args


def auto(parts: Parts, epsilon: float, labelled: bool) -> dict[str, Any]:
    """The estimator with what is public declared, and nothing else."""
    table = parts.table
    options: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "bounds": (table.low, table.high)}
    if labelled:
        options["public"] = parts.rows("public")
    if table.classes:
        model = PrivateClassifier(classes=list(range(table.classes)), **options)
    else:
        model = PrivateRegressor(target_bounds=table.target, **options)
    model.fit(*parts.rows("private"))
    spent = model.privacy_.epsilon
    assert spent <= epsilon * (1 + 1e-9), (table.name, epsilon, spent)
    return {"score": parts.score(model.predict(parts.rows("test")[0])), "pick": model.choice_.name, "spent": spent}


def methods(parts: Parts, chosen: str, python: str | None) -> Iterator[tuple[str, float | None, Any]]:
    """Method, epsilon and what to call; diffprivlib fills several cells with one call."""
    table, named = parts.table, chosen.split(";")

    def wanted(name: str, group: str) -> bool:
        return group in named or name in named

    for epsilon in EPSILONS:
        for name, labelled in ((AUTO, False), (LABELLED, True)):
            if wanted(name, "isthmus"):
                yield name, epsilon, partial(auto, parts, epsilon, labelled)
        for name, call in PRIVATE.items():
            if wanted(name, "peers") and not (name.startswith("DP-EBM") and table.classes > 2):
                yield name, epsilon, partial(_scored, call, parts, epsilon)
    for name, free in FREE.items():
        if wanted(name, "peers"):
            yield name, None, partial(_scored, free, parts)
    names = [name for name in DIFFPRIVLIB[table.task] if wanted(name, "peers")]
    if names and python:
        yield ";".join(names), None, partial(peers.diffprivlib, parts, list(EPSILONS), names, python)


def _scored(call: Any, *given: Any) -> dict[str, Any]:
    return {"score": call(*given)}


def measured(out: Path, label: str) -> dict[tuple[str, str, float | None, int], dict[str, Any]]:
    """The cells on file: (table, method, epsilon, seed) -> what was found."""
    by_name = {}
    for file in sorted(out.glob(f"{label}-*.jsonl")):
        for line in file.read_text().splitlines():
            cell = json.loads(line)
            by_name[cell["table"], cell["method"], cell["epsilon"], cell["seed"]] = cell
    return by_name


def cells(
    name: str, epsilon: float | None, answer: dict[str, Any]
) -> Iterator[tuple[str, float | None, dict[str, Any]]]:
    """What one call brought, cell by cell."""
    if "score" in answer:
        yield name, epsilon, answer
        return
    for key, cell in answer.items():
        method, _, at = key.partition(" | ")
        yield method, float(at), cell


def run(args: argparse.Namespace) -> None:
    """Fill the cells that are not on file."""
    args.out.mkdir(parents=True, exist_ok=True)
    mine, of = map(int, args.shard.split("/"))
    done = measured(args.out, args.label)
    root = Path(isthmus.__file__).parents[1]
    commit = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True)
    names = args.tables.split(",") if args.tables else list(apart_data.tables())
    jobs = [(name, seed) for name in names for seed in range(SEEDS)]
    with open(args.out / f"{args.label}-{mine}-{of}.jsonl", "a") as file:
        for name, seed in jobs[mine::of]:
            parted = peers.parts(apart_data.tables()[name](), seed)
            for method, epsilon, call in methods(parted, args.methods, args.diffprivlib):
                first = method.split(";")[0]
                if (name, first, epsilon or (EPSILONS[0] if first.startswith("diffprivlib") else None), seed) in done:
                    continue
                began = time.process_time()
                try:
                    answer = call()
                except Exception as error:  # a method that fails is a result; the summary lists it
                    answer = {"score": None, "error": f"{type(error).__name__}: {error}"[:300]}
                took = {"seconds": round(time.process_time() - began, 3), "commit": commit.stdout.strip()}
                for which, at, cell in cells(method, epsilon, answer):
                    key = {"table": name, "method": which, "epsilon": at, "seed": seed}
                    file.write(json.dumps({**key, "task": parted.table.task, **cell, **took}) + "\n")
                file.flush()


def main() -> None:
    """Measure, or print what was measured."""
    args = arguments()
    torch.set_num_threads(1)
    if not args.summary:
        run(args)
        return
    table = {label: measured(args.out, label) for label in (args.label, args.baseline, "peers")}
    print(summary(table[args.label], table[args.baseline], table["peers"], args.label, args.baseline))


if __name__ == "__main__":
    main()
