"""Ranks whose process dies in a round: the others end with an error, and what was charged stays charged."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo import FORKS

from isthmus import Logistic, algorithms, minimize
from isthmus.core.group import RankFailed
from isthmus.parts import AllReduce
from isthmus.privacy import Ledger

AT = 3


def process(rank: int, size: int, folder: str, lost: int) -> None:
    """A run whose rank `lost` is killed after so many rounds; all others write down what they raised."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((20, 4))

    def killed(record: Any, state: Any) -> None:
        if rank == lost and state.t == AT:
            os.kill(os.getpid(), signal.SIGKILL)

    recipe = algorithms.dp_gd(epsilon=3.0, n="exact", step=1.0, clip=0.5)
    more: dict[str, Any] = {"ledger": Ledger(Path(folder, "ledger"))} if rank == 0 else {}
    try:
        problem = Logistic(X, (X[:, 0] > 0).astype(int), classes=[0, 1])
        minimize(problem, recipe, steps=20, record=1, callbacks=[killed], clients=AllReduce(), **more)
    except Exception as error:
        Path(folder, f"told-{rank}").write_text(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(("lost", "size"), [(0, 2), (2, 3)])
def test_a_killed_rank_ends_the_others(tmp_path: Path, lost: int, size: int) -> None:
    ranks = [FORKS.Process(target=process, args=(rank, size, str(tmp_path), lost)) for rank in range(size)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(300)
    assert [each.exitcode for each in ranks] == [-signal.SIGKILL if rank == lost else 0 for rank in range(size)]
    for rank in set(range(size)) - {lost}:
        text = Path(tmp_path, f"told-{rank}").read_text()
        assert text.startswith(f"{RankFailed.__name__}: a rank was lost")
    charged = Ledger.open(tmp_path / "ledger").rounds()["main"]
    assert charged >= AT  # some rounds are reserved at a time, and those of a killed process stay charged
    if lost:
        assert charged == AT
