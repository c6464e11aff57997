"""Tables 2 and 5: bits that distributed runs send, from the printed formulas and as they were sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.algorithms import comp_dist_sgd
from isthmus.codecs import QSGD
from isthmus.core.minimize import Recipe, minimize
from isthmus.objectives import Hinge, LeastSquares, LinearModel
from isthmus.sets import ConvexSet, L1Ball
from isthmus.sketches import Identity
from isthmus.theory import Rule, Schedule, distributed_convex_schedule, strongly_convex_schedule
from lab.reproduce.experiment import Cell, Experiment, Judgement, Observed, Results, RunSetting
from lab.reproduce.losses import AbsoluteLoss
from lab.reproduce.measures import first_below, log10, thinned
from lab.reproduce.paper_001.nonconvex import robust_regression, stationarity
from lab.reproduce.paper_001.tables_1_4 import mapping_norm, unit_width
from lab.theory import (
    Communication,
    convex_communication,
    mapping_communication,
    qsgd,
    stationary_communication,
    strongly_convex_communication,
    strongly_convex_smooth_communication,
)

SGD, QUANTISED, RULE, TENTH = "SGD", "SGD + QSGD", "CompDistSGD + QSGD, m_t", "CompDistSGD + QSGD, d/10"
METHODS = (SGD, QUANTISED, RULE, TENTH)
ALIKE = 0.1
"""Numbers of bits whose logarithms differ by less are called alike: a quarter."""
CLIENTS, RIDGE, RADIUS = 10, 0.1, 5.0
Measure = Callable[[Tensor], float]

# ---------------------------------------------------------------- as printed


def printed(row: str, d: int, alpha: float) -> Communication:
    """A row of Table 5 for G = mu = zeta = 1, lambda = .1, ||C|| = 2, the width of the unit l1 ball, and QSGD."""
    sizes: dict[str, Any] = {"gradient_bound": 1.0, "d": d, "width": unit_width(d), "scheme": qsgd}
    if row == "strongly convex, smooth":
        return strongly_convex_smooth_communication(alpha, strong_convexity=0.1, smoothness=1.0, **sizes)
    if row == "strongly convex":
        return strongly_convex_communication(alpha, strong_convexity=0.1, **sizes)
    if row == "convex":
        return convex_communication(alpha, diameter=2.0, **sizes)
    nonconvex: dict[str, Any] = {"smoothness": 1.0, "diameter": 2.0, "noise": 1.0, "between": 1.0, "gap": 1.0}
    rule = stationary_communication if row == "alpha-FOSP" else mapping_communication
    return rule(alpha, **sizes, **nonconvex)


# ---------------------------------------------------------------- as sent


def problem(row: str, config: Mapping[str, Any], seed: int) -> tuple[LinearModel, ConvexSet, Measure, Schedule]:
    """An objective, what must fall, and the steps of Corollary D.2."""
    n, d = config["n"], config["d"]
    if row in ("alpha-FOSP", "gradient mapping"):
        robust, ball = robust_regression(n, d, RADIUS, seed)
        measure = stationarity if row == "alpha-FOSP" else mapping_norm
        flat = Schedule(Rule(0.5 / robust.smoothness()), Rule(1.0, power=1.0), Rule(5.0))
        return robust, ball, lambda w: measure(robust, ball, w), flat
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    w = np.zeros(d)
    w[:5] = rng.choice([-1.0, 1.0], 5) * RADIUS / 5
    smooth = row == "strongly convex, smooth"
    ridge = 0.0 if row == "convex" else RIDGE
    if row == "convex":
        objective: LinearModel = AbsoluteLoss(x, x @ w)
    elif smooth:
        objective = LeastSquares(x, x @ w, l2=ridge)
    else:
        objective = Hinge(x, np.sign(x @ w), classes=[-1.0, 1.0], l2=ridge)
    constraint = L1Ball(RADIUS * 4)
    plan = strongly_convex_schedule(ridge) if ridge else distributed_convex_schedule(2 * RADIUS, 1.0, 1.0)
    best = lowest(objective, constraint, ridge)
    return objective, constraint, lambda w: objective.loss(w) - best, plan


def lowest(objective: LinearModel, constraint: ConvexSet, ridge: float) -> float:
    """F*: of the ridge by its equations, of the hinge by a long subgradient descent, 0 of the absolute loss."""
    if isinstance(objective, LeastSquares):
        x, d = objective.X, objective.d
        assert isinstance(x, Tensor)
        gram = x.T @ x / objective.n + ridge * torch.eye(d, dtype=x.dtype)
        return objective.loss(torch.linalg.solve(gram, x.T @ objective.y / objective.n))
    if not ridge:
        return 0.0  # targets without noise
    w, best = torch.zeros(objective.d, dtype=torch.float64), math.inf
    for t in range(2000):
        w = constraint.project(w - objective.gradient(w) / (ridge * (t + 2)))
        best = min(best, objective.loss(w)) if t % 20 == 19 else best
    return best


def recipe_of(method: str, plan: Schedule, nonconvex: bool) -> Recipe:
    """One client a round, five where the problem is nonconvex."""
    common: dict[str, Any] = {"schedule": plan, "clients_per_round": 5 if nonconvex else 1}
    if method == SGD:
        return comp_dist_sgd(m=1.0, sketch=lambda m: Identity(), **common)
    if method == QUANTISED:
        return comp_dist_sgd(m=1.0, sketch=lambda m: Identity(), codec=QSGD(), **common)
    return comp_dist_sgd(m=None if method == RULE else 0.1, codec=QSGD(), **common)


def cells(config: Mapping[str, Any]) -> Sequence[Cell]:
    """The formulas at some d, then runs."""
    formulas = [{"row": row, "d": d} for row in config["rows"] for d in config["dimensions"]]
    return [*formulas, *({"row": row, "method": method} for row in config["rows"] for method in METHODS)]


def run(cell: Cell, setting: RunSetting) -> Observed:
    """A cell of either kind."""
    if "method" not in cell:
        cost = printed(cell["row"], cell["d"], setting.config["alpha"])
        return Observed({"log10 saving": log10(cost.contraction / cost.compressed)})
    return _sent(cell, setting)


def _sent(cell: Cell, setting: RunSetting) -> Observed:
    """Bits until what must fall has fallen to a share of its first value; all that were sent where it has not."""
    config, row = setting.config, cell["row"]
    objective, constraint, measure, plan = problem(row, config, setting.seed)
    order = np.random.default_rng(setting.seed).permutation(objective.n)
    clients = [objective.part(torch.from_numpy(part)) for part in np.array_split(order, CLIENTS)]
    start = torch.zeros(objective.d, dtype=torch.float64)
    first, points = measure(start), list[tuple[float, float]]()

    def look(record: dict[str, Any], state: Any) -> None:
        bits = 32.0 * record["dims"] if cell["method"] == SGD else 8.0 * record["bytes"]
        points.append((bits, max(measure(state.w), 1e-9) / first))

    recipe = recipe_of(cell["method"], plan, row in ("alpha-FOSP", "gradient mapping"))
    # narrow messages are cheap: four times the rounds
    longer = 4 if cell["method"] == TENTH else 1
    result = minimize(objective, recipe, constraint, steps=longer * config["rounds"], seed=setting.seed, x0=start,
                      clients=clients, callbacks=[look], record=2 * longer, progress=False)  # fmt: skip
    reached = first_below([b for b, _ in points], [s for _, s in points], config["share"])
    total = points[-1][0]
    metrics = {"log10 bits": log10(total if reached is None else reached), "reached": float(reached is not None),
               "bits a number": total / result.dims}  # fmt: skip
    logs = [log10(s) for _, s in points]
    return Observed(metrics, {"fall": thinned([log10(max(b, 1.0)) for b, _ in points], logs)})


# ---------------------------------------------------------------- verdict and plot


def verdict(results: Results) -> Judgement:
    """Never more bits than the contraction alone, and fewer on low-width sets: as printed and as sent."""
    rows = list(dict.fromkeys(cell["row"] for cell in results.cells))
    sentences, worse, better = [], [], []
    for row in rows:
        sizes = [cell["d"] for cell in results.cells if cell["row"] == row and "d" in cell]
        saving = ", ".join(f"{10 ** results.mean('log10 saving', row=row, d=d):.3g}" for d in sizes)
        ends = {m: (results.mean("reached", row=row, method=m) > 0.5, results.mean("log10 bits", row=row, method=m))
                for m in METHODS}  # fmt: skip
        bits_of = {m: bits for m, (reached, bits) in ends.items() if reached}
        sent = ", ".join(f"{m} {f'10^{bits_of[m]:.2f}' if m in bits_of else 'not reached'}" for m in METHODS)
        sentences.append(f"{row}: printed saving {saving}; bits sent {sent}")
        plain, narrow = bits_of.get(QUANTISED, math.inf), [bits_of.get(m, math.inf) for m in (RULE, TENTH)]
        better += [row] * (min(narrow) < plain - ALIKE)
        worse += [row] * (narrow[0] > plain + ALIKE)
    at = ", ".join(f"10^{math.log10(d):.0f}" for d in dict.fromkeys(c["d"] for c in results.cells if "d" in c))
    bits = results.mean("bits a number", row=rows[0], method=QUANTISED)
    why = (
        f"Savings of CompDistSGD over the contraction alone are printed for d = {at}. " + ". ".join(sentences) + ". "
        f"QSGD with Elias codes sends {bits:.2f} bits a number where the tables count 2.8."
    )
    if worse:
        return Judgement("fails", why + f" The rule's m_t sends more than the contraction alone: {', '.join(worse)}.")
    if len(better) == len(rows):
        return Judgement("holds", why)
    why += " The rule's m_t sends no more than the contraction alone, and no less where it soon is d."
    return Judgement("holds in part", why)


def plot(results: Results, figure: Any) -> None:
    """What must fall against the bits that were sent, a panel a row."""
    rows = list(dict.fromkeys(cell["row"] for cell in results.cells))
    columns = min(3, len(rows))
    panels = figure.subplots(-(-len(rows) // columns), columns, squeeze=False)
    for axes in list(panels.flat)[len(rows) :]:
        axes.set_axis_off()
    for axes, row in zip(panels.flat, rows, strict=False):
        for method in METHODS:
            x, y, _ = results.curve("fall", row=row, method=method)
            axes.plot(x, y, label=method, linewidth=1.2)
        axes.set_title(row, fontsize=8)
        axes.set_xlabel("log10 bits sent")
    panels.flat[0].legend(fontsize=6)
    panels.flat[0].set_ylabel("log10 of the share left")


def _experiment(name: str, item: str, rows: list[str]) -> Experiment:
    common = {"rows": rows, "alpha": 0.1, "dimensions": [10**4, 10**6, 10**8], "share": 0.3}
    return Experiment(
        name=name,
        item=item,
        title="Bits that distributed runs send",
        claim="CompDistSGD with a contraction sends T kappa min(gamma_d, gamma_r) bits: never more than SGD with the "
        "contraction alone, and fewer for many sets C, such as the l1 ball.",
        cells=cells,
        run=run,
        verdict=verdict,
        plot=plot,
        small={**common, "n": 400, "d": 400, "rounds": 200},
        full={**common, "n": 5000, "d": 5000, "rounds": 2000},
        note="The paper evaluates nothing. Printed: G = mu = zeta = 1, lambda = .1, ||C|| = 2, alpha = .1, QSGD. Sent: "
        "ten clients, one a round (five where nonconvex), QSGD with Elias codes, until .3 of the first error or gap "
        "is left. Rows 3 and 4 of Table 5 are those of Table 2.",
    )


EXPERIMENTS = (
    _experiment("001-table-2", "Table 2", ["convex", "alpha-FOSP"]),
    _experiment("001-table-5", "Table 5", ["strongly convex, smooth", "strongly convex", "gradient mapping"]),
)
