"""A bounded part of the fuzzing: real inputs of every entrance, and changes of them; `make fuzz` goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuzz import edits, shapes
from fuzz.mutations import inputs
from fuzz.target import Broken, Target, check, place_of
from fuzz.targets import TARGETS
from isthmus.base.validate import InvalidInput

CASES = 120
BYTES = [name for name in TARGETS if name not in shapes.LAWS]


@pytest.mark.parametrize("name", BYTES)
def test_changed_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    before = dict(target.counts)
    for data in inputs(list(target.seeds()), CASES // target.slow, 1, target.words):
        try:
            target(data)
        except Exception as error:
            file = tmp_path / "input"
            file.write_bytes(data)
            pytest.fail(f"{place_of(error)}: {error}\nmake fuzz REPLAY='{name}:{file}'", pytrace=False)
    cases, refused = (target.counts[key] - before[key] for key in ("cases", "refused"))
    assert cases > refused  # some inputs are taken: the seeds at least


@pytest.mark.parametrize("name", shapes.LAWS)
def test_laws_hold_for_any_shape(name: str) -> None:
    shapes.LAWS[name]()


# ---------------------------------------------------------------- the harness can fail


def test_what_is_not_documented_is_a_crash() -> None:
    def run(data: bytes) -> None:
        if data == b"law":
            check(False, "broken")
        raise {b"a": KeyError("a"), b"b": InvalidInput("b=1 is not allowed"), b"c": InvalidInput("")}[data]

    target = Target("test", run, lambda: [b"b"])
    target(b"b")
    with pytest.raises(KeyError):
        target(b"a")
    with pytest.raises(Broken, match="says nothing"):
        target(b"c")
    with pytest.raises(Broken, match="broken"):
        target(b"law")
    assert target.counts == {"cases": 4, "refused": 2}


def test_memory_that_ran_out_is_a_crash_even_where_it_was_refused() -> None:
    def run(data: bytes) -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise InvalidInput("data=1 is not allowed") from error

    with pytest.raises(Broken, match="memory"):
        Target("test", run, lambda: [b""])(b"")


def test_a_script_changes_a_tree_and_is_always_one() -> None:
    base = b'{"a": [1, {"b": null}], "c": "text"}'
    distinct: set[Any] = {
        edits.text_of(edits.SCRIPT + bytes([0, k, 0, how]), [base]) for k in range(7) for how in range(25)
    }
    assert len(distinct) > 40
    assert edits.text_of(b"plain", [base]) == b"plain"
