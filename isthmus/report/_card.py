"""The model card: what the model is for, what it was made of, what it promises and reaches, and where it ends."""

from __future__ import annotations

import re

from isthmus.report import _words
from isthmus.report.record import Record, rounded_up

LITTLE = 100
"""n mu below which the noise leaves next to nothing to learn."""
UNSAID = "It was not stated."
_REMEDY = re.compile(
    r"(?:[.;:]|, or) (?:review|give|declare|name|scale by|use|put|write|see)\b.*", re.IGNORECASE | re.DOTALL
)


def card(record: Record) -> list[tuple[str, list[str]]]:
    """The parts of the card, each with its sentences."""
    parts = [
        ("Intended use", [record.purpose or UNSAID]),
        ("Who answers for it", [record.owner or UNSAID]),
        ("Data", [_data(record)]),
        ("Training", [_training(record)]),
        ("Guarantee", [_guarantee(record)]),
        ("Figures", figures(record) or ["Nothing was measured."]),
        ("Limits", limits(record)),
    ]
    return [
        (name, sentences if name == "Data" else [_words.first_up(sentence) for sentence in sentences])
        for name, sentences in parts
    ]


def figures(record: Record) -> list[str]:
    """The measures that were told, in one unit each, beside what a model without inputs reaches."""
    measures = []
    for metric in record.metrics:
        if metric["value"] is None:
            continue
        measure = f"{metric['name']} {_words.measured(metric['name'], metric['value'])}"
        if metric["baseline"] is not None and metric["than"]:
            measure += f" ({metric['than']}: {_words.measured(metric['name'], metric['baseline'])})"
        measures.append(measure)
    return ["; ".join(measures) + "."] if measures else []


def limits(record: Record) -> list[str]:
    """What the model is not good for, in the record's own figures."""
    sentences = [expectation(record)]
    hidden = [metric["name"] for metric in record.metrics if metric["value"] is None and metric["note"]]
    if hidden:
        sentences.append(f"Too few rows were measured to tell: {', '.join(hidden)}.")
    if not record.metrics:
        sentences.append("How well it does on other records is not known.")
    if record.privacy is not None and record.privacy["leaks"]:
        sentences.append(f"The guarantee does not cover: {'; '.join(fact(leak) for leak in record.privacy['leaks'])}.")
    if record.private:
        sentences.append("Its coefficients carry noise: a single one may be off, even in its sign.")
        sentences.append("It protects the records it was made from, not those that it is applied to.")
    sentences.append("It was made for records like those above; of others nothing is known.")
    return [sentence for sentence in sentences if sentence]


def expectation(record: Record) -> str:
    """An honest line where the records are too few, or epsilon too small, for anything to be learned.

    n mu is of public facts: n the number of records, or its estimate, and mu the Gaussian parameter of the budget.
    """
    strength = record.model["strength"]
    if record.privacy is None or strength is None or strength >= LITTLE:
        return ""
    answer = "the most frequent class" if record.model["task"] == "classification" else "the mean"
    return (
        f"Expect no better than always answering {answer}: so few records at so small an epsilon (n mu = "
        f"{strength:.3g}; {LITTLE} is little) leave the training mostly noise. More records or a larger epsilon help."
    )


def fact(leak: str) -> str:
    """What was read off, without the advice that follows it, which is for whoever trains the next model.

    >>> fact("the classes ['a', 'b'] were read from the target column 'y': give --classes a,b.")
    "the classes ['a', 'b'] were read from the target column 'y'"
    >>> fact("the labels (classes) were read from the data and treated as public; give classes=[...]")
    'the labels (classes) were read from the data and treated as public'
    """
    return _REMEDY.sub("", leak).rstrip(" .")


def _data(record: Record) -> str:
    data = record.data
    hidden = record.privacy is not None and record.privacy["n"] is None
    sizes = ["a number of records that is not published"] if hidden else [f"{data['n']:,} records"] if data["n"] else []
    sizes += [f"{len(data['fields'])} fields"] if data["fields"] else []
    sizes += [f"{data['test_rows']:,} records kept out for the figures"] if data["test_rows"] else []
    sizes += [f"{data['public_rows']:,} public records"] if data["public_rows"] else []
    target = f", to predict \u201c{data['target']}\u201d" if data["target"] else ""
    return f"{data['name']}{': ' + ', '.join(sizes) if sizes else ''}{target}."


def _training(record: Record) -> str:
    model = record.model
    how = f": {model['how']}" if model["how"] else ""
    rounds = f", {model['rounds']:,} rounds" if model["rounds"] else ""
    loss = f"a linear model with {model['loss']} loss" if model["loss"] else f"a model for {model['task']}"
    return f"{loss}, by {model['algorithm']}{how}{rounds}."


def _guarantee(record: Record) -> str:
    if record.privacy is None or not record.private:
        return "None: this model is not private."
    epsilon, delta = rounded_up(record.privacy["epsilon"]), _words.decimals(record.privacy["delta"])
    return f"Differentially private with epsilon {epsilon} and delta {delta}, for {_relation(record)}."


def _relation(record: Record) -> str:
    assert record.privacy is not None
    return {"add-remove": "adding or removing one record", "replace-one": "replacing one record"}.get(
        record.privacy["adjacency"], record.privacy["adjacency"]
    )
