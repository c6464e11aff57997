"""The package as a whole: listed names, documented theorems, and constants that are constants."""

from __future__ import annotations

import inspect
import re

import pytest

from isthmus import theory

FUNCTIONS = [name for name in theory.__all__ if inspect.isfunction(getattr(theory, name))]
WITH_CONSTANT = [name for name in FUNCTIONS if "constant" in inspect.signature(getattr(theory, name)).parameters]
SOURCES = "Theorem|Lemma|Corollary|Table|Proposition|[Ss]ection|Algorithm|Appendix|paper|et al|neighbouring"


def test_every_name_is_in_the_table() -> None:
    assert theory.__all__ == sorted(theory.__all__, key=lambda name: (name[0].islower(), name))
    assert not [name for name in theory.__all__ if not re.search(rf"\b{name}\b", theory.__doc__ or "")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_its_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(theory, name)) or "")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_names_its_source(name: str) -> None:
    assert re.search(SOURCES, inspect.getdoc(getattr(theory, name)) or "")


@pytest.mark.parametrize("name", WITH_CONSTANT)
def test_unknown_constants_are_1_and_said(name: str) -> None:
    function = getattr(theory, name)
    assert inspect.signature(function).parameters["constant"].default == 1.0
    known = {"convex_fw_rate", "dimension_at", "rounds_until_full"}
    assert name in known or "up to a constant" in (inspect.getdoc(function) or "")
