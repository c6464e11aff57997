"""Files that the package wrote and somebody changed: refused, or read as what they say; seals are forged on purpose."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save_file

from fuzz.edits import SCRIPT, scripts, text_of
from fuzz.target import Broken, Target, a_file, check, folder
from isthmus import estimators
from isthmus.base import storage
from isthmus.base.atomic import CannotWrite
from isthmus.core import wire as state
from isthmus.engine import checkpoint
from isthmus.estimators import stored
from isthmus.privacy import Ledger
from isthmus.privacy.event_json import canonical
from isthmus.privacy.ledger import START, _digest
from isthmus.runs.config import Settings
from isthmus.runs.folder import FORMATS, METRICS, SETTINGS, TRAINED, RunFolder, _json, _load_model, digest
from isthmus.runs.measure import Measured

EVENT = {"event": "Gaussian", "noise_multiplier": 40.0}


# ---------------------------------------------------------------- ledgers


def _used(path: Path) -> None:
    """Everything that a ledger says of itself, and a charge more that is counted."""
    ledger = Ledger.open(path)
    before, spent = ledger.rounds(), ledger.spent(1e-5)
    check(spent >= 0 and all(count > 0 for count in before.values()), "a ledger with less than nothing")
    check(len(ledger.records()) > 0 and ledger.remaining() >= 0, "a ledger without records")
    ledger.event()
    with ledger.run({"fuzz": EVENT}) as run:
        run.charge("fuzz")
    again = Ledger.open(path)
    check(again.rounds().get("fuzz", 0) == before.get("fuzz", 0) + 1, "a charge was lost")
    check(again.spent(1e-5) >= spent, "a charge lowered epsilon")


def ledger(data: bytes) -> None:
    """The bytes as they stand; a first byte that is odd leaves a mark of earlier records beside them."""
    path = folder() / "ledger"
    _clear(path)
    if data[:1] and data[0] & 1:
        Path(f"{path}.lock").write_bytes(data[1:90])
    path.write_bytes(data[1:])
    _used(path)


def sealed_ledger(data: bytes) -> None:
    """Lines of JSON whose seals are made right: what is read must hold without them."""
    lines, head = [], START
    if data[:1] == SCRIPT:
        bodies = json.loads(text_of(data, [_records()]))
    else:
        try:
            bodies = [json.loads(text) for text in data.split(b"\n")[:40]]
        except (ValueError, RecursionError):
            return
    for number, body in enumerate(bodies if isinstance(bodies, list) else [bodies], 1):
        try:
            kept = {k: v for k, v in body.items() if k not in ("hash", "torn")}
            record = kept | {"number": number, "previous": head}
            head = _digest(canonical(record).encode())
        except (ValueError, AttributeError, TypeError, RecursionError):
            return
        lines.append(json.dumps(record | {"hash": head}).encode())
    path = folder() / "sealed"
    _clear(path)
    path.write_bytes(b"\n".join(lines) + b"\n")
    _used(path)


def _clear(path: Path) -> None:
    """Nothing of an earlier ledger."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


@cache
def _ledgers() -> tuple[list[bytes], bytes]:
    """A real ledger, as it is and as earlier versions wrote it, and its records without their seals."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ledger"
        made = Ledger.open(path, budget=(2.0, 1e-5), dataset="d")
        with made.run({"main": EVENT, "rare": {"event": "Laplace", "noise_multiplier": 9.0}}, reserve=3) as run:
            run.charge("main")
            run.charge("rare")
        records, database = made.records(), path.read_bytes()
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    bare = [{k: v for k, v in record.items() if k not in ("hash", "previous")} for record in records]
    return [database, lines], b"\n".join(json.dumps(record).encode() for record in bare)


def _marked_ledgers() -> list[bytes]:
    return [mark + file for file in _ledgers()[0] for mark in (b"\0", b"\1")]


def _records() -> bytes:
    return b"[" + _ledgers()[1].replace(b"\n", b",") + b"]"


# ---------------------------------------------------------------- storage


def _forged(data: bytes, number: int) -> bytes:
    """A file of this format with any tree, the tensors of a real one, and a right seal."""
    text = text_of(data, [_trees()[number][1:]]).decode("utf-8", "replace")
    format, tensors = READERS[number][0], load(_stores()[number][1:])
    with tempfile.TemporaryDirectory(dir=folder()) as place:
        header = {"format": format.name, "tree": text, "seal": storage._seal(text, tensors)}
        save_file(tensors, f"{place}/file", metadata=header)
        return Path(place, "file").read_bytes()


def _as_state(path: Path) -> None:
    loaded = state.State.load(path)
    check(isinstance(loaded.w, torch.Tensor) and type(loaded.t) is int, "a state without an iterate")
    loaded.save(path)
    check(state.State.load(path).t == loaded.t, "a state changes on the way through its file")


def _as_checkpoint(path: Path) -> None:
    tree = checkpoint.FORMAT.read(path, dict)
    checkpoint.FORMAT.write(path, tree)


ROWS = np.linspace(-1, 1, 12).reshape(4, 3)


def _as_model(path: Path) -> None:
    loaded = estimators.load(path)
    check(loaded.predict(ROWS).shape == (4,), "a model that does not predict")
    estimators.save(loaded, path)


READERS = [(state.FORMAT, _as_state), (checkpoint.FORMAT, _as_checkpoint), (stored.FORMAT, _as_model)]


def store(data: bytes) -> None:
    """The bytes as they stand, to the reader that the first of them names."""
    _, reader = READERS[(data[0] if data else 0) % 3]
    with a_file("stored", data[1:]) as path:
        reader(path)


def sealed_store(data: bytes) -> None:
    """Any tree under a right seal, to the reader that the first byte names."""
    number = (data[0] if data else 0) % 3
    with a_file("forged", _forged(data[1:], number)) as path:
        READERS[number][1](path)


@cache
def _model() -> bytes:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (60, 3)), np.arange(60) % 2
    fitted = estimators.PrivateClassifier(
        epsilon=1.0, delta=1e-5, bounds=(-1, 1), classes=[0, 1], max_iter=3, algorithm="dp_gd", step=1.0, scale="none"
    ).fit(x, y)
    with tempfile.TemporaryDirectory() as place:
        estimators.save(fitted, f"{place}/model")
        return Path(place, "model").read_bytes()


def _tree(whole: bytes) -> bytes:
    """The tree in a file of `storage`."""
    size = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + size])["__metadata__"]["tree"].encode()


@cache
def _stores() -> list[bytes]:
    made = state.State(w=torch.arange(4.0), t=7, memory={"0/main": torch.ones(3)}, update={"a": (1.0, None)})
    with tempfile.TemporaryDirectory() as place:
        made.save(f"{place}/state")
        first = Path(place, "state").read_bytes()
        checkpoint.FORMAT.write(f"{place}/check", {"module": {"w": torch.ones(2)}, "spent": {"r": {"e": 3}}})
        second = Path(place, "check").read_bytes()
    return [b"\0" + first, b"\1" + second, b"\2" + _model()]


@cache
def _trees() -> list[bytes]:
    return [whole[:1] + _tree(whole[1:]) for whole in _stores()]


# ---------------------------------------------------------------- folders of runs

PARTS = (SETTINGS, TRAINED, METRICS)


def run_folder(data: bytes) -> None:
    """One file of a run's folder, under a right digest where the first byte is even."""
    which, text = data[0] if data else 0, data[1:]
    name = PARTS[which // 2 % 3]
    if which % 2 == 0:
        try:
            body = json.loads(text_of(text, [_folders()[PARTS.index(name)][1:]]))
            body = {"format": FORMATS[name], **body} | ({"schema_sha256": digest(b"")} if name == SETTINGS else {})
            text = _json({**body, "sha256": digest(_json(body))})
        except (ValueError, TypeError, RecursionError):
            return
    place = folder() / "run"
    shutil.rmtree(place, ignore_errors=True)
    run = RunFolder.create(place, {"epsilon": 1.0}, schema="")
    (place / name).write_bytes(text)
    opened: Any = RunFolder.open(place)
    if name == SETTINGS:
        check(isinstance(opened.settings, dict), "settings that are no table")
        Settings.from_dict(opened.settings.get("settings", {}))
    elif name == METRICS:
        Measured.from_dict(run.read_sealed(METRICS))
    else:
        run.read_sealed(TRAINED)


def run_model(data: bytes) -> None:
    """The schema of a run beside its model."""
    place = folder() / "modelled"
    shutil.rmtree(place, ignore_errors=True)
    run = RunFolder.create(place, {"epsilon": 1.0}, schema=data.decode("utf-8", "replace"))
    run.write("model.safetensors", _model())
    if _load_model(run) is None:
        raise Broken("no model")


def _folders() -> list[bytes]:
    encoded = json.dumps({"settings": {"seed": 1, "settings": {"data": "a.csv", "epsilon": 2.0}, "leaks": []}}).encode()
    figures = json.dumps(Measured().to_dict()).encode()
    return [b"\0" + encoded, b"\2" + b'{"rounds": 3}', b"\4" + figures, b"\1" + encoded]


WORDS = [b"@tensor", b"@numpy", b"@tuple", b"@dict", b"@float", b"@array", b"@set", b"@held", b"fields", b"dtype"]
KINDS = [b'"charge"', b'"refund"', b'"begin"', b'"torn"', b'"open"', b'"close"', b'"seeded"', b'"rounds"', b'"event"']

TARGETS = [
    Target("ledger", ledger, _marked_ledgers, KINDS, (CannotWrite,), slow=4),
    Target("ledger records", sealed_ledger, lambda: [_ledgers()[1], *scripts()], KINDS, slow=4),
    Target("stored file", store, _stores, WORDS, slow=4),
    Target(
        "stored tree",
        sealed_store,
        lambda: [*_trees(), *(bytes([k % 3]) + script for k, script in enumerate(scripts()))],
        WORDS,
        slow=4,
    ),
    Target(
        "run folder",
        run_folder,
        lambda: [*_folders(), *(bytes([2 * k]) + script for k, script in enumerate(scripts()))],
        (b'"format"', b'"settings"', b'"figures"'),
        slow=4,
    ),
    Target("run schema", run_model, lambda: [b"", b'[columns.a]\ntype = "number"\nbounds = [0, 1]\n'], slow=8),
]
