"""Trees on disk: what is read is what was written, and damage is refused."""

import enum
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from isthmus import ConvexSet, InvalidInput, L1Ball
from isthmus.base import class_registry, storage
from isthmus.core.wire import StageOutput, State
from isthmus.lifts import Lifted

NOTES = storage.Format("notes-2", "the test", sealed=("notes-1",), unsealed=("notes-0",))


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Halfline(L1Ball):
    """A set that is none of the library's."""

    sign: int = 1


def through(value: Any, path: Path) -> Any:
    NOTES.write(path, {"value": value})
    return NOTES.read(path, dict)["value"]


SIMPLE = (None, True, -3, 2**80, 0.1, math.inf, -math.inf, "é\n@", [], (), {})
NESTED = ([1, (2.0, [None])], {"a": {"@tuple": 1}}, {1: "x", None: (1,), (1, 2): 3.5, "@dict": 0})


@pytest.mark.parametrize("value", [*SIMPLE, *NESTED, L1Ball(2.0), Halfline(3.0, sign=-1)], ids=repr)
def test_values_come_back_as_they_were(value: Any, tmp_path: Path) -> None:
    restored = through(value, tmp_path / "a")
    assert (repr(restored), type(restored)) == (repr(value), type(value))


def test_scalars_and_names_come_back_plain(tmp_path: Path) -> None:
    assert math.isnan(through(math.nan, tmp_path / "a")) and math.isnan(through(np.float64("nan"), tmp_path / "a"))
    given = (np.int32(4), np.bool_(True), np.str_("a"), Colour.RED)
    assert [through(x, tmp_path / "a") for x in given] == [4, True, "a", "red"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_keep_their_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    given = (torch.randn(shape) * 9).to(dtype)
    restored = through({"a/b": given, "a": {"b": given + given}}, tmp_path / "a")
    for first, second in ((restored["a/b"], given), (restored["a"]["b"], given + given)):
        assert first.dtype == dtype and first.shape == shape and torch.equal(first, second)
    assert torch.equal(through(torch.ones(3, 4).T, tmp_path / "a"), torch.ones(4, 3))


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3)[:, ::-1], np.array(["a", "bc"]), np.array([1, "x"], object)]
)
def test_arrays_stay_arrays(array: np.ndarray, tmp_path: Path) -> None:
    restored = through(array, tmp_path / "a")
    assert isinstance(restored, np.ndarray) and restored.dtype == array.dtype and (restored == array).all()


@pytest.mark.parametrize("value", [print, {1, 2}, object(), np.array([print]), np.ones(1, complex), [b"x"]])
def test_what_cannot_be_stored_is_refused_with_its_place_and_leaves_no_file(value: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="value/deep"):
        NOTES.write(tmp_path / "a", {"value": {"deep": value}})
    assert list(tmp_path.iterdir()) == []


def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    NOTES.write(path, {"x": [1, math.nan], "w": torch.arange(3.0)})
    good = path.read_bytes()
    for at in range(len(good)):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            path.write_bytes(bad)
            with pytest.raises(InvalidInput, match="path="):
                NOTES.read(path, dict)


def test_other_files_are_refused_and_earlier_formats_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(InvalidInput, match="written by the test; this one is missing"):
        NOTES.read(path, dict)
    tree, tensors = json.dumps({"w": {"@tensor": "w"}, "x": {"@list": [1]}}), {"w": torch.ones(2)}
    for name, seal, read in (
        ("notes-0", {}, True),
        ("notes-1", {"seal": storage._seal(tree, tensors)}, True),
        ("notes-1", {}, False),
        ("notes-2", {}, False),
        ("other", {"seal": storage._seal(tree, tensors)}, False),
    ):
        save_file(tensors, path, metadata={"format": name, "tree": tree, **seal})
        if read:
            assert NOTES.read(path, dict)["x"] == [1]
            continue
        with pytest.raises(InvalidInput, match="another kind"):
            NOTES.read(path, dict)


def test_a_file_names_only_classes_that_are_there() -> None:
    for name in ("L1Ball", "isthmus.sets.balls:L1Ball"):
        assert class_registry.imported(ConvexSet, name) is L1Ball
    assert class_registry.imported(ConvexSet, class_registry.address(Halfline)) is Halfline
    for name in ("os:system", "builtins:print", "Format", "this.module:Imports", f"{__name__}:Colour"):
        with pytest.raises(InvalidInput, match="import the module that defines this"):
            class_registry.imported(ConvexSet, name)
    for tree in ({"@set": "os:system", "fields": {}}, {"@other": {}}):
        with pytest.raises(InvalidInput, match="path="):
            storage._decode(tree, {})


def test_states_of_the_first_format_are_read(tmp_path: Path) -> None:
    lifted = [{"direction": {"@tensor": "d"}, "point": None}]
    tree = {
        "w": {"@tensor": "w"},
        "t": 4,
        "held": {"a": {"@held": {"w": None, "lifted": lifted}}},
        "update": {"v": [1]},
    }
    tensors = {"w": torch.ones(2), "d": torch.zeros(2)}
    save_file(tensors, tmp_path / "a", metadata={"format": "isthmus-state-1", "tree": json.dumps(tree)})
    state = State.load(tmp_path / "a")
    assert (state.t, state.update, state.w.tolist()) == (4, {"v": [1]}, [1.0, 1.0])
    assert torch.equal(state.held["a"].lifted[0].direction, tensors["d"])
    again = State(w=torch.ones(1), held={"b": StageOutput(torch.ones(1), (Lifted(torch.ones(1), torch.zeros(1)),))})
    again.save(tmp_path / "b")
    read = State.load(tmp_path / "b").held["b"]
    assert isinstance(read, StageOutput) and torch.equal(read.lifted[0].point, torch.zeros(1))


@pytest.mark.parametrize("dtype", ["<U2", "<M8[s]", "<U0"])
def test_texts_are_read_as_they_are_or_not_at_all(dtype: str) -> None:
    """A width that cuts them would make two labels one, and an absurd one would fill the memory."""
    with pytest.raises(InvalidInput):
        storage._decode({"@array": ["cat", "car"], "dtype": dtype}, {})
    wide = storage._decode({"@array": ["cat", "car"], "dtype": "<U400000000"}, {})
    assert wide.tolist() == ["cat", "car"] and wide.nbytes < 100


def test_a_bottomless_file_is_refused(tmp_path: Path) -> None:
    text, tensors = '{"a":' + "[" * 20_000 + "]" * 20_000 + "}", {"w": torch.zeros(1)}
    facts = {"format": "notes-1", "tree": text, "seal": storage._seal(text, tensors)}
    save_file(tensors, tmp_path / "deep", metadata=facts)
    with pytest.raises(InvalidInput):
        storage.Format("notes-1", "the test").read(tmp_path / "deep", dict)
