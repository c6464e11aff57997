"""Every assumption that a statement prints or a page states has a test of what happens when it is false.

Assumptions are found in the source, where lines are handed to a name with "assum" in it or come from a function of
`WRITERS`, and on the two pages of guarantees.  A new line is looked for in `FALSE`, and this test fails until it is
there: beside the name of the test that shows what the guarantee is worth without it, or, where no programme can make
it false, with the reason.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from isthmus import Logistic, PrivateClassifier, algorithms, minimize, private_score
from isthmus.audit import replay

ROOT = Path(__file__).parents[2]
WRITERS = {"assumptions", "assumed", "claims", "others_parts", "_foreign", "stopped"}
"""Functions that return lines of a statement."""
FALSE = {
    "one record belongs to one person": "a_person_with_three_records_has_three_times_the_bound",
    "nothing about the data was published except": "a_clip_that_was_read_off_the_rows_tells_of_one_of_them",
    "model, sketch, clip, normaliser, number of rounds": "a_clip_that_was_read_off_the_rows_tells_of_one_of_them",
    "what was declared about the data": "bounds_that_were_read_off_the_rows_tell_of_one_of_them",
    "the types, words and ranges that were declared": "bounds_that_were_read_off_the_rows_tell_of_one_of_them",
    "the names of the columns, and the rules that": "a_run_with_leaks_says_so_everywhere",
    "the rows given as public are public": "a_private_row_among_the_public_ones_is_not_protected",
    "the labels of the public rows were used": "a_private_row_among_the_public_ones_is_not_protected",
    "the examples that a sketch learns from are public": "a_sketch_that_learned_from_a_private_row_tells_of_it",
    "the public examples are not private records": "a_sketch_that_learned_from_a_private_row_tells_of_it",
    "the number of records is public": "an_exact_number_of_records_is_told",
    "the number of records of the first call is public": "an_exact_number_of_records_is_told",
    "how many rows have a target is public": "an_exact_number_of_records_is_told",
    "how many test rows there are is public": "an_exact_number_of_records_is_told",
    "nobody has seen what the interrupted run released": "lost_rounds_are_stated",
    "{}, {}: its ledger has what that cost": "lost_rounds_are_stated",
    "the number of steps was fixed before": "the_epsilon_so_far_is_broken_by_stopping_and_that_of_the_plan_is_not",
    "{} of {} planned rounds were made": "the_epsilon_so_far_is_broken_by_stopping_and_that_of_the_plan_is_not",
    "whether a step is taken does not depend on": "the_clipped_sum_is_that_of_gradients_with_zeros",
    "draws records as its event says": "the_poisson_claim_fails_without_the_sampling",
    "gives each record a vector that depends on": "own_sources_and_public_examples_are_stated",
    "maps each record by itself, and states a bound": "a_bound_that_looks_at_the_data_bounds_nothing",
    "keeps every record's share of the sum below": "the_published_map_breaks_its_bound_by_the_number_of_records",
    "hides what it releases as its event says": "half_the_noise_is_noticed",
    "reads released values only": "looks_without_noise_are_refused_beside_a_claim",
    "{}, which is not of this library, gives a record a": "a_loss_in_which_records_meet_moves_more_than_its_bound",
    "{}, which is not of this library, {}": "own_sources_and_public_examples_are_stated",
    "the source of stage {} {}": "own_sources_and_public_examples_are_stated",
    "random layers such as dropout": "a_known_seed_tells_nothing_about_the_masks",
    "the last digits of a record's gradient do not": "a_mean_does_and_its_statement_says_so",
    "the last digits of a record's activations": "records_on_the_kink_stay_where_they_are",
    "what a pass does to an example does not depend on": "pieces_of_a_batch_leave_out_the_same_layers",
    "what other runs release about the same clients is not": "a_clients_own_ledger_holds_over_new_runs",
    "no code between the loader, the layers and the loss": "what_stays_assumed_is_not_seen_and_the_statement_says_so",
    "what collate": "records_that_are_kept_apart_or_cannot_be_told_apart_train_and_the_statement_says_what_is_assumed",
    "training went on from a checkpoint without the ledger": "a_continuation_that_its_ledger_did_not_see_begin_says_so",
    "a record is in one part of the selection": "parts_are_drawn_independently_of_all_else",
    "the model that is measured is public": "a_model_that_remembers_a_row_tells_of_it_in_its_score",
    "the rows that were measured were not trained on": "a_model_that_remembers_a_row_tells_of_it_in_its_score",
    "the model, which is not of this library, predicts": "models_of_others_are_taken_to_predict_row_by_row_and_ours_do",
    "the held-out rows were drawn by": "the_training_covers_figures_of_other_rows_only_where_all_its_noise_is_gaussian",
    "the figures of the test rows are noisy sums": "training_and_figures_together_cost_epsilon",
    "records are independent draws, and few rows": "rows_that_were_shortened_are_noticed",
    "the noise in X'X and in the column scales": "where_it_cannot_be_told_it_says_why",
    "all ranks read the same dataset in the same order": "every_record_is_one_ranks",
    "the reader may know which clients": "two_epsilons_are_stated",
    "whether a client answers, and answers in time": "the_divisor_is_public_whoever_answers",
    "a client is connected once": "a_client_is_one_term_in_the_guarantee",
    "a record, here, is all that one client has": "a_client_moves_the_sum_by_its_bound_whatever_it_sends",
    "no record is with two clients": "the_coins_of_records_are_the_clients_own",
    "the server is trusted": "what_the_server_receives_says_nothing_of_one_client",
    "all {} clients follow the protocol": "a_reader_who_knows_its_own_noise_faces_the_whole",
    "all but at most {}": "no_plan_of_lies_leaves_out_more_than_is_counted",
    "of the {} clients {} follow the protocol": "no_plan_of_lies_leaves_out_more_than_is_counted",
    "the server passes on public keys as they are": "a_client_that_is_shown_another_list_is_alone",
    "adding or removing means that the vector": "the_statement_says_what_it_rests_on",
    "Stopping early because of what was": "the_epsilon_so_far_is_broken_by_stopping_and_that_of_the_plan_is_not",
    "The last digits of a record's gradient": "a_mean_does_and_its_statement_says_so",
    "A model of somebody else's that `private_score`": "models_of_others_are_taken_to_predict_row_by_row_and_ours_do",
    "One record belongs to one person": "a_person_with_three_records_has_three_times_the_bound",
    "Declared bounds, classes, schemas and settings": "bounds_that_were_read_off_the_rows_tell_of_one_of_them",
    "Public rows are public": "a_private_row_among_the_public_ones_is_not_protected",
    "The operating system's random numbers are secret": "noise_that_can_be_computed_again_hides_nothing",
    "Linear models: each record by itself": "records_on_the_kink_of_a_hinge_stay_where_they_are",
    "For networks this is assumed and not proven": "a_mean_does_and_its_statement_says_so",
    "Matrix products": "records_on_the_kink_stay_where_they_are",
    "A loss that is a mean": "a_mean_does_and_its_statement_says_so",
}
"""The beginning of what is assumed, and the name of the test that shows what happens where it is false."""
OUTSIDE = {
    "X25519, HKDF, ChaCha20 and Poly1305 are not broken": "nobody is known to break them",
    "Arithmetic": "the rounding of the processor cannot be switched from here",
}
"""What no programme can make false, and why."""


def words(node: ast.expr) -> str | None:
    """A string in the source, its fields shown as {}."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


Found = tuple[list[str], set[str]]


def taken(*nodes: ast.AST) -> Found:
    """Every sentence in expressions (or functions) that are made into lines, and the names that stand in them."""
    texts, names, inner = [], set(), list(nodes)
    while inner:
        here = inner.pop()
        said = words(here) if isinstance(here, ast.expr) else None
        if said is not None:
            texts.append(said)
        if isinstance(here, ast.Name):
            names.add(here.id)
        children = ast.iter_child_nodes(here)
        inner += [
            child for child in children if not (isinstance(here, ast.JoinedStr) and isinstance(child, ast.Constant))
        ]
    return [text for text in texts if text.count(" ") > 2], names


def handed_over(node: ast.AST) -> list[ast.AST]:
    """What a piece of source makes into assumptions."""

    def is_one(target: ast.AST) -> bool:
        return "assum" in ast.unparse(target).lower()

    if isinstance(node, ast.FunctionDef) and node.name in WRITERS:
        return node.body[1:]  # after its docstring
    if isinstance(node, ast.Assign) and any(map(is_one, node.targets)):
        return [node.value]
    if isinstance(node, ast.AugAssign) and is_one(node.target):
        return [node.value]
    if isinstance(node, ast.Call):
        own = [keyword.value for keyword in node.keywords if keyword.arg and "assum" in keyword.arg]
        own += node.args if isinstance(node.func, ast.Attribute) and is_one(node.func.value) else []
        return own + (node.args[4:5] if ast.unparse(node.func) == "Account" else [])  # its fifth argument
    return []


@dataclass(frozen=True)
class Module:
    """What of a file decides which sentences become lines: names that are set or imported in it, what it hands over."""

    given: dict[str, list[ast.expr]]
    imported: dict[str, Path]
    texts: list[str]
    names: set[str]


def read(path: Path) -> Module:
    given: dict[str, list[ast.expr]] = {}
    imported, handed = {}, []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        handed += handed_over(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isthmus"):
            home = ROOT.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            imported |= {alias.name: home for alias in node.names}
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, ast.Name):
                given.setdefault(target.id, []).append(node.value)
    return Module(given, imported, *taken(*handed))


def in_source() -> Iterator[str]:
    """Sentences that are handed over, and those behind the names that are, looked up where they are set."""
    modules = {path: read(path) for path in (ROOT / "isthmus").rglob("*.py")}
    for path, module in modules.items():
        yield from module.texts
        left, seen = {(path, name) for name in module.names}, set()
        while left:
            where, name = left.pop()
            seen.add((where, name))
            for value in modules[where].given.get(name, []) if where in modules else []:
                if name.isupper() or not isinstance(value, ast.Call | ast.Dict):  # what is computed is no sentence
                    texts, further = taken(value)
                    yield from texts
                    left |= {(where, each) for each in further if each.isupper()} - seen
            if name.isupper() and where in modules and name in modules[where].imported:
                left |= {(modules[where].imported[name], name)} - seen


def on_pages() -> Iterator[str]:
    """What the pages say is assumed: rows of tables, and the paragraphs under "What is assumed"."""
    for line in (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines():
        cells = line.strip("| ").split(" | ")
        if line.startswith("| ") and len(cells) > 1 and "**assumed**" in cells[1]:
            yield cells[0]
    privacy = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    section = privacy[privacy.index("### What is assumed") : privacy.index("## Stopping")]
    yield from (text.rstrip(".") for text in re.findall(r"^(?:- )?\*\*(.+?)\*\*", section, re.M))
    yield from (row.split(" | ")[0].strip("| ") for row in privacy.splitlines() if " | assumed" in row)


def test_every_assumption_has_a_test_of_what_happens_when_it_is_false() -> None:
    texts, known = {*in_source(), *on_pages()}, FALSE | OUTSIDE
    unknown = sorted(text for text in texts if not any(text.startswith(start) for start in known))
    assert not unknown, "say in FALSE which test shows what happens when this is false"
    unused = sorted(start for start in known if not any(text.startswith(start) for text in texts))
    assert not unused, "these lines are assumed no more"


def test_the_tests_that_are_named_are_there() -> None:
    there = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in FALSE.values() if f"def test_{name}(" not in there] == []


# ---------------------------------------------------------------- what happens when they are false

CLIP, STEP, N = 0.5, 1.0, 400
SETTINGS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "step": STEP, "n": N}


def rows(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (n, 4))
    return X, (X[:, 0] > 0).astype(int)


def also(X: np.ndarray, y: np.ndarray, times: int = 1, size: float = 20.0) -> tuple[np.ndarray, np.ndarray]:
    """The rows, and the same long one so many times more: its gradient is as long as the clip.  With size 0 it has no
    gradient, as if it were not there; but there are as many rows, so that both runs draw the same noise.
    """
    return np.vstack([X, np.tile([0.0, 0.0, 0.0, size], (times, 1))]), np.append(y, np.ones(times, dtype=int))


def point(X: np.ndarray, y: np.ndarray, recipe: Any = None, steps: int = 1) -> torch.Tensor:
    """Where the first round leads, with the same noise in all runs: what differs was moved by the rows."""
    recipe = recipe or algorithms.dp_gd(clip=CLIP, **SETTINGS)
    return minimize(Logistic(X, y, classes=(0, 1)), recipe, steps=steps, noise_seed=1).x


def moved(one: torch.Tensor, other: torch.Tensor) -> float:
    """By how many clips the sum was moved."""
    return float((one - other).norm()) * N / (STEP * CLIP)


def test_a_person_with_three_records_has_three_times_the_bound() -> None:
    X, y = rows()
    assert moved(point(*also(X, y, size=0.0)), point(*also(X, y))) <= 1.001
    assert 2.9 < moved(point(*also(X, y, 3, size=0.0)), point(*also(X, y, 3))) <= 3.003


def test_a_clip_that_was_read_off_the_rows_tells_of_one_of_them() -> None:
    """The noise grows with the clip, and the statement is the same: the size of what is released tells the record."""
    X, y = rows()
    found = []
    for pair in (also(X, y, size=0.0), also(X, y, size=2000.0)):
        longest = float(np.linalg.norm(pair[0], axis=1).max())
        recipe = algorithms.dp_gd(clip=longest, **SETTINGS)
        found.append(minimize(Logistic(*pair, classes=(0, 1)), recipe, steps=1, noise_seed=1))
    assert found[0].privacy.nominal == found[1].privacy.nominal
    assert found[1].x.norm() > 100 * found[0].x.norm()


def one_step(X: np.ndarray, y: np.ndarray, **options: Any) -> torch.Tensor:
    """One step of an estimator that buys nothing, with the same noise in all runs."""
    declared = {"n": N, "classes": [0, 1], "bounds": (-1, 1)} | options
    step = {"max_iter": 1, "step": 0.5, "clip": 0.1, "fit_intercept": False, "options": {"output": "last"}}
    return PrivateClassifier(algorithm="dp_gd", noise_seed=0, **step, **declared).fit(X, y)._weights


def test_bounds_that_were_read_off_the_rows_tell_of_one_of_them() -> None:
    X, y = rows()
    allowed = 0.5 * 0.1 / N
    pairs = also(X, y, size=0.0), also(X, y)
    declared = [one_step(*pair) for pair in pairs]
    read = [one_step(*pair, bounds=(pair[0].min(0), pair[0].max(0))) for pair in pairs]
    assert (declared[0] - declared[1]).norm() <= 1.001 * allowed
    assert (read[0] - read[1]).norm() > 3 * allowed


def test_a_private_row_among_the_public_ones_is_not_protected() -> None:
    """The fit starts at a model of the public rows, which nothing hides."""
    X, y = rows()
    pairs, public = (also(X, y, size=0.0), also(X, y, size=1.0)), rows(30)
    apart = [one_step(*pair, public=public) for pair in pairs]
    both = [one_step(*pair, public=also(*public, size=size)) for pair, size in zip(pairs, (0.0, 1.0), strict=True)]
    assert (apart[0] - apart[1]).norm() <= 1.001 * 0.5 * 0.1 / N
    assert (both[0] - both[1]).norm() > 3 * 0.5 * 0.1 / N


def test_a_sketch_that_learned_from_a_private_row_tells_of_it() -> None:
    X, y = rows()

    def subspace(data: tuple[np.ndarray, np.ndarray]) -> Any:
        return algorithms.pdp_sgd(k=1, data=data, clip=CLIP, batch_size=None, **SETTINGS)

    public, sizes = rows(30), (0.0, 20.0)
    apart = [point(*also(X, y, size=size), subspace(public)) for size in sizes]
    both = [point(*also(X, y, size=size), subspace(also(*public, size=size))) for size in sizes]
    assert moved(*apart) <= 1.001 and moved(*both) > 3


def test_an_exact_number_of_records_is_told() -> None:
    X, y = rows()

    def stated(pair: tuple[np.ndarray, np.ndarray], n: Any) -> int | None:
        recipe = algorithms.dp_gd(clip=CLIP, **SETTINGS | {"n": n})
        return minimize(Logistic(*pair, classes=(0, 1)), recipe, steps=1).privacy.n

    assert [stated(pair, "exact") for pair in ((X, y), also(X, y))] == [N, N + 1]
    assert [stated(pair, N) for pair in ((X, y), also(X, y))] == [None, None]


def test_a_model_that_remembers_a_row_tells_of_it_in_its_score() -> None:
    """One row of its training decides over all that are measured; a model that is public moves by one of them."""
    draws = np.random.default_rng(1)
    X, y = draws.uniform(0.4, 0.6, (N, 1)), np.ones(N, dtype=int)
    training = np.array([[0.0], [1.0]]), np.array([0, 1])
    remembers = np.vstack([training[0], [[0.5]]]), np.append(training[1], 0)

    def right(data: tuple[np.ndarray, np.ndarray], measured: int = N) -> float:
        model = KNeighborsClassifier(1).fit(*data)
        figures = private_score(model, X[:measured], y[:measured], epsilon=8.0, noise_seed=1).figures
        return next(figure.value for figure in figures if figure.name == "accuracy")

    assert abs(right(training) - right(training, N - 1)) < 2 / N
    assert right(training) - right(remembers) > 0.3


def test_noise_that_can_be_computed_again_hides_nothing() -> None:
    """Who can draw the noise of a run again takes it away: the record is left, to the last digits."""
    X, y = rows()
    away = (point(*also(X, y, size=0.0)) - point(*also(X, y))) * N / STEP
    assert away.abs().argmax() == 3 and away[:3].abs().max() < 1e-9 and abs(abs(float(away[3])) - CLIP) < 1e-3
    result = minimize(Logistic(X, y, classes=(0, 1)), algorithms.dp_gd(clip=CLIP, **SETTINGS), steps=1, noise_seed=1)
    assert not result.privacy.private


class Balanced(Logistic):
    """A loss that weighs its terms by the balance of the batch."""

    def slopes(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().slopes(z, y) * y.mean().sign()


def test_a_loss_in_which_records_meet_moves_more_than_its_bound() -> None:
    y = np.where(np.arange(41) % 2 == 0, 1, -1)  # one more of the first label
    x = 0.5 * y[:, None] * np.ones((1, 3))

    def run(data: tuple[np.ndarray, np.ndarray]) -> Any:
        objective = Balanced(*data, classes=(-1, 1))
        return minimize(objective, algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=0.5, step=0.1, n=41), steps=2)

    assert any("Balanced, which is not of this library" in line for line in run((x, y)).privacy.assumptions)
    assert replay(run, (x, y), (np.delete(x, 0, 0), np.delete(y, 0)), at=0).ratio > 5
