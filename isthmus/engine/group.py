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

import torch.distributed as dist

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.core.ranks import Ranks
from isthmus.core.together import Company, Single, Together

Make = TypeVar("Make", bound=Callable[..., Any])
SHARED = (
    "all ranks read the same dataset in the same order, so that a record belongs to one rank; rank 0's ledger is the "
    "one that counts"
)


def company_of(group: Any, n: int, poisson: bool) -> Company:
    """Whom a training is made with: nobody, or the ranks of a process group (True: the default one)."""
    if group is None or group is False:
        return Single()
    is_group = group is True or isinstance(group, dist.ProcessGroup)
    validate.check(is_group, "group", group, "give a torch.distributed process group, or True for the default one")
    remedy = "leave it out: a subset of a fixed size is one draw from all records, and every rank draws its own"
    validate.check(poisson, "poisson_sampling", poisson, remedy)
    ranks = Ranks(None if group is True else group)
    validate.at_most(n, "the number of records", group=ranks.size)
    return Together(ranks, len(range(ranks.rank, n, ranks.size)), n)


def shard_of(company: Company) -> tuple[int, int]:
    """(rank, number of ranks)."""
    return (company.ranks.rank, company.ranks.size) if isinstance(company, Together) else (0, 1)


def met(make: Make) -> Make:
    """`make_private` on all ranks: what is made begins once all have made theirs, and an error on one is one on all."""

    @functools.wraps(make)
    def together(engine: Any, *, group: Any = None, **options: Any) -> Any:
        if group is None or group is False:
            return make(engine, **options)
        ranks, before, error, same = Ranks(None if group is True else group), len(engine._trainings), None, 0
        result = None
        try:
            result = make(engine, group=group, **options)
            training = engine._trainings[-1]
            same = key(training.driver.n, training.driver.layers.space, training.agreed) >> 1
        except Exception as failed:
            error = failed
        try:
            ranks.agree("make_private", [same, 0, 0, 0, 0, 0], error, ("make_private",))
        except Exception:
            for training in engine._trainings[before:]:
                engine.take_apart(training)
            del engine._trainings[before:]
            raise
        company = engine._trainings[-1].driver.company
        company.same_start(engine._trainings[-1].driver.module)
        return result

    return cast(Make, together)
