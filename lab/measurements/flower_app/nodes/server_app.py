"""The server of the benchmark: it writes what it found, what it was told and what it was charged."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from isthmus.distributed.flower import SketchStrategy
from isthmus.privacy import Ledger
from nodes.task import federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, and write a report beside the iterate."""
    config, out = context.run_config, Path(str(context.run_config["out"]))
    plan = federation(config)
    ledger = Ledger(out / "run.ledger", budget=(plan.pipe.promise.epsilon, 1e-5)) if plan.private else None
    strategy, began = SketchStrategy(plan, ledger=ledger, wait=120.0), time.time()

    def noted(number: int, arrays: object) -> None:
        (out / "round").write_text(str(number))

    strategy.start(grid, timeout=float(config["timeout"]), evaluate_fn=noted)
    assert strategy.found is not None and strategy.clients is not None
    traffic = strategy.clients.traffic
    report = {
        "seconds": time.time() - began,
        "up": traffic.up,
        "down": traffic.down,
        "rounds": traffic.rounds,
        "reasons": dict(traffic.reasons),
        "bytes": strategy.found.bytes,
        "charged": None if ledger is None else ledger.rounds(),
        "spent": None if ledger is None else ledger.spent(),
        "epsilon": None if strategy.outsiders is None else strategy.outsiders.epsilon,
    }
    strategy.found.state.save(out / "state")
    (out / "report.json").write_text(json.dumps(report))
