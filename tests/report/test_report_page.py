"""The report as HTML text: what it says, what it leaves out, and that it is well made; no browser is needed."""

import copy
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_cases import CASES, HOSTILE, full, hostile, record

from isthmus.report import Record, render, write
from isthmus.report.page import _best_guess

VOID = {"meta", "link", "br", "img", "input", "hr"}
SHAPES = {"path", "circle", "rect"}


class Page(HTMLParser):
    """Elements with their attributes, text by section, and whether every element is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, str | None]] = []
        self.words: dict[str | None, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("id") if tag == "section" else None))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SHAPES
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][0] == "style":
            return
        section = next((name for _, name in reversed(self.open) if name), None)
        self.words[section] = f"{self.words.get(section, '')} {data}"

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]

    def text(self, section: str | None = None) -> str:
        words = self.words[section] if section else " ".join(self.words.values())
        return " ".join(words.split())


def page(found: Record) -> Page:
    return Page(render(found))


def changed(**parts: Any) -> Record:
    return Record.from_dict(copy.deepcopy(full()) | parts)


@pytest.mark.parametrize("name", [*CASES, "hostile"])
def test_it_is_complete_in_itself(name: str) -> None:
    found = hostile() if name == "hostile" else record(name)
    text, parsed = render(found), page(found)
    assert len(text.encode()) < 300_000
    assert not {"script", "iframe", "img", "object", "embed", "form", "base"} & {tag for tag, _ in parsed.elements}
    for tag, attrs in parsed.elements:
        assert not any(key.startswith("on") for key in attrs)
        for key in ("src", "href", "action", "data", "srcset", "xlink:href"):
            assert (attrs.get(key) or "#").startswith(("#", "data:")), (tag, attrs)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    policy = next(attrs["content"] for attrs in parsed.all("meta") if "http-equiv" in attrs)
    assert policy is not None and policy.startswith("default-src 'none'")


@pytest.mark.parametrize("name", [*CASES, "hostile"])
def test_its_structure_can_be_followed(name: str) -> None:
    parsed = page(hostile() if name == "hostile" else record(name))
    tags = [tag for tag, _ in parsed.elements]
    assert parsed.all("html") == [{"lang": "en"}]
    assert [tags.count(each) for each in ("h1", "main", "header", "footer", "nav", "title")][:5] == [1] * 5
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    values = [attrs.get("aria-labelledby") for _, attrs in parsed.elements if "aria-labelledby" in attrs]
    assert {each for names in values for each in (names or "").split()} <= set(ids)
    assert {(attrs["href"] or "")[1:] for attrs in parsed.all("a")} <= set(ids)
    assert all(attrs.get("scope") in ("row", "col") for attrs in parsed.all("th"))
    assert tags.count("caption") == tags.count("table")
    for attrs in parsed.all("div"):
        if attrs.get("class") == "scroll":
            assert (attrs["tabindex"], attrs["role"]) == ("0", "region") and attrs["aria-label"]
    charts = [attrs for attrs in parsed.all("svg") if attrs.get("role") == "img"]
    hidden = [attrs for attrs in parsed.all("svg") if attrs.get("aria-hidden") == "true"]
    assert len(charts) + len(hidden) == tags.count("svg") and tags.count("desc") == len(charts)


def test_the_private_run_says_what_it_promises() -> None:
    parsed, found = page(record("full")), full()
    verdict, epsilon = parsed.text("verdict"), found["privacy"]["epsilon"]
    assert "Private: a strong promise, subject to the warnings below" in verdict and "NOT" not in verdict
    for words in ("epsilon 1 ", "delta 0.0001 ", "Adding or removing one record", "with probability 0.25"):
        assert words in verdict
    share = re.search(r"right at most ([\d.]+)% of the time", verdict)
    assert share is not None
    truth = 100 * (math.exp(epsilon) + 1e-4) / (math.exp(epsilon) + 1)
    assert truth <= float(share[1]) <= truth + 0.1
    shown = " ".join(parsed.text("statement").split())
    paragraphs = found["words"].split("\n\n")[:-1]
    assert [part.split("\n")[0] for part in paragraphs].count("What was released:") == 1
    for paragraph in paragraphs:
        assert paragraph.startswith("What was released:") or " ".join(paragraph.split()) in shown
    for row in found["privacy"]["releases"]:
        assert f"{row['what'].capitalize()} {row['times']} times {row['noise']}" in shown
    for assumption in found["privacy"]["assumptions"]:
        assert assumption in parsed.text("statement")
    told, advice = found["warnings"][0].split(": ")  # advice is for whoever trains the next model
    assert told in parsed.text("warnings") and advice == "give classes=[...]" and advice not in parsed.text()


def test_the_best_guess_is_that_of_two_worlds() -> None:
    """Against the pair that attains (epsilon, delta): P = (delta, p e^eps, p), Q = (0, p, p e^eps), and delta for Q."""
    for epsilon, delta in ((0.1, 0.0), (1.0, 1e-5), (3.0, 0.05)):
        p = (1 - delta) / (1 + math.exp(epsilon))
        first, second = (delta, p * math.exp(epsilon), p, 0.0), (0.0, p, p * math.exp(epsilon), delta)
        attained = sum(max(a, b) for a, b in zip(first, second, strict=True)) / 2
        assert _best_guess(epsilon, delta) == pytest.approx(attained, rel=1e-12)


@pytest.mark.parametrize(("name", "reason"), [("seeded", "from a seed"), ("published", "as it was published")])
def test_runs_that_promise_nothing_say_so_first(name: str, reason: str) -> None:
    parsed = page(record(name))
    verdict = parsed.text("verdict")
    assert verdict.startswith("NOT private") and reason in verdict
    assert "epsilon ∞" in verdict and "strong" not in verdict and "at most" not in verdict
    assert "It holds only if" not in parsed.text("statement")


def test_a_run_without_privacy_says_so_first() -> None:
    parsed = page(record("bare"))
    assert parsed.text("verdict").startswith("NOT private The run was made without privacy")
    assert "statement" not in parsed.words and "budget" not in parsed.words


def test_a_large_epsilon_is_called_weak_and_a_large_delta_is_named() -> None:
    copied = copy.deepcopy(full())
    copied["privacy"] |= {"epsilon": 12.0, "nominal": 12.0, "delta": 0.01}
    copied["words"] = copied["words"].replace("epsilon = 1 ", "epsilon = 12 ")
    verdict = page(Record.from_dict(copied | {"warnings": []})).text("verdict")
    assert "the promise is weak" in verdict and "delta is not below 1 in 400" in verdict
    assert "strong promise" not in verdict.replace("is a strong promise, of at most 10", "")


def test_the_number_of_records_stays_private_where_the_statement_keeps_it() -> None:
    assert "Records not published" in page(record("seeded")).text("trained")
    assert "400" not in page(record("seeded")).text()


PARTS = {
    "metrics": ([], "quality", "figures of quality on held-out records"),
    "comparison": ([], "comparison", "a comparison with other methods"),
    "curves": ([], "curves", None),
    "history": ([], "noise", "the length of each step and of its noise"),
    "energy": (None, "energy", "captured energy"),
    "plan": (None, "plan", "a plan"),
    "versions": ({}, "versions", "versions of the software"),
    "warnings": ([], "warnings", None),
    "budget": ({}, "budget", "the privacy spent, by round"),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_not_in_the_record_is_left_out_and_named(part: str) -> None:
    empty, section, name = PARTS[part]
    there, without = page(record("full")), page(changed(**{part: empty}))
    assert section in there.words and section not in without.words
    assert f'href="#{section}"' not in render(changed(**{part: empty}))
    if name is not None:
        assert name in without.text("absent") and name not in there.words.get("absent", "")


def test_the_comparison_shows_this_run_once() -> None:
    mine = full()["metrics"][0]["value"]
    assert render(record("full")).count('class="tag">this run<') == 1
    own = {"name": "mine", "epsilon": 1.0, "score": mine, "metric": "accuracy"}
    again = changed(comparison=[own, {"name": "public rows", "score": 0.5, "epsilon": 0, "metric": "accuracy"}])
    assert render(again).count('class="tag">this run<') == 1 and "mine this run" in page(again).text("comparison")


def test_bars_are_as_long_as_what_they_say() -> None:
    text = render(changed(comparison=[{"name": "a", "score": 0.5, "metric": "accuracy"}, {"name": "b"}]))
    widths = [float(width) for width in re.findall(r'<i class="(?:strong|soft)?" style="width:([\d.]+)%">', text)]
    assert widths[:2] == [50.0, 23.11] and widths[-2:] == [100 * full()["metrics"][0]["value"], 50.0]
    shared = render(changed(budget={"shared": {"epsilon": 4.0, "spent": 1.0}}))
    assert 'style="width:25.00%"></i><i class="" style="width:75.00%"' in shared
    assert 'aria-label="The shared budget: spent so far, by all runs: epsilon 1; left: epsilon 3; the whole' in shared


def test_the_plan_marks_the_row_that_was_run() -> None:
    text = render(record("full"))
    rows = re.findall(r"<tr class=own>.*?</tr>", text[text.index('id="plan"') :])
    assert len(rows) == 1 and "dp_sgd" in rows[0] and ">run<" in rows[0]
    named = changed(model=full()["model"] | {"algorithm": "dp_gd", "choice": "dp_gd (plain)"})
    rows = re.findall(r"<tr class=own>.*?</tr>", render(named)[render(named).index('id="plan"') :])
    assert len(rows) == 1 and "dp_gd (plain)" in rows[0]
    other = changed(model=full()["model"] | {"algorithm": "my_own"})
    assert "my_own, is not one that the plan ranked" in page(other).text("plan")


def test_markup_is_shown_as_text() -> None:
    text = render(hostile())
    assert HOSTILE not in text and "<img" not in text and "{{7*7}}" in text and "49" not in page(hostile()).words[None]
    assert page(hostile()).text().count("<script>document.title") > 60


def test_figures_with_noise_say_how_much() -> None:
    noisy = changed(metrics=[{"name": "accuracy", "value": 0.9, "on": "100 private test rows", "noise": 0.02}])
    words = page(noisy).text("quality")
    assert "90.00% ± 2%" in words and "standard deviation of the noise" in words and "is exact" not in words
    assert "is exact" in page(record("full")).text("quality")


def test_a_figure_stands_beside_its_baseline_in_one_unit() -> None:
    entries = [
        {"name": "recall of yes", "value": 0.612, "on": "100 test rows", "noise": 0.0312},
        {"name": "AUC", "value": 0.9, "on": "100 test rows", "baseline": 0.5, "than": "guessing"},
        {"name": "log loss", "value": None, "on": "100 test rows", "noise": 0.2, "note": "too few rows: noise"},
    ]
    words = page(changed(metrics=entries)).text("quality")
    assert "61.20% ± 3.1%" in words and "90.00% 50.00% guessing" in words and "Too few rows: noise." in words
    card = page(changed(metrics=entries)).text("card")
    assert "AUC 90.00% (guessing: 50.00%)" in card and "Too few rows were measured to tell: log loss" in card


def test_the_model_card_says_what_it_is_for_and_where_it_ends() -> None:
    card = page(record("full")).text("card")
    for part in ("Intended use", "Who answers for it", "Data", "Training", "Guarantee", "Figures", "Limits"):
        assert part in card
    assert "Show which samples to look at first." in card and "The laboratory" in card
    assert "epsilon 1 and delta 0.0001, for adding or removing one record" in card
    assert "It was not stated." in page(record("bare")).text("card")
    assert "None: this model is not private." in page(record("bare")).text("card")
    assert "None: this model is not private." in page(record("seeded")).text("card")


@pytest.mark.parametrize(("strength", "told"), [(14.0, "Expect"), (16.0, "It may be"), (50.0, ""), (None, "")])
def test_it_says_when_there_is_nothing_to_expect(strength: float | None, told: str) -> None:
    parsed = page(changed(model=full()["model"] | {"strength": strength}))
    for section in ("card", "quality"):
        words = parsed.text(section)
        assert (f"{told} no better than always answering the most frequent class" in words) is bool(told)
        assert ("no better than always" in words) is bool(told)
    mean = changed(model=full()["model"] | {"strength": 3.0, "task": "regression"})
    assert "always answering the mean: so few records" in page(mean).text("card")


def test_fields_are_told_by_their_treatment_and_numbers_without_alarm() -> None:
    trained = page(record("full")).text("trained")
    assert "The 30 fields, and how each became numbers" in trained and "number, from 0 to 1 (declared)" in trained
    assert "sums over many records, each with noise added; no value of a single record was released" in trained
    assert "left the data" not in page(record("full")).text()
    assert "sums over many records, as they are." in page(record("bare")).text("trained")


def test_what_a_reader_cannot_do_is_not_asked_of_them() -> None:
    """Advice on how to train the next model, options of a command line among it, is no part of a report."""
    leaks = [
        "the types of 'a' were read from the private rows. Review the schema.toml in the run's folder and give it as "
        "--schema next time, or declare types with [columns], --categories, --bounds, --drop.",
        "the task, regression, was guessed from the target column 'y': give --task regression.",
        "the labels (classes) were read from the data and treated as public; give classes=[...]",
    ]
    copied = copy.deepcopy(full())
    copied["privacy"]["leaks"] = leaks
    head = "Epsilon does NOT cover the following, which was read from the private data without noise:"
    first, *rest = copied["words"].split("\n\n")
    copied["words"] = "\n\n".join([first, "\n".join([head, *(f"- {leak}" for leak in leaks)]), *rest])
    copied["warnings"] = leaks
    parsed = page(Record.from_dict(copied))
    for section in ("verdict", "statement", "warnings", "card"):
        words = parsed.text(section)
        assert "the task, regression, was guessed from the target column 'y'" in words
        assert "--" not in words and "=[" not in words


def test_write_makes_the_file(tmp_path: Path) -> None:
    where = write(record("bare"), tmp_path / "report.html")
    assert where.read_text(encoding="utf-8") == render(record("bare"))
