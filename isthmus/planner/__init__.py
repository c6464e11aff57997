"""The planner: which algorithm to use for these public facts, how to fill it, and what it will cost.

`plan` reads no private data.  It fills every algorithm from the facts (`Choice`), refuses those that cannot run, and
ranks the rest by rules that are written down with what supports them (`RULES`, docs/planner.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import torch

from isthmus.algorithms import KNOWN
from isthmus.algorithms.frank_wolfe import ball_bound, reach, vertex_bound
from isthmus.algorithms.private import preferred
from isthmus.algorithms.suggest import CONSTANTS, Algorithm, Choice, Facts, PublicFacts, Refusal, Variant, algorithm_of
from isthmus.base import notebook, validate
from isthmus.base.matrix import Matrix, as_matrix, is_sparse, take, to_dense
from isthmus.core.minimize import Recipe
from isthmus.diagnostics import captured_energy
from isthmus.gradients import Glm, Outer, Rows
from isthmus.objectives.linear import Loss, loss_of
from isthmus.sets import Subspace


class Rule(NamedTuple):
    """A rule that holds: its name, the choices that come first, in this order, and why."""

    name: str
    prefers: tuple[str, ...]
    why: str


def private_rules(facts: Facts) -> Iterator[Rule]:
    """The rules of private runs that hold, in the order in which they are asked; the last one always does."""
    public, shape, b, d = facts.public, facts.component_smoothness, facts.b, facts.parameters
    if facts.narrow:  # only a few numbers may be released: max_dims < parameters
        sketches = ("dp_comp_minibatch", "rpdp_sgd", "priv_sgd")
        if facts.n <= CONSTANTS.small_records and facts.max_passes is None:  # looking at all records is cheap
            sketches = ("priv_sgd", "dp_comp_minibatch", "rpdp_sgd")
        # Supported by Theorem 2.3 (001); python -m lab reproduce 001-figure-5ab: a seventh of the numbers, twice the
        # epochs of SGD
        if isinstance(facts.constraint, Subspace):
            yield Rule("known subspace", sketches, "the set has few dimensions: a sketch that keeps them loses nothing")
        # Public rows whose top k <= max_dims directions hold 80 % of the hold-out energy. Supported by Theorem 6 (004);
        # docs/planner.md, low rank
        if public is not None and (facts.outputs == 1 or public.labelled):
            if public.beyond(facts.public_size, d) >= CONSTANTS.captured:
                why = "public gradients lie in few directions, and only a few numbers may be released"
                yield Rule("public directions", ("pdp_sgd", *sketches), why)
        # Public M_j (or public rows); CSR and max_dims >= 500, or n > 10,000 and n mu >= 8 d: with fewer numbers or
        # records a sketch wins. Supported by lab/studies/private_tables.py: IMDB .833 with word ranks, sketches .759;
        # lending R2 .464 against .417
        many = facts.n > CONSTANTS.small_records and b >= CONSTANTS.block_b * d
        if facts.sparse:
            many = (facts.max_dims or 0) >= CONSTANTS.block_dims
        if many and shape is not None:
            why = "many numbers or records, and public facts say which columns matter"
            yield Rule("public frequencies", ("dp_skgd", *sketches), why)
        # Supported by lab/studies/private_tables.py: a9a .839 with m = 50, blocks .828, codes .825
        why = "only a few numbers may be released: a new sketch in every round sees all columns in the end"
        yield Rule("few numbers", sketches, why)
    # An l1 ball, simplex or hull with radius * |x_ij| <= 5 where the bound of DP-FW is below half of DP-GD's. Supported
    # by 2 h (2r)^2 / (T + 2) + C r ln(2d) sqrt(T) / (n mu) < C R sqrt(d) / (2 n mu); docs/planner.md, l1 ball
    r, (low, high) = reach(facts), CONSTANTS.vertices
    if r is not None and r <= CONSTANTS.tight:
        if 2 * min(vertex_bound(facts, rounds) for rounds in range(low, high + 1, 10)) < ball_bound(facts):
            why = "the set is small and has corners: choosing one costs ln d, noise in every direction costs sqrt(d)"
            yield Rule("small polytope", ("dp_fw",), why)
    # n mu < 2 d; n mu < 10 d where at most d / 20 coefficients matter. Supported by docs/planner.md, sparse truth
    if facts.sparsity is not None and b < CONSTANTS.sparse_b[facts.sparsity * CONSTANTS.sparse_share <= d] * d:
        why = "few coefficients matter: choosing them costs ln d, noise on all of them costs sqrt(d)"
        yield Rule("few coefficients", ("compressive_dp_sgd (selection)",), why)
    # Public M_j that differ by 100 or more, and columns may not be rescaled (set, penalty or scale='none'). Supported
    # by 003-uneven-columns: .014 of the loss left, DP-GD .157; docs/planner.md, uneven columns
    fixed = facts.smoothness is not None and not (facts.free and facts.scale != "none")
    if fixed and shape is not None and float(shape.max() / shape.min()) >= CONSTANTS.uneven:
        why = "columns have very different scales and may not be rescaled: each gets a step of its own"
        yield Rule("uneven columns", ("dp_cd",), why)
    # Where max_passes < 10 (moments or X'X bought), < 50 (else). Supported by docs/planner.md, few passes: a9a .840 in
    # one pass, all records .764
    bought, few = preferred(facts), CONSTANTS.few_passes
    if bought in ("plain", "step bought", "columns and step bought"):
        few = CONSTANTS.few_passes_unscaled
    if facts.max_passes is not None and facts.max_passes < few:
        first = (f"dp_gd ({bought})",) * ("statistics" in bought)  # batches, after X'X where it can be bought
        why = "only a few passes are allowed: with batches, each pass makes a hundred steps"
        yield Rule("few passes", (*first, "dp_sgd"), why)
    # Supported by lab/studies/private_tables.py and docs/planner.md, prepared descent
    others = (bought, "moments and step bought", "columns and step bought", "step bought")
    why = "scale and step of the columns, not noise, hold plain descent back, and a small share of the budget buys them"
    yield Rule("prepared descent", tuple(f"dp_gd ({each})" for each in others), why)


def free_rules(facts: Facts) -> Iterator[Rule]:
    """The same of runs that are not private."""
    few = facts.max_passes is not None and facts.max_passes < CONSTANTS.few_passes_unscaled
    # Supported by python -m lab reproduce 001-figure-1d-3c-3d: .873 with a twentieth of the numbers, SGD .874,
    # memoryless .857
    if facts.narrow:
        either = ("comp_gd", "comp_sgd")
        if facts.max_passes is not None:
            either = ("comp_sgd", "comp_gd")
        yield Rule("few numbers", either, "only a few numbers may be sent, and what a sketch loses is sent later")
    # Supported by docs/planner.md, few passes
    if few:
        why = "only a few passes are allowed: with batches, each pass makes many steps"
        yield Rule("few passes", ("sgd", "comp_sgd"), why)
    # An l1 ball, simplex or hull with radius * |x_ij| <= 5. Supported by python -m lab reproduce 001-compfw-convex:
    # away steps end 10^6 times below plain ones after 200 rounds
    if (reach(facts) or math.inf) <= CONSTANTS.tight:
        yield Rule("polytope", ("comp_fw", "gd"), "vertices of a small polytope are exact and sparse")
    # Supported by python -m lab reproduce 001-figure-1a
    why = "no privacy was asked for, so the plain method is best"
    yield Rule("plain descent", ("gd", "sgd", "comp_sgd"), why)


RULES = (private_rules, free_rules)


@dataclass(frozen=True)
class Plan:
    """Ranked choices (best first), those refused with their reasons, and remarks.

    >>> from isthmus.planner import plan
    >>> ranked = plan(n=30_000, d=100, epsilon=1.0)
    >>> ranked.best.algorithm, ranked.best is ranked.choices[0]
    ('dp_gd', True)
    """

    facts: Facts
    choices: tuple[Choice, ...]
    refused: Mapping[str, str]
    notes: tuple[str, ...] = ()
    energy: Mapping[str, Any] | None = field(default=None)

    @property
    def best(self) -> Choice:
        """The first choice; refused where every algorithm is."""
        if not self.choices:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
            remedy = f"name another algorithm or give other facts: none of these can run here ({reasons})"
            validate.refuse("algorithms", list(self.refused), remedy)
        return self.choices[0]

    def choice(self, name: str) -> Choice:
        """The best choice of an algorithm, or the one of a full name such as "dp_gd (plain)"."""
        for choice in self.choices:
            if name in (choice.algorithm, choice.name):
                return choice
        reasons = [reason for key, reason in self.refused.items() if name in (key, key.split(" ")[0])]
        remedy = f"choose one of {sorted({choice.algorithm for choice in self.choices})}"
        if reasons:
            remedy += f" (this one cannot run here: {'; '.join(reasons)})"
        validate.refuse("algorithm", name, remedy)

    def words(self) -> str:
        """What is recommended, what it costs, why, and what was left out."""
        facts, best = self.facts, self.best
        budget = "no privacy"
        if facts.private:
            budget = f"epsilon {facts.epsilon:g}, delta {facts.delta:.3g}"
        lines = [
            f"{facts.n:,} records, {facts.d:,} columns, {facts.loss_name} loss, {budget}.",
            f"Use {best.name}: {best.why}.",
            f"It needs {best.rounds:,} rounds ({_short(best.passes)} passes over the data): about "
            f"{_time(best.seconds)} on one core, and {_bytes(best.memory)} of memory besides the data (estimates).",
        ]
        if best.private and best.noise_multiplier is not None:
            noise = f"Noise multiplier {_short(best.noise_multiplier)}"
            if best.noise_norm is not None:
                noise += f"; noise of length {_short(best.noise_norm)} in an update of {best.dims:,} numbers"
            if best.margin_noise is not None:
                noise += f"; in the end at most {_short(best.margin_noise)} of noise in the score of a row of length 1"
            lines.append(f"{noise}.")
        lines.append(f"Evidence: {best.evidence}.")
        lines += [f"Note: {note}." for note in self.notes]
        lines += [f"Not used: {name} ({reason})." for name, reason in self.refused.items()]
        return "\n".join(lines)

    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        table = []
        for place, choice in enumerate(self.choices, 1):
            dims = f"{choice.dims:,}"
            if choice.dims >= 10**7:
                dims = f"{choice.dims:.2g}"
            noise = map(_short, (choice.noise_multiplier, choice.noise_norm, choice.margin_noise))
            costs = (*map(_bytes, (choice.bytes, choice.memory)), _time(choice.seconds), _short(choice.passes))
            table.append([str(place), choice.name + " *" * choice.research, *noise, dims, *costs])
        return table

    def table(self) -> str:
        """The choices, best first, aligned and at most 120 columns wide."""
        rows = [[*_HEAD], *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[1] += min(0, _WIDTH - sum(widths) - 2 * (len(widths) - 1))  # names give way, numbers do not
        lines = []
        for number, name, *cells in [rows[0], ["-" * width for width in widths], *rows[1:]]:
            if len(name) > widths[1]:
                name = name[: widths[1] - 3] + "..."
            aligned = [cell.rjust(width) for cell, width in zip(cells, widths[2:], strict=True)]
            lines.append("  ".join([number.rjust(widths[0]), name.ljust(widths[1]), *aligned]).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The plan as a card of a notebook: the recommendation in words, and the table folded away."""
        pieces = [notebook.paragraph(line) for line in self.words().splitlines() if not line.startswith("Not used: ")]
        table = notebook.table(_HEAD, self.rows())
        pieces.append(notebook.details(f"All {len(self.choices)} choices, best first", table))
        if self.refused:
            refused = notebook.items(f"{name}: {reason}" for name, reason in self.refused.items())
            pieces.append(notebook.details(f"{len(self.refused)} algorithms that cannot run here", refused))
        budget = f"at epsilon {self.facts.epsilon:g}" if self.facts.private else "(not private)"
        return notebook.card(f"Use {self.best.name} {budget}", *pieces)

    def to_dict(self) -> dict[str, object]:
        """Plain values, for a file or a report."""
        return {
            "format": "isthmus-choices-1",
            "facts": self.facts.to_dict(),
            "choices": [choice.to_dict() for choice in self.choices],
            "refused": dict(self.refused),
            "notes": list(self.notes),
            "energy": self.energy and dict(self.energy),
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=1, sort_keys=True, allow_nan=False)


_WIDTH = 120

_HEAD = ("", "algorithm", "noise mult.", "noise norm", "in a score", "numbers", "bytes", "memory", "time", "passes")


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _bytes(value: float) -> str:
    units = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
    power = min(len(units) - 1, int(math.log10(max(value, 1)) // 3))
    return f"{value / 1000**power:.3g} {units[power]}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 360_000:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 3.156e7:,.1f} y"


def _notes_of(facts: Facts, choices: Sequence[Choice]) -> tuple[str, ...]:
    """What a reader of the plan should know."""
    if not choices or not facts.private:
        return ()
    notes, best = [], choices[0]
    whole = best.of is not None and best.of.direct and not best.of.needs
    if whole and len({choice.algorithm for choice in choices}) > 1:
        notes.append(
            "compression does not help here: noise counts only in the directions that rows have, so a compressed "
            "release is no quieter where it counts, and it loses a part of each gradient"
        )
    known = "the majority class" if facts.of_loss.labelled() else "the mean"
    if facts.public is not None and facts.public.labelled:
        use = "the run starts from a model of these rows, and private steps improve on it as far as the budget allows"
        if whole:
            known = "the model of the public rows"
        else:
            use = f"{best.name} cannot start from a model: compare it with one trained on these rows alone, "
            use += "at no privacy cost"
        notes.append(f"{facts.public.rows:,} public rows have labels: {use}")
    columns = facts.d
    if facts.sparse:  # CSR rows have far fewer directions than columns
        columns = min(columns, CONSTANTS.sparse_columns)
    if facts.b < max(CONSTANTS.little_b, columns):
        expect = "no better" if facts.b < CONSTANTS.mean_b else "perhaps no better"
        notes.append(
            f"for {facts.d:,} columns there are too few records at this epsilon (n mu = {facts.b:.3g}): expect results "
            f"{expect} than {known}; more records, a larger epsilon, fewer columns or labelled public rows would help, "
            "another algorithm would not"
        )
    if best.research:
        notes.append(f"{best.name} is for research: no case is known in which it is the best choice")
    return tuple(notes)


__all__ = ["CONSTANTS", "Choice", "Facts", "Plan", "PublicFacts", "RULES", "Rule", "plan"]

_Asked = str | Algorithm[...] | Callable[..., Recipe]


def plan(
    *,
    n: int,
    d: int,
    epsilon: float,
    delta: float | None = None,
    loss: str | Loss = "logistic",
    classes: int = 2,
    public: Any = None,
    smoothness: Any = None,
    algorithms: _Asked | Iterable[_Asked] | None = None,
    **facts: Any,
) -> Plan:
    """Rank the algorithms for public facts; see `Facts` for all of them.

    n, d        records, and columns of x; rows are taken to have norm at most 1, targets to lie in [-1, 1]
    epsilon     the budget; math.inf plans a run that is not private
    public      public rows X or (X, y), or their `PublicFacts`; they give the energy curve that picks k
    smoothness  public component smoothness, one number for each column
    loss        a name, or a subclass of `LinearModel` that says what is public of it
    algorithms  which to plan, by name, as an `Algorithm` or as a recipe function; None: all of the library's

    >>> ranked = plan(n=25_000, d=10_000, epsilon=1.0, sparse=True)
    >>> ranked.best.name, ranked.best.rounds, round(ranked.best.noise_multiplier, 1)
    ('dp_gd (columns and step bought)', 100, 39.8)
    """
    names = [member.name for member in fields(Facts)]
    for name in facts:  # by its name alone: its value may be private rows
        if name not in names:
            meant = "".join(f"{near!r} may be meant; " for near in get_close_matches(name, names, 1))
            raise TypeError(
                f"plan() got an unexpected keyword argument {name!r}: {meant}the facts that it takes are "
                f"{', '.join(names)}; it takes no private rows"
            )
    if smoothness is not None:
        smoothness = tuple(validate.as_tensor("smoothness", smoothness).double().reshape(-1).tolist())
    problem = Facts(
        n, d, epsilon, delta, loss, classes, public=read_public(public, loss, classes), smoothness=smoothness, **facts
    )
    choices, refused = _filled(problem, algorithms)
    ranked, energy = _ranked(problem, choices), None
    if problem.public is not None and problem.public.curve is not None:
        curve = problem.public.curve
        source = f"{curve.n_fit} public rows, judged on {curve.n_holdout} others"
        energy = {"k": list(curve.ks), "captured": list(curve.shares), "chosen": problem.public_size, "source": source}
    return Plan(problem, ranked, refused, _notes_of(problem, ranked), energy)


def _filled(facts: Facts, algorithms: _Asked | Iterable[_Asked] | None) -> tuple[list[Choice], dict[str, str]]:
    """Every asked filling, as a choice or with the reason why not: it may send or look more than is allowed."""
    choices: list[Choice] = []
    refused: dict[str, str] = {}
    for filling in dict.fromkeys(_fillings(facts, algorithms, refused)):
        try:
            choice = filling(facts)
        except Refusal as refusal:
            refused[filling.name] = str(refusal)
            continue
        dims, passes = f"{choice.dims:,}", f"{choice.passes:.3g}"
        if facts.max_dims is not None and choice.dims > facts.max_dims:
            refused[filling.name] = f"it releases {dims} numbers in a round, more than max_dims = {facts.max_dims:,}"
        elif choice.passes > facts.passes * (1 + 1e-9):
            refused[filling.name] = f"it takes {passes} passes, more than max_passes = {facts.max_passes:g}"
        else:
            choices.append(choice)
    return choices, refused


def _fillings(facts: Facts, asked: _Asked | Iterable[_Asked] | None, refused: dict[str, str]) -> Iterator[Variant]:
    """The fillings that were asked for, or of all algorithms that are planned without being named."""
    if asked is None:
        for known in KNOWN.values():
            if known.private != facts.private or known.like is not None or not known.suggestions:
                continue
            if known.left_out:
                refused[known.name] = known.left_out
            else:
                yield from known.suggestions
        return
    if isinstance(asked, (str, Algorithm)) or callable(asked):
        asked = [asked]
    remedy = "give names of algorithms, algorithms or recipe functions, one or a list of them"
    validate.check(isinstance(asked, Iterable), "algorithms", asked, remedy)
    for request in dict.fromkeys(asked):
        name = request if isinstance(request, str) else ""  # of an algorithm, or of one filling of it
        named = KNOWN.get(name.split(" ")[0]) if name else algorithm_of(request)
        fillings = [each for each in named.suggestions if name in ("", named.name, each.name)] if named else []
        if named is None or not (fillings or name in ("", named.name)):
            validate.refuse("algorithms", request, f"choose from {sorted(KNOWN)}, or give an algorithm")
        if not fillings:
            refused[named.name] = named.left_out
        elif named.private == facts.private:
            yield from fillings
        else:
            reason = "it is not private" if facts.private else "it needs a finite epsilon"
            refused[name or named.name] = f"epsilon={facts.epsilon:g} was asked for, and {reason}"


def _ranked(facts: Facts, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Those that the first rule prefers which holds and has something to prefer; then by shortfall, then by noise."""
    order: dict[str, int] = {}

    def named(choice: Choice) -> bool:
        return choice.name in order or choice.algorithm in order

    def rank(choice: Choice) -> tuple[int, float, float]:
        place = order.get(choice.name, order.get(choice.algorithm, len(order)))
        behind = math.inf if choice.shortfall is None else choice.shortfall
        return place, behind, round(choice.margin_noise or 0.0, 9)  # many are at tau, up to their rounding

    for rule in private_rules(facts) if facts.private else free_rules(facts):
        order = {name: rule.prefers.index(name) for name in rule.prefers}
        if any(map(named, choices)):
            break
    ranked = sorted(choices, key=rank)
    for at, choice in enumerate(ranked):
        why = "it was not measured"
        if named(choice):
            why = "the same rule's next"
        elif choice.shortfall is not None:
            why = f"{100 * choice.shortfall:.1f} points behind the best where measured"
        if choice.research:
            why += "; for research only"
        if at == 0 and named(choice):
            why = f"{rule.why} (rule: {rule.name})"
        ranked[at] = replace(choice, why=why)
    return tuple(ranked)


_LEAST = 4
"""Fewer public rows cannot be split into a half that learns a subspace and a half that judges it."""


def read_public(public: Any, loss: str | Loss, classes: int) -> PublicFacts | None:
    """The facts of public rows X, or (X, y).

    At w = 0 the gradient of a record is slope times x; with one output all slopes have one size (classifiers), so the
    curve needs no labels.  For several outputs it does.

    >>> public = read_public(np.eye(8)[[0, 1] * 4], "logistic", 2)
    >>> public.rows, public.labelled, round(public.share(2), 6)
    (8, False, 1.0)
    """
    if public is None or isinstance(public, PublicFacts):
        return public
    X, y, labelled = public, None, isinstance(public, tuple)
    if labelled:
        validate.check(len(public) == 2, "public", f"{len(public)} parts", "give X, or (X, y)")
        X, y = public
    X = as_matrix("public", X)
    rows, columns = X.shape
    if y is not None:
        validate.check(len(y) == rows, "len(public[1])", len(y), f"give one target for each of the {rows} public rows")
    squares = X.multiply(X).mean(0) if is_sparse(X) else to_dense(X).double().square().mean(0)
    moments = tuple(np.asarray(squares, dtype=float).reshape(-1).tolist())
    facts, outputs = PublicFacts(rows, columns, labelled, None, moments), loss_of(loss).outputs(classes)
    if rows < _LEAST or (outputs > 1 and y is None):
        return facts
    order = np.random.default_rng(0).permutation(rows)  # rows may be sorted by label
    fit, rest = (_gradients(X, y, half, outputs) for half in (order[: rows // 2], order[rows // 2 :]))
    if not all(bool(torch.as_tensor(half.norms()).any()) for half in (fit, rest)):
        return facts
    return replace(facts, curve=captured_energy(fit, rest))


def _gradients(X: Matrix, y: object, half: np.ndarray, classes: int) -> Rows:
    """Gradients at w = 0 up to a common factor."""
    part = take(X, torch.from_numpy(half))
    if classes > 1:
        codes = torch.from_numpy(np.unique(np.asarray(y), return_inverse=True)[1].reshape(-1)[half])
        enough = int(codes.max()) < classes
        validate.check(enough, "classes", classes, "give at least as many as the public labels have")
        slopes = torch.full((len(half), classes), 1 / classes, dtype=torch.float64)
        slopes[torch.arange(len(half)), codes] -= 1
        return Outer(part, slopes)
    return Glm(torch.ones(len(half), dtype=torch.float64), part)
