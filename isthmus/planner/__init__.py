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
from typing import Any

import numpy as np
import torch

from isthmus.algorithms import KNOWN
from isthmus.algorithms.facts import CONSTANTS, Facts, PublicFacts
from isthmus.algorithms.filling import Algorithm, Choice, Refusal, Variant, algorithm_of
from isthmus.algorithms.frank_wolfe import ball_bound, reach, vertex_bound
from isthmus.algorithms.prepared import preferred
from isthmus.base import notebook, validate
from isthmus.base.matrix import Matrix, as_matrix, is_sparse, take, to_dense
from isthmus.core.minimize import Recipe
from isthmus.diagnostics import captured_energy
from isthmus.gradients import Glm, Outer, Rows
from isthmus.objectives.linear import Loss, loss_of
from isthmus.sets import Subspace

_PREPARED = ("dp_gd (moments and step bought)", "dp_gd (columns and step bought)", "dp_gd (step bought)")

SKETCHES = ("dp_comp_minibatch", "rpdp_sgd")


@dataclass(frozen=True)
class Rule:
    """Where `when` holds, the choices named by `prefers` come first, in that order."""

    name: str
    when: Callable[[Facts], bool]
    prefers: Callable[[Facts], tuple[str, ...]]
    why: str


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
    return (f"dp_gd ({preferred(facts)})", *_PREPARED)


PRIVATE_RULES: tuple[Rule, ...] = (
    # Where max_dims < parameters, constraint is a Subspace. Supported by Theorem 2.3 (001); python -m lab reproduce
    # 001-figure-5ab: a seventh of the numbers, twice the epochs of SGD
    Rule(
        "known subspace",
        lambda facts: facts.narrow and isinstance(facts.constraint, Subspace),
        _sketch,
        "the set has few dimensions: a sketch that keeps them loses nothing",
    ),
    # Where max_dims < parameters; public rows whose top k <= max_dims directions hold 80 % of the hold-out energy.
    # Supported by Theorem 6 (004); docs/planner.md, low rank
    Rule(
        "public directions",
        lambda facts: facts.narrow and _public_directions(facts),
        lambda facts: ("pdp_sgd", *_sketch(facts)),
        "public gradients lie in few directions, and only a few numbers may be released",
    ),
    # Where max_dims < parameters; public M_j (or public rows); CSR and max_dims >= 500, or n > 10,000 and n mu >= 8 d.
    # Supported by lab/studies/private_tables.py: IMDB .833 with word ranks, sketches .759; lending R2 .464 against .417
    Rule(
        "public frequencies",
        lambda facts: facts.narrow and facts.component_smoothness is not None and _many_blocks(facts),
        lambda facts: ("dp_skgd", *_sketch(facts)),
        "many numbers or records, and public facts say which columns matter",
    ),
    # Where max_dims < parameters. Supported by lab/studies/private_tables.py: a9a .839 with m = 50, blocks .828, codes
    # .825
    Rule(
        "few numbers",
        lambda facts: facts.narrow,
        _sketch,
        "only a few numbers may be released: a new sketch in every round sees all columns in the end",
    ),
    # Where an l1 ball, simplex or hull with radius * |x_ij| <= 5 where the bound of DP-FW is below half of DP-GD's.
    # Supported by 2 h (2r)^2 / (T + 2) + C r ln(2d) sqrt(T) / (n mu) < C R sqrt(d) / (2 n mu); docs/planner.md, l1 ball
    Rule(
        "small polytope",
        _small_polytope,
        lambda facts: ("dp_fw",),
        "the set is small and has corners: choosing one costs ln d, noise in every direction costs sqrt(d)",
    ),
    # Where sparsity is given, no polytope, n mu < 2 d; n mu < 10 d where at most d / 20 coefficients matter. Supported
    # by docs/planner.md, sparse truth
    Rule(
        "few coefficients",
        _few_coefficients,
        lambda facts: ("compressive_dp_sgd (selection)",),
        "few coefficients matter: choosing them costs ln d, noise on all of them costs sqrt(d)",
    ),
    # Where public M_j that differ by 100 or more, and columns may not be rescaled (set, penalty or scale='none').
    # Supported by 003-uneven-columns: .014 of the loss left, DP-GD .157; docs/planner.md, uneven columns
    Rule(
        "uneven columns",
        lambda facts: (not facts.free or facts.scale == "none") and facts.smoothness is not None and _uneven(facts),
        lambda facts: ("dp_cd",),
        "columns have very different scales and may not be rescaled: each gets a step of its own",
    ),
    # Where max_passes < 10 (moments or X'X bought), < 50 (else). Supported by docs/planner.md, few passes: a9a .840 in
    # one pass, all records .764
    Rule(
        "few passes",
        _few_passes,
        lambda facts: (f"dp_gd ({preferred(facts)})", "dp_sgd") if "statistics" in preferred(facts) else ("dp_sgd",),
        "only a few passes are allowed: with batches, each pass makes a hundred steps",
    ),
    # Where else. Supported by lab/studies/private_tables.py and docs/planner.md, prepared descent
    Rule(
        "prepared descent",
        lambda facts: True,
        _default,
        "scale and step of the columns, not noise, hold plain descent back, and a small share of the budget buys them",
    ),
)

FREE_RULES: tuple[Rule, ...] = (
    # Where max_dims < parameters. Supported by python -m lab reproduce 001-figure-1d-3c-3d: .873 with a twentieth of
    # the numbers, SGD .874, memoryless .857
    Rule(
        "few numbers",
        lambda facts: facts.narrow,
        lambda facts: ("comp_sgd", "comp_gd") if facts.max_passes is not None else ("comp_gd", "comp_sgd"),
        "only a few numbers may be sent, and what a sketch loses is sent later",
    ),
    # Where max_passes < 50. Supported by docs/planner.md, few passes
    Rule(
        "few passes",
        lambda facts: facts.max_passes is not None and facts.max_passes < CONSTANTS.few_passes_unscaled,
        lambda facts: ("sgd", "comp_sgd"),
        "only a few passes are allowed: with batches, each pass makes many steps",
    ),
    # Where constraint is an l1 ball, simplex or hull with radius * |x_ij| <= 5. Supported by python -m lab reproduce
    # 001-compfw-convex: away steps end 10^6 times below plain ones after 200 rounds
    Rule(
        "polytope",
        lambda facts: (reach(facts) or float("inf")) <= CONSTANTS.tight,
        lambda facts: ("comp_fw", "gd"),
        "vertices of a small polytope are exact and sparse",
    ),
    # Where else. Supported by python -m lab reproduce 001-figure-1a
    Rule(
        "plain descent",
        lambda facts: True,
        lambda facts: ("gd", "sgd", "comp_sgd"),
        "no privacy was asked for, so the plain method is best",
    ),
)


def place_of(choice: Choice, order: Mapping[str, int]) -> int | None:
    """Where a rule's order has this choice, by its full name or by its algorithm's."""
    return order.get(choice.name, order.get(choice.algorithm))


RULES = (*PRIVATE_RULES, *FREE_RULES)


FORMAT = "isthmus-choices-1"
"""What the JSON of a plan says that it is."""


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
        names = sorted({choice.algorithm for choice in self.choices})
        why = f" (this one cannot run here: {'; '.join(reasons)})" if reasons else ""
        validate.refuse("algorithm", name, f"choose one of {names}{why}")

    def words(self) -> str:
        """What is recommended, what it costs, why, and what was left out."""
        facts, best = self.facts, self.best
        budget = f"epsilon {facts.epsilon:g}, delta {facts.delta:.3g}" if facts.private else "no privacy"
        lines = [
            f"{facts.n:,} records, {facts.d:,} columns, {facts.loss_name} loss, {budget}.",
            f"Use {best.name}: {best.why}.",
            f"It needs {best.rounds:,} rounds ({_short(best.passes)} passes over the data): about "
            f"{_time(best.seconds)} on one core, and {_bytes(best.memory)} of memory besides the data (estimates).",
        ]
        if best.private and best.noise_multiplier is not None:
            lines.append(_noise(best))
        lines.append(f"Evidence: {best.evidence}.")
        lines += [f"Note: {note}." for note in self.notes]
        lines += [f"Not used: {name} ({reason})." for name, reason in self.refused.items()]
        return "\n".join(lines)

    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        return [[str(i), *_row(choice)] for i, choice in enumerate(self.choices, 1)]

    def table(self) -> str:
        """The choices, best first, aligned and at most 120 columns wide."""
        head = [*HEAD]
        rows = self.rows()
        widths = [max(len(line[j]) for line in [head, *rows]) for j in range(len(head))]
        # names give way, numbers do not
        widths[1] = min(widths[1], _WIDTH - sum(widths) + widths[1] - 2 * (len(head) - 1))
        rows = [[row[0], _cut(row[1], widths[1]), *row[2:]] for row in rows]

        def line(cells: list[str]) -> str:
            padded = [c.ljust(w) if j == 1 else c.rjust(w) for j, (c, w) in enumerate(zip(cells, widths, strict=True))]
            return "  ".join(padded).rstrip()

        return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, rows)])

    def _repr_html_(self) -> str:
        """The plan as a card of a notebook: the recommendation in words, and the table folded away."""
        best, facts = self.best, self.facts
        title = f"Use {best.name}" + (f" at epsilon {facts.epsilon:g}" if facts.private else " (not private)")
        lines = [line for line in self.words().splitlines() if not line.startswith("Not used: ")]
        refused = notebook.items(f"{name}: {reason}" for name, reason in self.refused.items())
        return notebook.card(
            title,
            *map(notebook.paragraph, lines),
            notebook.details(f"All {len(self.choices)} choices, best first", notebook.table(HEAD, self.rows())),
            notebook.details(f"{len(self.refused)} algorithms that cannot run here", refused) if self.refused else "",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file or a report."""
        return {
            "format": FORMAT,
            "facts": self.facts.to_dict(),
            "choices": [choice.to_dict() for choice in self.choices],
            "refused": dict(self.refused),
            "notes": list(self.notes),
            "energy": None if self.energy is None else dict(self.energy),
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=1, sort_keys=True, allow_nan=False)


_WIDTH = 120

HEAD = ("", "algorithm", "noise mult.", "noise norm", "in a score", "numbers", "bytes", "memory", "time", "passes")


def _row(choice: Choice) -> list[str]:
    star = " *" if choice.research else ""
    return [
        choice.name + star,
        _short(choice.noise_multiplier),
        _short(choice.noise_norm),
        _short(choice.margin_noise),
        _count(choice.dims),
        _bytes(choice.bytes),
        _bytes(choice.memory),
        _time(choice.seconds),
        _short(choice.passes),
    ]


def _noise(best: Choice) -> str:
    sentence = f"Noise multiplier {_short(best.noise_multiplier)}"
    if best.noise_norm is not None:
        sentence += f"; noise of length {_short(best.noise_norm)} in an update of {best.dims:,} numbers"
    if best.margin_noise is not None:
        sentence += f"; in the end at most {_short(best.margin_noise)} of noise in the score of a row of length 1"
    return sentence + "."


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 3] + "..."


def _count(value: int) -> str:
    return f"{value:,}" if value < 10**7 else f"{value:.2g}"


def _bytes(value: float) -> str:
    units = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
    power = 0 if value < 1 else min(len(units) - 1, int(math.log10(value) // 3))
    return f"{value / 1000**power:.3g} {units[power]}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    years = seconds / 3.156e7
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{years:,.1f} y"


def notes_of(facts: Facts, choices: Sequence[Choice]) -> tuple[str, ...]:
    """What a reader of the plan should know."""
    if not choices or not facts.private:
        return ()
    notes = []
    best = choices[0]
    whole = best.of is not None and best.of.direct and not best.of.needs
    if whole and len({choice.algorithm for choice in choices}) > 1:
        notes.append(
            "compression does not help here: noise counts only in the directions that rows have, so a compressed "
            "release is no quieter where it counts, and it loses a part of each gradient"
        )
    start = facts.public is not None and facts.public.labelled
    if start:
        notes.append(_labelled(facts, best, whole))
    if (expect := _expectation(facts)) is not None:
        than = "the model of the public rows" if start and whole else _trivial(facts)
        notes.append(
            f"for {facts.d:,} columns there are too few records at this epsilon (n mu = {facts.b:.3g}): expect results "
            f"{expect} than {than}; more records, a larger epsilon, fewer columns or labelled public rows would help, "
            "another algorithm would not"
        )
    if best.research:
        notes.append(f"{best.name} is for research: no case is known in which it is the best choice")
    return tuple(notes)


def _trivial(facts: Facts) -> str:
    """What is predicted without any column."""
    return "the majority class" if facts.of_loss.labelled() else "the mean"


def _labelled(facts: Facts, best: Choice, whole: bool) -> str:
    """What becomes of labelled public rows."""
    assert facts.public is not None
    used = "the run starts from a model of these rows, and private steps improve on it as far as the budget allows"
    unused = (
        f"{best.name} cannot start from a model: compare it with one trained on these rows alone, at no privacy cost"
    )
    return f"{facts.public.rows:,} public rows have labels: {used if whole else unused}"


def _expectation(facts: Facts) -> str | None:
    """What to say where n mu is too small; CSR rows have far fewer directions than columns."""
    columns = min(facts.d, CONSTANTS.sparse_columns) if facts.sparse else facts.d
    least, enough = CONSTANTS.nothing_b
    if facts.b < max(least, columns):
        return "no better"
    return "little better" if facts.b < max(enough, 3 * columns) else None


def _energy_of(facts: Facts) -> dict[str, Any] | None:
    """The public energy curve, with the k that was chosen from it."""
    if facts.public is None or facts.public.curve is None:
        return None
    curve = facts.public.curve
    return {
        "k": list(curve.ks),
        "captured": list(curve.shares),
        "chosen": facts.public_size,
        "source": f"{curve.n_fit} public rows, judged on {curve.n_holdout} others",
    }


__all__ = ["CONSTANTS", "Choice", "Facts", "Plan", "PublicFacts", "RULES", "Rule", "plan"]

_Asked = str | Algorithm[Any] | Callable[..., Recipe]


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
    _check_names(facts)
    if smoothness is not None:
        smoothness = tuple(validate.as_tensor("smoothness", smoothness).double().reshape(-1).tolist())
    problem = Facts(
        n, d, epsilon, delta, loss, classes, public=read_public(public, loss, classes), smoothness=smoothness, **facts
    )
    choices, refused = _filled(problem, algorithms)
    rule, order = _first_rule(problem, choices)
    ranked = sorted(choices, key=lambda choice: _rank(choice, order))
    explained = tuple(replace(choice, why=_why(choice, ranked, rule, order)) for choice in ranked)
    return Plan(problem, explained, refused, notes_of(problem, explained), _energy_of(problem))


def _check_names(facts: Iterable[str]) -> None:
    """Refuse a fact that there is none of, by its name alone: its value may be private rows."""
    names = [member.name for member in fields(Facts)]
    for name in facts:
        if name not in names:
            nearest = get_close_matches(name, names, 1)
            meant = f"{nearest[0]!r} may be meant; " if nearest else ""
            raise TypeError(
                f"plan() got an unexpected keyword argument {name!r}: {meant}the facts that it takes are "
                f"{', '.join(names)}; it takes no private rows"
            )


def _filled(facts: Facts, algorithms: _Asked | Iterable[_Asked] | None) -> tuple[list[Choice], dict[str, str]]:
    """Every asked filling, as a choice or with the reason why not."""
    choices: list[Choice] = []
    refused: dict[str, str] = {}
    for filling in dict.fromkeys(_fillings(facts, algorithms, refused)):
        try:
            choices.append(_within(facts, filling(facts)))
        except Refusal as refusal:
            refused[filling.name] = refusal.reason
    return choices, refused


def _fillings(facts: Facts, asked: _Asked | Iterable[_Asked] | None, refused: dict[str, str]) -> Iterator[Variant]:
    """The fillings that were asked for, or of all algorithms that are planned without being named."""
    if asked is None:
        for candidate in KNOWN.values():
            if candidate.private == facts.private and candidate.like is None and candidate.fillings:
                if candidate.left_out:
                    refused[candidate.name] = candidate.left_out
                else:
                    yield from candidate.fillings
        return
    requests: list[_Asked] = [asked] if isinstance(asked, (str, Algorithm)) or callable(asked) else []
    if not requests:
        remedy = "give names of algorithms, algorithms or recipe functions, one or a list of them"
        validate.check(isinstance(asked, Iterable), "algorithms", asked, remedy)
        requests = list(asked)  # type: ignore[arg-type]
    for request in dict.fromkeys(requests):
        named, fillings = _named(request)
        if not fillings:
            refused[named.name] = named.left_out
        elif named.private != facts.private:
            reason = "it is not private" if facts.private else "it needs a finite epsilon"
            name = request if isinstance(request, str) else named.name
            refused[name] = f"epsilon={facts.epsilon:g} was asked for, and {reason}"
        else:
            yield from fillings


def _named(request: _Asked) -> tuple[Algorithm[Any], tuple[Variant, ...]]:
    """An algorithm, by its name or that of one filling, as it is or as a recipe function; and the fillings meant."""
    if not isinstance(request, str):
        return algorithm_of(request), algorithm_of(request).fillings
    named, found = KNOWN.get(request.split(" ")[0]), list[Variant]()
    if named is not None:
        found = [filling for filling in named.fillings if request in (named.name, filling.name)]
    if named is None or not (found or request == named.name):
        validate.refuse("algorithms", request, f"choose from {sorted(KNOWN)}, or give an algorithm")
    return named, tuple(found)


def _within(facts: Facts, choice: Choice) -> Choice:
    """Refuse what sends more numbers, or looks more often, than is allowed."""
    if facts.max_dims is not None and choice.dims > facts.max_dims:
        raise Refusal(f"it releases {choice.dims:,} numbers in a round, more than max_dims = {facts.max_dims:,}")
    if facts.max_passes is not None and choice.passes > facts.max_passes * (1 + 1e-9):
        raise Refusal(f"it takes {choice.passes:.3g} passes, more than max_passes = {facts.max_passes:g}")
    return choice


def _first_rule(facts: Facts, choices: list[Choice]) -> tuple[Rule, dict[str, int]]:
    """The first rule that holds and has something to prefer, with its order."""
    rules = PRIVATE_RULES if facts.private else FREE_RULES
    for rule in rules:
        if rule.when(facts):
            order = {name: i for i, name in reversed(list(enumerate(rule.prefers(facts))))}
            if any(place_of(choice, order) is not None for choice in choices):
                return rule, order
    return rules[-1], {}


def _rank(choice: Choice, order: dict[str, int]) -> tuple[int, float, float]:
    place = place_of(choice, order)
    behind = math.inf if choice.shortfall is None else choice.shortfall
    noise = round(choice.margin_noise or 0.0, 9)  # many are at tau, up to their rounding
    return len(order) if place is None else place, behind, noise


def _why(choice: Choice, ranked: list[Choice], rule: Rule, order: dict[str, int]) -> str:
    named = place_of(choice, order) is not None
    if choice is ranked[0] and named:
        return f"{rule.why} (rule: {rule.name})"
    place = "it was not measured"
    if named:
        place = "the same rule's next"
    elif choice.shortfall is not None:
        place = f"{100 * choice.shortfall:.1f} points behind the best where measured"
    return f"{place}; for research only" if choice.research else place


_MIN_PUBLIC_ROWS = 4
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
    labelled = isinstance(public, tuple)
    if labelled:
        validate.check(len(public) == 2, "public", f"{len(public)} parts", "give X, or (X, y)")
    X = as_matrix("public", public[0] if labelled else public)
    y = public[1] if labelled else None
    rows, columns = X.shape
    if y is not None:
        validate.check(len(y) == rows, "len(public[1])", len(y), f"give one target for each of the {rows} public rows")
    facts = PublicFacts(rows, columns, labelled, None, _moments(X))
    outputs = loss_of(loss).outputs(classes)
    if rows < _MIN_PUBLIC_ROWS or (outputs > 1 and y is None):
        return facts
    order = np.random.default_rng(0).permutation(rows)  # rows may be sorted by label
    halves = (order[: rows // 2], order[rows // 2 :])
    fit, rest = (_gradients(X, y, half, outputs) for half in halves)
    if not _alive(fit) or not _alive(rest):
        return facts
    return replace(facts, curve=captured_energy(fit, rest))


def _moments(X: Matrix) -> tuple[float, ...]:
    squares = X.multiply(X).mean(0) if is_sparse(X) else to_dense(X).double().square().mean(0)
    return tuple(np.asarray(squares, dtype=float).reshape(-1).tolist())


def _gradients(X: Matrix, y: Any, half: Any, classes: int) -> Rows:
    """Gradients at w = 0 up to a common factor."""
    part = take(X, torch.from_numpy(half))
    if classes > 1:
        codes = torch.from_numpy(np.unique(np.asarray(y), return_inverse=True)[1].reshape(-1)[half])
        validate.check(
            int(codes.max()) < classes, "classes", classes, "give at least as many as the public labels have"
        )
        slopes = torch.full((len(half), classes), 1 / classes, dtype=torch.float64)
        slopes[torch.arange(len(half)), codes] -= 1
        return Outer(part, slopes)
    return Glm(torch.ones(len(half), dtype=torch.float64), part)


def _alive(rows: Rows) -> bool:
    return bool(torch.as_tensor(rows.norms()).max() > 0)
