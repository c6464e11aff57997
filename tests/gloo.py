"""Real gloo processes for tests: `together(scenario, size)` runs a function on every rank."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _process(rank: int, size: int, folder: str, scenario: Callable[[int], Any]) -> None:
    torch.set_num_threads(1 + rank % 2)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    torch.save(scenario(rank), f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()


def together(scenario: Callable[[int], Any], size: int = 2) -> list[Any]:
    """What a function of the rank returned on each rank; ranks have different thread counts."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, args=(size, folder, scenario), nprocs=size, join=True)
        return [torch.load(Path(folder, str(rank)), weights_only=False) for rank in range(size)]
