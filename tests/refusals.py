"""Refusals by table: what is given, and the words that say what is wrong with it."""

from collections.abc import Callable
from typing import Any

import pytest

from isthmus import InvalidInput


def refuses(*cases: Any, by: Callable[[Any], Any] = lambda call: call()) -> Callable[[Any, str], None]:
    """A test that each case (given, words) is refused with these words; `by` says what is done with what is given."""

    @pytest.mark.parametrize(("given", "words"), cases)
    def test(given: Any, words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            by(given)

    return test
