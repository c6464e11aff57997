"""`make fuzz`: every target in turn, its cases and its crashes; or one input again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fuzz import guided


def main() -> int:
    """0 where nothing crashed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="of processor time, all targets together")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), help="corpus, crashes and figures")
    parser.add_argument("--replay", help="TARGET:FILE of an input that was reported")
    arguments = parser.parse_args()
    if arguments.replay:
        from fuzz.targets import TARGETS

        name, _, file = arguments.replay.partition(":")
        TARGETS[name](Path(file).read_bytes())
        print("nothing happened: it is refused, or read as what it says")
        return 0
    targets = guided.instrumented()
    names = arguments.target or list(targets)
    rows = []
    for number, name in enumerate(names):
        seconds = max(2.0, 60 * arguments.minutes / len(names))
        rows.append(searched(targets[name], seconds, arguments.out.absolute() / name.replace(" ", "-")))
        print(f"[{number + 1}/{len(names)}] {line(rows[-1])}", flush=True)
    print(table(rows))
    (arguments.out / "result.json").write_text(json.dumps(rows, indent=1))
    return int(any(row["crashes"] or row["hangs"] for row in rows))


def searched(target: Any, seconds: float, place: Path) -> dict[str, Any]:
    """One target; where a hang ended its search, it is begun again with the time that is left."""
    whole: dict[str, Any] = {
        "target": target.name,
        "cases": 0,
        "refused": 0,
        "seconds": 0.0,
        "crashes": {},
        "hangs": [],
    }
    while seconds - whole["seconds"] > 1 and len(whole["hangs"]) < 3:
        code = guided.search(target, seconds - whole["seconds"], place)
        file = place / "stats.json"
        stats = json.loads(file.read_text()) if file.exists() else {}
        for key in ("cases", "refused", "seconds"):
            whole[key] += stats.get(key, 0)
        whole["crashes"] |= stats.get("crashes", {})
        if code or not stats:
            whole["hangs"].append(f"exit code {code}: see {place / 'log'} and {place / 'crashes'}")
        if not stats:
            break
    return whole


def line(row: dict[str, Any]) -> str:
    """The figures of one target."""
    counts = f"{row['cases']:9d} {row['refused']:9d} {row['seconds']:8.0f} {len(row['crashes']):8d}"
    return f"{row['target']:20} {counts} {len(row['hangs']):6d}"


def table(rows: list[dict[str, Any]]) -> str:
    """What was found, and how to see it again."""
    lines = [f"{'target':20} {'cases':>9} {'refused':>9} {'seconds':>8} {'crashes':>8} {'hangs':>6}"]
    lines += [line(row) for row in rows]
    lines.append(f"{'all':20} {sum(row['cases'] for row in rows):9d} {sum(row['refused'] for row in rows):9d}")
    for row in rows:
        for where, crash in row["crashes"].items():
            lines.append(f"CRASH {row['target']}: {where}: {crash['error']}")
            lines.append(f'    make fuzz REPLAY="{row["target"]}:{crash["file"]}"')
        lines += [f"ENDED {row['target']}: {hang}" for hang in row["hangs"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
