"""The server: it asks, adds, noises where the run is private, and moves the iterate."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from federated.task import federation, objective
from isthmus.distributed.flower import SketchStrategy, from_arrays

app = ServerApp()
TEST = 10_000
"""The number of a client whose records are public: the server tests on them."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say what was sent and what is promised."""
    plan, test = federation(context.run_config), objective(TEST)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": float(test.score(from_arrays(arrays, plan.whole)))})

    strategy = SketchStrategy(plan)
    result = strategy.start(grid, evaluate_fn=evaluate)
    assert strategy.clients is not None
    traffic, last = strategy.clients.traffic, result.evaluate_metrics_serverapp[plan.rounds]
    whole = plan.rounds * plan.clients * plan.whole.d * torch.float32.itemsize
    print(f"accuracy {last['accuracy']:.3f} on new records")
    if strategy.outsiders is None:
        print(f"bytes up {traffic.up} ({whole / traffic.up:.0f} times fewer than gradients), down {traffic.down}")
    else:
        print(
            f"bytes up, planned: {strategy.found.bytes} ({whole / strategy.found.bytes:.0f} times fewer than gradients)"
        )
        print(f"who sees the model: {strategy.outsiders}\nwho knows whom each round asked: {strategy.insiders}")
