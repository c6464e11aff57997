"""What is written names its format and version; another version is refused by name, not by a guess at what is wrong."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from isthmus import InvalidInput, PrivateClassifier, plan
from isthmus.base import storage
from isthmus.codecs import Int8
from isthmus.core.wire import FORMAT as STATE
from isthmus.distributed.hooks import SketchState, WarmRank
from isthmus.estimators import load, save
from isthmus.estimators.stored import FORMAT as ESTIMATOR
from isthmus.privacy import Gaussian, Ledger, LedgerCorrupt, Poisson, PrivacyPlan, PrivacyStatement
from isthmus.privacy.event_json import canonical
from isthmus.privacy.plan import Charge
from isthmus.report.record import Record
from isthmus.runs.folder import FORMATS, FolderDamaged, RunFolder, digest
from isthmus.tables.schema import Schema


def with_format(path: Path, name: str) -> None:
    """The same safetensors file, as of another version."""
    with safe_open(path, framework="pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    save_file(tensors, path, metadata={**header, "format": name})


@pytest.mark.parametrize("name", ["isthmus-state-9", "isthmus-state-0"])
def test_a_state_of_another_version_is_refused_by_its_version(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state"
    STATE.write(path, {"w": torch.ones(2)})
    with_format(path, name)
    with pytest.raises(InvalidInput, match=f"format '{name}', and this version of Isthmus reads '{STATE.name}' or"):
        STATE.read(path, dict)


def test_an_estimator_of_an_earlier_version_is_refused_by_its_version(tmp_path: Path) -> None:
    X = np.linspace(-1, 1, 300)[:, None]
    model = PrivateClassifier(bounds=(-1, 1), classes=[0, 1], max_iter=2).fit(X, (X[:, 0] > 0).astype(int))
    save(model, tmp_path / "model")
    with_format(tmp_path / "model", "isthmus-estimator-2")
    with pytest.raises(
        InvalidInput, match=f"'isthmus-estimator-2', and this version of Isthmus reads '{ESTIMATOR.name}'"
    ):
        load(tmp_path / "model")


def test_a_format_of_the_earlier_kind_is_read_and_another_kind_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "a"
    storage.Format("notes-1", "the test").write(path, {"t": 3, "w": torch.ones(1)})
    assert storage.Format("notes-2", "the test", sealed=("notes-1",)).read(path, dict)["t"] == 3
    with pytest.raises(InvalidInput, match="of another kind"):
        storage.Format("pictures-1", "the test").read(path, dict)


def statement() -> str:
    return PrivacyStatement.of(Gaussian(1.0).event(), 1e-5).to_json()


def privacy_plan() -> str:
    return PrivacyPlan(1.0, 1e-5, items=[Charge("g", rounds=12, sampler=Poisson(0.025))]).to_json()


@pytest.mark.parametrize(
    ("write", "read"), [(statement, PrivacyStatement.from_json), (privacy_plan, PrivacyPlan.from_json)]
)
def test_texts_name_their_version_and_earlier_ones_without_are_read(
    write: Callable[[], str], read: Callable[[str], Any]
) -> None:
    data = json.loads(write())
    name, _, version = data["format"].rpartition("-")
    assert name.startswith("isthmus-") and int(version) >= 1
    earlier = {key: value for key, value in data.items() if key != "format"}
    assert read(json.dumps(earlier)) == read(json.dumps(data))
    with pytest.raises(InvalidInput, match=f"has the format '{name}-9', and this version of Isthmus reads"):
        read(json.dumps(data | {"format": f"{name}-9"}))


def test_the_plan_of_the_planner_and_the_state_of_a_hook_name_theirs() -> None:
    assert plan(n=1000, d=5, epsilon=1.0).to_dict()["format"] == "isthmus-choices-1"
    state = SketchState(WarmRank(2))
    kept = state.state_dict()
    state.load_state_dict({key: value for key, value in kept.items() if key != "format"})
    with pytest.raises(InvalidInput, match="the state has the format 'isthmus-hook-9'"):
        state.load_state_dict(kept | {"format": "isthmus-hook-9"})


def test_a_schema_has_a_version_and_one_without_is_of_the_first() -> None:
    schema = Schema.from_toml("[columns]\nage = [17, 90]")
    assert schema.to_toml(versioned=True).startswith("version = 1\n")
    assert Schema.from_toml(schema.to_toml(versioned=True)) == schema
    with pytest.raises(InvalidInput, match="schema: version has the format 2, and this version of Isthmus reads 1"):
        Schema.from_toml("version = 2\n[columns]\nage = [17, 90]")


def test_a_ledger_of_another_version_is_refused_by_its_version(tmp_path: Path) -> None:
    record = Ledger(tmp_path / "a", budget=(1.0, 1e-5)).records()[0]
    record = {name: value for name, value in record.items() if name != "hash"} | {"format": 2}
    sealed = record | {"hash": hashlib.sha256(canonical(record).encode()).hexdigest()}
    (tmp_path / "a").write_text(json.dumps(sealed, separators=(",", ":")) + "\n")
    (tmp_path / "a.lock").unlink()
    with pytest.raises(LedgerCorrupt, match="format 2: this version reads format 1"):
        Ledger(tmp_path / "a", budget=(1.0, 1e-5))


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_run_folder_of_another_version_is_refused_by_its_version(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path, {})
    folder.write_sealed(name, {"a": 1})
    data = json.loads(folder.read(name))
    data.pop("sha256")
    data["format"] = "isthmus-other-2"
    text = json.dumps(data, indent=1) + "\n"
    data["sha256"] = digest(text.encode())
    folder.write(name, json.dumps(data, indent=1).encode())
    with pytest.raises(
        FolderDamaged, match=f"has the format 'isthmus-other-2', and this version of Isthmus reads '{FORMATS[name]}'"
    ):
        folder.read_sealed(name)


def test_messages_and_records_of_another_version_are_refused_by_their_version() -> None:
    data = bytearray(storage.pack("note", {"t": 3}))
    data[4] = 9
    with pytest.raises(InvalidInput, match="its version, 9: this one reads version 1"):
        storage.unpack(bytes(data), "note")
    payload = Int8().encode(torch.ones(3), 0)
    with pytest.raises(InvalidInput, match="its first byte is 0xc2 and not 0xc1"):
        Int8().decode(b"\xc2" + payload[1:], torch.ones(3))
    with pytest.raises(InvalidInput, match="format='isthmus-run-9'"):
        Record.from_dict({"format": "isthmus-run-9"})
