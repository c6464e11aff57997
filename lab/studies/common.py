"""What the experiments share: where results go, the table, the curves, the comparison with what was measured before."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent


def arguments(description: str | None, **extra: Any) -> argparse.Namespace:
    """--data, --out, --quick, and numbers of an experiment's own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", default=None, help="folder with the .npz files (default: ISTHMUS_DATA)")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="where JSON and PNG files go")
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that it works")
    for name, value in extra.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()


def table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as aligned columns."""
    names = list(rows[0])
    texts = [[_text(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in texts)) for i, name in enumerate(names)]
    print(f"\n{title}")
    for line in [names, *texts]:
        cells = (text.rjust(widths[i]) if i else text.ljust(widths[i]) for i, text in enumerate(line))
        print("  " + "  ".join(cells))


def save(out: Path, name: str, results: dict[str, Any]) -> None:
    """Write the measured numbers, and print them beside the expected ones where there are any."""
    out.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads(), **results}
    (out / f"{name}.json").write_text(json.dumps(record, indent=1))
    expected = HERE / "expected" / f"{name}.json"
    if expected.exists():
        compare(results, json.loads(expected.read_text()))


def compare(results: dict[str, Any], expected: dict[str, Any]) -> None:
    """Print measured and expected values with the tolerance stated in the expected file."""
    rows = []
    for key, want in expected.items():
        got = results["summary"].get(key)
        ok = got is not None and abs(got - want["value"]) <= want["tolerance"]
        verdict = "ok" if ok else "OFF"
        rows.append({"figure": key, "measured": got, "expected": want["value"], "+-": want["tolerance"], "": verdict})
    table("against the expected values", rows)


def curves(out: Path, name: str, series: dict[str, Any], x: str, y: str, log: bool = True) -> None:
    """One PNG with a curve a run."""
    out.mkdir(parents=True, exist_ok=True)
    figure, ax = plt.subplots(figsize=(7, 4.5))
    for label, (horizontal, vertical) in series.items():
        ax.plot(horizontal, vertical, label=label)
    if log:
        ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.legend()
    ax.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(out / f"{name}.png", dpi=120)
    plt.close(figure)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
