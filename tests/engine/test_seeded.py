"""Noise of a seed is "not private" for good: through files, ledgers, fresh engines, copies and resumed runs."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import data, mlp, private, train

from isthmus import LeastSquares, PrivacyEngine, minimize
from isthmus.algorithms import dp_gd
from isthmus.core.wire import State
from isthmus.estimators import PrivateClassifier, PrivateSearch
from isthmus.privacy import Ledger, LedgerCorrupt
from isthmus.privacy.ledger import _FileRecords

DELTA = 1e-5


def seeded(**options: Any) -> Any:
    return train(private(mlp(), data(), **options), 1)


def secret(**options: Any) -> Any:
    return private(mlp(), data(), noise_generator=None, **options)


def test_a_checkpoint_carries_it_into_a_fresh_engine(tmp_path: Path) -> None:
    run, path = seeded(), tmp_path / "a"
    assert not run.engine.statement(DELTA).private
    for _ in range(2):  # and on from file to file
        run.engine.save_checkpoint(path=path, module=run.module)
        run = secret()
        assert run.engine.statement(DELTA).private
        run.engine.load_checkpoint(path=path, module=run.module)
        stated = run.engine.statement(DELTA)
        assert not stated.private and "seeded noise" in str(stated) and stated.nominal > 0.5
        assert run.engine.ledger.seeded


def test_a_checkpoint_of_a_seeded_engine_that_released_nothing_yet(tmp_path: Path) -> None:
    run = private(mlp(), data())
    run.engine.save_checkpoint(path=tmp_path / "a", module=run.module)
    fresh = secret()
    fresh.engine.load_checkpoint(path=tmp_path / "a", module=fresh.module)
    assert not fresh.engine.statement(DELTA).private


def test_the_same_engine_is_not_private_afterwards() -> None:
    run = private(mlp(), data())
    run.engine.detach()
    assert not train(secret(engine=run.engine), 1).engine.statement(DELTA).private


@pytest.mark.parametrize("where", ["memory", "file", "copied file"])
def test_a_second_engine_on_the_ledger_is_not_private_either(where: str, tmp_path: Path) -> None:
    ledger = Ledger(None if where == "memory" else tmp_path / "l")
    seeded(engine=PrivacyEngine(ledger=ledger))
    if where == "file":
        ledger = Ledger.open(tmp_path / "l")
    elif where == "copied file":
        (tmp_path / "m").write_bytes((tmp_path / "l").read_bytes())
        ledger = Ledger.open(tmp_path / "m")
    run = train(secret(engine=PrivacyEngine(ledger=ledger)), 1)
    assert not run.engine.statement(DELTA).private


def test_secret_training_stays_private_and_its_ledger_is_as_it_was(tmp_path: Path) -> None:
    run = train(secret(engine=PrivacyEngine(ledger=tmp_path / "l")), 1)
    run.engine.save_checkpoint(path=tmp_path / "a", module=run.module)
    fresh = secret()
    fresh.engine.load_checkpoint(path=tmp_path / "a", module=fresh.module)
    assert run.engine.statement(DELTA).private and fresh.engine.statement(DELTA).private
    assert all(record["kind"] in ("open", "begin", "charge") for record in run.engine.ledger.records())


def test_copies_of_engines_and_ledgers_are_refused() -> None:
    run = seeded()
    for each in (run.engine, run.engine.ledger, run.engine.driver.ledger):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            if each is run.engine and way is copy.copy:
                continue
            with pytest.raises(TypeError, match="not copied or pickled"):
                way(each)
    assert not copy.copy(run.engine).statement(DELTA).private


def test_the_record_cannot_be_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "l"
    seeded(engine=PrivacyEngine(ledger=path))
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute('DELETE FROM records WHERE body LIKE \'%"kind":"seeded"%\'').rowcount == 1
    with pytest.raises(LedgerCorrupt):
        Ledger.open(path)


def test_a_seeded_charge_is_never_without_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "l")
    run = ledger.run({"main": {"event": "Gaussian", "noise_multiplier": 2.0}}, seeded=True)
    take = _FileRecords._take

    def interrupted(self: _FileRecords, record: dict[str, Any]) -> None:
        take(self, record)
        if record["kind"] == "seeded":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_FileRecords, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.charge("main")
    assert not ledger.seeded and ledger.rounds() == {}
    run.charge("main")
    for found in (ledger, Ledger.open(tmp_path / "l")):
        assert [record["kind"] for record in found.records()] == ["open", "begin", "seeded", "charge"]


# ---------------------------------------------------------------- minimize and estimators


def problem() -> LeastSquares:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)
    return LeastSquares(x, x.sum(1))


def fitted(**options: Any) -> Any:
    recipe = dp_gd(epsilon=1.0, delta=DELTA, clip=1.0, step=0.1, n="exact")
    return minimize(problem(), recipe, steps=4, record=None, progress=False, **options)


def test_runs_tell_the_ledger_and_resumed_states_remember(tmp_path: Path) -> None:
    ledger = Ledger()
    state = fitted(noise_seed=3, ledger=ledger).state
    assert ledger.seeded
    half = fitted(noise_seed=3).state.replace(t=2)
    half.save(tmp_path / "s")
    other = Ledger()
    result = fitted(resume=State.load(tmp_path / "s"), ledger=other)
    assert not result.privacy.private and other.seeded
    assert state.parts["seeded"] is True
    clean = Ledger()
    assert fitted(ledger=clean).privacy.private and not clean.seeded


def test_estimators_tell_the_ledger_they_share(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=g).numpy()
    y = (x[:, 0] > 0).astype(int)
    path = tmp_path / "l"
    options: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "classes": [0, 1], "bounds": (-6, 6), "n": 200}
    PrivateClassifier(**options, ledger=path, noise_seed=1).fit(x, y)
    assert Ledger.open(path).seeded
    search = tmp_path / "m"
    own = PrivateClassifier(**{**options, "epsilon": 2.0})
    PrivateSearch(own, {"max_iter": [2, 3]}, epsilon=2.0, delta=DELTA, ledger=search, noise_seed=1).fit(x, y)
    assert Ledger.open(search).seeded
