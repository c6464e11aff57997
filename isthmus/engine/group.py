"""Several processes in one private training: `make_private(group=)`.

Every rank has its own copy of the module and its own part of the records: record i belongs to rank i mod k.  Each draws
the coins of its own records from its own secrets; coins of Poisson sampling are independent, so that all ranks'
samples together are one Poisson sample of all records at the same rate.  Clipped sums meet on rank 0, which charges the
only ledger and adds the noise once; epsilon is that of one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.core.group import Group

Make = TypeVar("Make", bound=Callable[..., Any])
SHARED = (
    "all ranks read the same dataset in the same order, so that a record belongs to one rank; rank 0's ledger is the "
    "one that counts"
)


def ranks_of(group: Any, n: int, poisson: bool) -> Group:
    """Whom a training is made with: this process, or the ranks of a process group (True: the default one)."""
    ranks = Group.of(group)
    remedy = "leave it out: a subset of a fixed size is one draw from all records, and every rank draws its own"
    validate.check(poisson or ranks.size == 1, "poisson_sampling", poisson, remedy)
    validate.at_most(n, "the number of records", group=ranks.size)
    return ranks


def met(make: Make) -> Make:
    """`make_private` on all ranks: what is made begins once all have made theirs, and an error on one is one on all."""

    @functools.wraps(make)
    def together(engine: Any, *, group: Any = None, **options: Any) -> Any:
        ranks, before = Group.of(group), len(engine._trainings)
        if ranks.size == 1:
            return make(engine, **options)
        try:
            with ranks.joined("make_private"):
                result = make(engine, group=group, **options)
            training = engine._trainings[-1]
            same = key(training.driver.n, training.driver.layers.space, training.agreed)
            ranks.agree("make_private", [same], names=("make_private",))
        except Exception:
            for training in engine._trainings[before:]:
                engine.take_apart(training)
            del engine._trainings[before:]
            raise
        module = engine._trainings[-1].driver.module
        state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
        shared = ranks.on_leader(lambda: state)
        with torch.no_grad():  # every rank begins with the parameters and buffers of rank 0
            for name, tensor in state.items():
                tensor.copy_(shared[name].to(tensor.device))
        return result

    return cast(Make, together)
