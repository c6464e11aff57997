"""Flower in simulation: how many bytes ten clients send, and what it costs in accuracy, at equal rounds.

IMDB over an l1 ball (d = 10,000) and paper 001's MLP on MNIST (d = 42,310), batches of 32 a client.  `FedSGD` sends
whole gradients in float32.  Bytes are payloads; `lab/measurements/flower_nodes.py` measures sockets.

    python lab/studies/flower_bytes.py [--rounds 500] [--backend ray|local] [--only imdb|mlp] [--ways 012]
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from common import arguments, save, table
from flower_task import CLIENTS, WAYS, accuracy, federation, objective, start

from isthmus.distributed.flower import LocalGrid, SketchStrategy, client_app, to_arrays


def ran(problem: str, way: str, rounds: int, folder: str | None, backend: str) -> SketchStrategy:
    """One run: in Ray's processes, or in this one."""
    plan = federation(problem, way, rounds, folder)
    app = client_app(
        lambda context: federation(problem, way, rounds, folder),
        lambda context: objective(problem, int(context.node_config["partition-id"]), folder),
    )
    strategy, first = SketchStrategy(plan), start(problem, plan, folder)
    arrays = None if first is None else to_arrays(first, plan.whole)
    if backend == "local":
        strategy.start(LocalGrid(app, CLIENTS), arrays)
        return strategy
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, arrays)

    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, app, CLIENTS, backend_config=resources)
    return strategy


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, rounds=500, backend="ray", only="", ways="012")
    torch.set_num_threads(1)
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), str(root), os.environ.get("PYTHONPATH", "")])
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds, rows, summary = 5 if args.quick else args.rounds, [], {}
    folder = args.data or os.environ.get("ISTHMUS_DATA")
    for problem in [args.only] if args.only else ["imdb", "mlp"]:
        whole = 0
        for way in [WAYS[int(number)] for number in args.ways]:
            began = time.perf_counter()
            strategy = ran(problem, way, rounds, folder, args.backend)
            assert strategy.found is not None and strategy.found.x is not None and strategy.clients is not None
            traffic, right = strategy.clients.traffic, accuracy(problem, strategy.found.x, folder)
            whole = whole or traffic.up
            fewer, bytes_up = whole / traffic.up, traffic.up / sum(counts["answered"] for counts in traffic.rounds)
            rows.append({"problem": problem, "run": way, "accuracy": right, "bytes up a message": bytes_up,
                         "fewer": fewer, "down a message": traffic.down / rounds / CLIENTS,
                         "seconds": time.perf_counter() - began})  # fmt: skip
            summary |= {f"{problem}, {way}: accuracy": right, f"{problem}, {way}: fewer bytes": fewer}
            table(f"{rounds} rounds, {CLIENTS} clients, {args.backend}", rows)
    save(args.out, "flower_bytes", {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
