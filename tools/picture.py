"""The plots of docs/picture.md, from runs on made-up data: writes docs/assets/*.svg and picture.json.

Every point is measured: means of `SEEDS` runs.  The script takes some minutes on one core.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

import isthmus
from isthmus import Logistic, algorithms, minimize

matplotlib.use("svg")
import matplotlib.pyplot as plt

OUT = Path(__file__).parents[1] / "docs" / "assets"
SEEDS = 5
N, D, RANK = 4000, 400, 8


def low_rank(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with half of their energy in a few directions, which hold all the signal."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(D, RANK)))[0]
    inner = rng.normal(size=(N + 2200, RANK))
    rows = inner @ basis.T / np.sqrt(RANK) + rng.normal(size=(N + 2200, D)) / np.sqrt(D)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, np.sign(inner[:, 0] + 0.3 * rng.normal(size=N + 2200))


def spread(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows without a narrow place: every column matters a little."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N + 2200, D))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, np.sign(rows @ rng.normal(size=D) + 0.3 * rng.normal(size=N + 2200))


def accuracy(result: Any, rows: np.ndarray, labels: np.ndarray) -> float:
    """The share of rows that a result labels rightly."""
    return float(np.mean(np.sign(rows @ np.asarray(result.x)) == labels))


def noise_in_a_round() -> dict[str, Any]:
    """How long the noise of one release is beside one clipped record, by the width m it lives in."""
    widths = [10, 30, 100, 300, 1000, 3000, 10_000]
    rng = np.random.default_rng(0)
    return {
        "m": widths,
        "noise": [float(np.mean([np.linalg.norm(rng.normal(size=m)) for _ in range(200)])) for m in widths],
    }


def private_by_width() -> dict[str, Any]:
    """Accuracy of private descent through m numbers, by a random map or public directions, on two kinds of data."""
    widths, errors = [8, 16, 32, 64, 128, 256], {}
    for kind, make in {"low rank": low_rank, "spread out": spread}.items():
        for way in ("random", "public", "all"):
            errors[f"{kind}, {way}"] = [
                float(np.mean([_private(make(seed), way, m) for seed in range(SEEDS)]))
                for m in (widths if way != "all" else [D])
            ]
    return {"m": widths, **errors}


def _private(data: tuple[np.ndarray, np.ndarray], way: str, m: int) -> float:
    rows, labels = data
    public, test = slice(N, N + 200), slice(N + 200, None)
    objective = Logistic(rows[:N], labels[:N], classes=(-1, 1))
    budget: dict[str, Any] = {"epsilon": 0.2, "delta": 1e-5, "clip": 0.5, "n": "exact"}
    if way == "public":
        recipe = algorithms.pdp_sgd(**budget, k=m, data=(rows[public], labels[public]), step=4.0, batch_size=N)
    elif way == "random":
        recipe = algorithms.priv_sgd(**budget, m=m, step=4.0 * D / m)
    else:
        recipe = algorithms.dp_gd(**budget, step=4.0)
    return accuracy(minimize(objective, recipe, steps=30), rows[test], labels[test])


def compressed() -> dict[str, Any]:
    """Loss against numbers sent, without privacy: plain SGD, and a tenth of the numbers with and without memory."""
    rows, labels = low_rank(0)
    objective = Logistic(rows[:N], labels[:N], classes=(-1, 1))
    ways = {
        "all numbers": algorithms.sgd(step=4.0, batch_size=64),
        "a tenth, error feedback": algorithms.comp_sgd(m=D // 10, step=4.0, batch_size=64, error_feedback=True),
        "a tenth, memoryless": algorithms.comp_sgd(m=D // 10, step=4.0, batch_size=64),
    }
    by_name: dict[str, Any] = {}
    for name, recipe in ways.items():
        result = minimize(objective, recipe, isthmus.L2Ball(20.0), epochs=4, record=20, seed=0)
        by_name[name] = {"numbers": [r["dims"] for r in result.history], "loss": [r["loss"] for r in result.history]}
    return by_name


def main() -> None:
    """Measure, keep the figures, draw."""
    figures = {"noise": noise_in_a_round(), "private": private_by_width(), "compressed": compressed()}
    (OUT / "picture.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draw(figures)


def draw(figures: dict[str, Any]) -> None:
    """The three plots, from the kept figures."""
    plt.rcParams.update(
        {"svg.hashsalt": "isthmus", "svg.fonttype": "path", "font.size": 11, "axes.grid": True, "grid.alpha": 0.3}
    )
    axes = _axes("numbers released in a round (m)", "length of the noise (one clip = 1)")
    axes.loglog(figures["noise"]["m"], figures["noise"]["noise"], "o-", color="#00796b")
    _save("noise")

    axes = _axes("numbers released in a round (m)", "test accuracy at epsilon 0.2", 4.8)
    styles = {"low rank, public": ("#00796b", "o-"), "low rank, random": ("#00796b", "s--")}
    styles |= {"spread out, public": ("#c2410c", "o-"), "spread out, random": ("#c2410c", "s--")}
    for name, (colour, style) in styles.items():
        axes.semilogx(figures["private"]["m"], figures["private"][name], style, color=colour, label=name)
    for kind, colour in {"low rank": "#00796b", "spread out": "#c2410c"}.items():
        axes.axhline(figures["private"][f"{kind}, all"][0], color=colour, ls=":", label=f"{kind}, all {D} numbers")
    axes.legend(fontsize=10, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    _save("width")

    axes = _axes("numbers sent", "training loss")
    for (name, curve), colour in zip(figures["compressed"].items(), ("#57534e", "#00796b", "#c2410c"), strict=True):
        axes.semilogx(curve["numbers"], curve["loss"], "-", color=colour, label=name)
    axes.legend(fontsize=9)
    _save("bytes")


def _axes(x: str, y: str, height: float = 3.8) -> Any:
    _, axes = plt.subplots(figsize=(6.4, height))
    axes.set(xlabel=x, ylabel=y)
    return axes


def _save(name: str) -> None:
    plt.savefig(OUT / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close()


if __name__ == "__main__":
    main()
