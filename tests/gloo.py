"""Real gloo processes for tests: `together(scenario, size)` runs a function on every rank.

They are forked from one process that has imported what they need and done nothing else: it starts once, and no rank
has anything of the tests' own process.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from filelock import FileLock

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed", "dp_accounting", "isthmus.estimators", "isthmus.engine"]
)


def _process(rank: int, size: int, folder: str, scenario: Callable[[int], Any]) -> None:
    torch.set_num_threads(1 + rank % 2)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    torch.save(scenario(rank), f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()


def once(scenario: Callable[[int], Any], folder: Any, size: int = 2) -> list[Any]:
    """What `together` returns, by one of the workers of a parallel test run; `folder` is pytest's tmp_path_factory."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return together(scenario, size)
    path = folder.getbasetemp().parent / f"{scenario.__module__}.{getattr(scenario, '__name__', 'scenario')}"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            torch.save(together(scenario, size), path)
        return list(torch.load(path, weights_only=False))


def caught(make: Callable[[], Any]) -> tuple[str, str]:
    """The kind and the words of what a call raised; empty where it raised nothing."""
    try:
        make()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def together(scenario: Callable[[int], Any], size: int = 2) -> list[Any]:
    """What a function of the rank returned on each rank; ranks have different thread counts."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_process, args=(size, folder, scenario), nprocs=size, join=True, start_method="forkserver")
        return [torch.load(Path(folder, str(rank)), weights_only=False) for rank in range(size)]
