"""The tables kept apart in Markdown: scores by cell, how `auto` stands to its peers, what it gained."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

MARGIN = 0.005
NOT_PRIVATE = ("majority or mean", "linear, not private", "boosting, not private", "public labels alone")
AUTO, LABELLED = "auto", "auto, 100 public labelled rows"
EPSILONS = (0.1, 0.5, 1.0, 3.0)

Cells = dict[tuple[str, str, float | None, int], dict[str, Any]]
Means = dict[tuple[str, str, float | None], float]


def means(cells: Cells) -> Means:
    """Means over seeds; a method that failed for a seed has none."""
    scores_of: dict[tuple[str, str, float | None], list[float]] = defaultdict(list)
    for (table, method, epsilon, _), cell in cells.items():
        scores_of[table, method, epsilon].append(np.nan if cell["score"] is None else cell["score"])
    return {key: float(np.mean(scores)) for key, scores in scores_of.items()}


def scores(ours: Means, base: Means, peers: Means, tables: dict[str, str], label: str, baseline: str) -> list[str]:
    """One Markdown table a data set: methods down, epsilon across."""
    lines = []
    for table, task in tables.items():
        rows = [(method, method, ours) for method in (AUTO, LABELLED)]
        rows += [(f"{method} ({baseline})", method, base) for method in (AUTO, LABELLED) if baseline != label]
        rows += [(method, method, peers) for method in dict.fromkeys(m for t, m, _ in peers if t == table)]
        lines += ["", f"**{table}**, {'accuracy' if task == 'classification' else 'R2'}", ""]
        lines += ["| | .1 | .5 | 1 | 3 |", "|---|---|---|---|---|"]
        for title, method, source in rows:
            free = source.get((table, method, None))
            values = [free] if free is not None else [source.get((table, method, e)) for e in EPSILONS]
            if any(value is not None for value in values):
                cells = ["" if v is None else "failed" if np.isnan(v) else f"{v:.3f}" for v in values]
                lines.append(f"| {title} | " + " | ".join(cells + [""] * (4 - len(cells))) + " |")
    return lines


def against(ours: Means, peers: Means, method: str, margin: float = MARGIN) -> tuple[int, int, list[str]]:
    """Cells of a method, those not below any private peer by more than the margin, and the misses in words."""
    total, good, misses = 0, 0, []
    for (table, named, epsilon), score in sorted(ours.items(), key=str):
        if named != method:
            continue
        rivals = {m: s for (t, m, e), s in peers.items() if t == table and e == epsilon and m not in NOT_PRIVATE}
        best = max(rivals, key=lambda m: np.nan_to_num(rivals[m], nan=-np.inf))
        total += 1
        if score >= rivals[best] - margin:
            good += 1
        else:
            misses.append(f"{table} at {epsilon:g}: {score:.3f}, {best} {rivals[best]:.3f}")
    return total, good, misses


def gains(ours: Means, base: Means, method: str) -> dict[str, np.ndarray]:
    """Differences over the baseline, as they are and with scores below 0 (worse than the mean) counted as 0."""
    shared = [key for key in ours if key[1] == method and key in base]
    pairs = np.array([[ours[key], base[key]] for key in shared]).reshape(-1, 2)
    at = np.array([key[2] for key in shared])
    floored = np.maximum(pairs, 0)
    return {"epsilon": at, "raw": pairs[:, 0] - pairs[:, 1], "floored": floored[:, 0] - floored[:, 1]}


def _gain_lines(ours: Means, base: Means, baseline: str) -> list[str]:
    lines = ["", f"Mean gain over {baseline}, points (100 times accuracy or R2); (R2 below 0 counted as 0):", ""]
    lines += ["| | .1 | .5 | 1 | 3 | all |", "|---|---|---|---|---|---|"]
    for method in (AUTO, LABELLED):
        gained = gains(ours, base, method)
        if not len(gained["epsilon"]):
            continue
        parts = [gained["epsilon"] == epsilon for epsilon in EPSILONS] + [np.ones(len(gained["epsilon"]), dtype=bool)]
        cells = [
            f"{100 * gained['raw'][p].mean():+.1f} ({100 * gained['floored'][p].mean():+.1f})" for p in parts if p.any()
        ]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def _public_lines(ours: Means, peers: Means) -> list[str]:
    pairs = [(k, s, peers[k[0], "public labels alone", None]) for k, s in ours.items() if k[1] == LABELLED]
    below = [f"{k[0]} at {k[2]:g}: {s:.3f}, public alone {p:.3f}" for k, s, p in pairs if not s >= p - MARGIN]
    lines = ["", f"With labels, not below public labels alone - {MARGIN}: {len(pairs) - len(below)} of {len(pairs)}."]
    return [*lines, *(f"* {line}" for line in below)]


def summary(ours: Cells, base: Cells, peers: Cells, label: str, baseline: str) -> str:
    """Everything, in Markdown."""
    tables = {key[0]: cell["task"] for key, cell in {**peers, **ours}.items()}
    ours_, base_, peers_ = means(ours), means(base), means(peers)
    lines = [f"# {label}", *scores(ours_, base_, peers_, tables, label, baseline), ""]
    for method in (AUTO, LABELLED):
        total, good, misses = against(ours_, peers_, method)
        if total:
            lines.append(f"{method}: >= every private peer - {MARGIN} in {good} of {total} cells ({good / total:.1%}).")
            lines += [f"* {miss}" for miss in misses]
    lines += _gain_lines(ours_, base_, baseline) if baseline != label else []
    lines += _public_lines(ours_, peers_)
    failed = [f"{key}: {cell['error']}" for key, cell in {**peers, **ours}.items() if cell.get("error")]
    seconds = {name: sum(c["seconds"] for c in cells.values()) for name, cells in (("ours", ours), ("peers", peers))}
    lines += [
        "",
        f"CPU seconds: {label} {seconds['ours']:.0f}, peers {seconds['peers']:.0f} (diffprivlib's not counted).",
    ]
    return "\n".join([*lines, *(f"* failed: {line}" for line in failed)])
