"""The rules that rank the choices: conditions in public facts, what they prefer, and what supports them.

The first rule that holds and has a preferred choice that can run puts its choices first, in its order.  All others
follow by their measured shortfall in the regime (points of accuracy lost against the best method), then by the noise
that a margin gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from isthmus.algorithms.filling import CONSTANTS, Choice, Facts
from isthmus.algorithms.frank_wolfe import ball_bound, reach, vertex_bound
from isthmus.algorithms.private import preferred
from isthmus.sets import Subspace

PREPARED = ("dp_gd (moments and step bought)", "dp_gd (columns and step bought)", "dp_gd (step bought)")

SKETCHES = ("dp_comp_minibatch", "rpdp_sgd")


@dataclass(frozen=True)
class Rule:
    """Where `when` holds, the choices named by `prefers` come first, in that order."""

    name: str
    condition: str
    when: Callable[[Facts], bool]
    prefers: Callable[[Facts], tuple[str, ...]]
    why: str
    support: str


def _always(*names: str) -> Callable[[Facts], tuple[str, ...]]:
    return lambda facts: names


def _narrow_set(facts: Facts) -> bool:
    """Whether the set itself has few dimensions."""
    return isinstance(facts.constraint, Subspace)


def _public_directions(facts: Facts) -> bool:
    if facts.public is None or (facts.outputs > 1 and not facts.public.labelled):
        return False
    return facts.public.beyond(facts.public_size, facts.parameters) >= CONSTANTS.captured


def _uneven(facts: Facts) -> bool:
    shape = facts.component_smoothness
    return shape is not None and float(shape.max() / shape.min()) >= CONSTANTS.uneven


def _small_polytope(facts: Facts) -> bool:
    r = reach(facts)
    if r is None or r > CONSTANTS.tight:
        return False
    low, high = CONSTANTS.vertices
    return 2 * min(vertex_bound(facts, rounds) for rounds in range(low, high + 1, 10)) < ball_bound(facts)


def _few_passes(facts: Facts) -> bool:
    if facts.max_passes is None:
        return False
    scaled = preferred(facts) not in ("plain", "step bought", "columns and step bought")
    return facts.max_passes < (CONSTANTS.few_passes if scaled else CONSTANTS.few_passes_unscaled)


def _few_coefficients(facts: Facts) -> bool:
    if facts.sparsity is None:
        return False
    low, high = CONSTANTS.sparse_b
    few = facts.sparsity * CONSTANTS.sparse_share <= facts.parameters
    return facts.b < (high if few else low) * facts.parameters


def _many_blocks(facts: Facts) -> bool:
    """Where blocks by public frequencies were measured to win: with fewer numbers or records a sketch does."""
    if facts.sparse:
        return (facts.max_dims or 0) >= CONSTANTS.block_dims
    return facts.n > CONSTANTS.small_records and facts.b >= CONSTANTS.block_b * facts.parameters


def _sketch(facts: Facts) -> tuple[str, ...]:
    """All records where that is cheap, batches where it is not."""
    cheap = facts.n <= CONSTANTS.small_records and facts.max_passes is None
    return ("priv_sgd", *SKETCHES) if cheap else (*SKETCHES, "priv_sgd")


def _default(facts: Facts) -> tuple[str, ...]:
    return (f"dp_gd ({preferred(facts)})", *PREPARED)


PRIVATE_RULES: tuple[Rule, ...] = (
    Rule(
        "known subspace",
        "max_dims < parameters, constraint is a Subspace",
        lambda facts: facts.narrow and _narrow_set(facts),
        _sketch,
        "the set has few dimensions: a sketch that keeps them loses nothing",
        "Theorem 2.3 (001); python -m lab reproduce 001-figure-5ab: a seventh of the numbers, twice the epochs of SGD",
    ),
    Rule(
        "public directions",
        "max_dims < parameters; public rows whose top k <= max_dims directions hold 80 % of the hold-out energy",
        lambda facts: facts.narrow and _public_directions(facts),
        lambda facts: ("pdp_sgd", *_sketch(facts)),
        "public gradients lie in few directions, and only a few numbers may be released",
        "Theorem 6 (004); docs/planner.md, low rank",
    ),
    Rule(
        "public frequencies",
        "max_dims < parameters; public M_j (or public rows); CSR and max_dims >= 500, or n > 10,000 and n mu >= 8 d",
        lambda facts: facts.narrow and facts.component_smoothness is not None and _many_blocks(facts),
        lambda facts: ("dp_skgd", *_sketch(facts)),
        "many numbers or records, and public facts say which columns matter",
        "lab/studies/private_tables.py: IMDB .833 with word ranks, sketches .759; lending R2 .464 against .417",
    ),
    Rule(
        "few numbers",
        "max_dims < parameters",
        lambda facts: facts.narrow,
        _sketch,
        "only a few numbers may be released: a new sketch in every round sees all columns in the end",
        "lab/studies/private_tables.py: a9a .839 with m = 50, blocks .828, codes .825",
    ),
    Rule(
        "small polytope",
        "an l1 ball, simplex or hull with radius * |x_ij| <= 5 where the bound of DP-FW is below half of DP-GD's",
        _small_polytope,
        _always("dp_fw"),
        "the set is small and has corners: choosing one costs ln d, noise in every direction costs sqrt(d)",
        "2 h (2r)^2 / (T + 2) + C r ln(2d) sqrt(T) / (n mu) < C R sqrt(d) / (2 n mu); docs/planner.md, l1 ball",
    ),
    Rule(
        "few coefficients",
        "sparsity is given, no polytope, n mu < 2 d; n mu < 10 d where at most d / 20 coefficients matter",
        _few_coefficients,
        _always("compressive_dp_sgd (selection)"),
        "few coefficients matter: choosing them costs ln d, noise on all of them costs sqrt(d)",
        "docs/planner.md, sparse truth",
    ),
    Rule(
        "uneven columns",
        "public M_j that differ by 100 or more, and columns may not be rescaled (set, penalty or scale='none')",
        lambda facts: (not facts.free or facts.scale == "none") and facts.smoothness is not None and _uneven(facts),
        _always("dp_cd"),
        "columns have very different scales and may not be rescaled: each gets a step of its own",
        "003-uneven-columns: .014 of the loss left, DP-GD .157; docs/planner.md, uneven columns",
    ),
    Rule(
        "few passes",
        "max_passes < 10 (moments or X'X bought), < 50 (else)",
        _few_passes,
        lambda facts: (f"dp_gd ({preferred(facts)})", "dp_sgd") if "statistics" in preferred(facts) else ("dp_sgd",),
        "only a few passes are allowed: with batches, each pass makes a hundred steps",
        "docs/planner.md, few passes: a9a .840 in one pass, all records .764",
    ),
    Rule(
        "prepared descent",
        "else",
        lambda facts: True,
        _default,
        "scale and step of the columns, not noise, hold plain descent back, and a small share of the budget buys them",
        "lab/studies/private_tables.py and docs/planner.md, prepared descent",
    ),
)

FREE_RULES: tuple[Rule, ...] = (
    Rule(
        "few numbers",
        "max_dims < parameters",
        lambda facts: facts.narrow,
        lambda facts: ("comp_sgd", "comp_gd") if facts.max_passes is not None else ("comp_gd", "comp_sgd"),
        "only a few numbers may be sent, and what a sketch loses is sent later",
        "python -m lab reproduce 001-figure-1d-3c-3d: .873 with a twentieth of the numbers, SGD .874, memoryless .857",
    ),
    Rule(
        "few passes",
        "max_passes < 50",
        lambda facts: facts.max_passes is not None and facts.max_passes < CONSTANTS.few_passes_unscaled,
        _always("sgd", "comp_sgd"),
        "only a few passes are allowed: with batches, each pass makes many steps",
        "docs/planner.md, few passes",
    ),
    Rule(
        "polytope",
        "constraint is an l1 ball, simplex or hull with radius * |x_ij| <= 5",
        lambda facts: (reach(facts) or float("inf")) <= CONSTANTS.tight,
        _always("comp_fw", "gd"),
        "vertices of a small polytope are exact and sparse",
        "python -m lab reproduce 001-compfw-convex: away steps end 10^6 times below plain ones after 200 rounds",
    ),
    Rule(
        "plain descent",
        "else",
        lambda facts: True,
        _always("gd", "sgd", "comp_sgd"),
        "no privacy was asked for, so the plain method is best",
        "python -m lab reproduce 001-figure-1a",
    ),
)


def place_of(choice: Choice, order: Mapping[str, int]) -> int | None:
    """Where a rule's order has this choice, by its full name or by its algorithm's."""
    return order.get(choice.name, order.get(choice.algorithm))


RULES = (*PRIVATE_RULES, *FREE_RULES)
