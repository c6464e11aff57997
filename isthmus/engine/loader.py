"""The private loader: secret batches, cut to what memory holds, with a ticket for each.

Membership is drawn from the operating system's generator in the main process; workers only fetch.  What a dataset draws
while it is read (augmentation) is secret too, unless the noise has a seed: see `isthmus.round.passes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from isthmus.base import validate
from isthmus.round.drivable import Ticket
from isthmus.round.passes import hiding
from isthmus.round.torch_loop import TorchDriver
from isthmus.round.wire import Keys


class Draws(Sampler[list[int]]):
    """The index lists of an epoch: `sampler.rounds` logical batches, each cut into physical ones.

    micro     the size of micro-batches: every drawn record is put into one of `divisor / micro` of them, independently
              of every other record, so that one record moves one micro-batch only
    order     index lists that are taken as they are, where nothing is private (`noise_multiplier=0`)
    shard     (rank, size): only records rank, rank + size, ... are drawn here, by coins of this rank's own
    """

    def __init__(
        self,
        sampler: Any,
        n: int,
        noise: Any,
        physical: int | None,
        micro: int = 1,
        order: Any = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.shard, self.own = shard, len(range(shard[0], n, shard[1]))
        self.draw, self.n, self.keys, self.physical, self.micro = sampler, n, Keys(0, noise), physical, micro
        self.order = order
        self.was_cut = False
        """Whether logical batches were ever to be cut into physical ones."""
        self.tickets: deque[Ticket] = deque()
        """Those of the latest epoch that was begun, in the order of its batches."""

    def __len__(self) -> int:
        return self.draw.rounds(self.n) if self.order is None else len(self.order)

    def __iter__(self) -> Iterator[list[int]]:
        self.tickets = deque()  # an epoch that is still being read keeps its own
        return self._cut(self.tickets)

    def _cut(self, tickets: deque[Ticket]) -> Iterator[list[int]]:
        for index in self._drawn():
            self.was_cut |= self.physical is not None
            groups = self._groups(len(index))
            parts = [index] if self.physical is None or len(index) == 0 else list(index.split(self.physical))
            for number, part in enumerate(parts):
                tickets.append(Ticket(len(part), number == len(parts) - 1, groups))
                yield part.tolist()

    def _drawn(self) -> Iterator[Tensor]:
        if self.order is not None:
            yield from map(torch.tensor, self.order)
            return
        for t in range(len(self)):
            yield self.shard[0] + self.shard[1] * self.draw.draw(self.own, t, self.keys, "0")

    def _groups(self, count: int) -> Tensor | None:
        if self.micro == 1:
            return None
        number = max(1, round(self.draw.rate * self.own / self.micro))
        assert self.keys.noise is not None
        return self.keys.noise.integers(number, count)


class PrivateLoader(DataLoader):
    """A DataLoader over secret batches that tells the driver which batch it hands out.

    `len()` counts logical batches; with a physical limit it yields more than that.  `sample_rate` is the probability
    of a record to be in a batch.  Of a module that `accelerate` has prepared batches come on its device.
    """

    _is_accelerate_prepared = True
    """To `accelerate`, which would read a batch ahead and leave the tickets behind: the loader is used as it is."""

    def __init__(self, loader: DataLoader, draws: Draws, driver: TorchDriver) -> None:
        self._draws, self._driver = draws, driver
        options = {name: getattr(loader, name) for name in ("num_workers", "pin_memory", "timeout", "worker_init_fn")}
        if loader.num_workers > 0:
            options |= {name: getattr(loader, name) for name in ("prefetch_factor", "persistent_workers")}
        super().__init__(
            loader.dataset,
            batch_sampler=draws,
            collate_fn=Collate(loader.collate_fn, loader.dataset),
            multiprocessing_context=loader.multiprocessing_context,
            generator=None if driver.guard.secret else loader.generator,
            **options,
        )

    def __iter__(self) -> Any:
        turn, secret = self._driver.rest(), self._driver.guard.secret
        with hiding(secret, by_place=False):  # the seeds of workers are drawn here
            batches = super().__iter__()
        tickets = self._draws.tickets
        while True:
            with hiding(secret):  # random augmentation follows the place in the batch, as random layers do
                batch = next(batches, self)
            if batch is self:
                return
            self._driver.begin(tickets.popleft(), turn)
            yield self._placed(batch)

    @property
    def sample_rate(self) -> float:
        """The probability of a record to be in a batch: public, as the size of the batches is."""
        return float(self._draws.draw.rate)

    def _placed(self, batch: Any) -> Any:
        if not getattr(self._driver.module, "_is_accelerate_prepared", False):
            return batch
        device = next(self._driver.layers.parameters()).device
        return moved(batch, device)


def moved(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device, its structure as it was.

    >>> moved({"x": [torch.ones(1)], "n": 3}, torch.device("cpu"))
    {'x': [tensor([1.])], 'n': 3}
    """
    if hasattr(batch, "to") and callable(batch.to):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return type(batch)({key: moved(item, device) for key, item in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, (tuple, list)):
        items = [moved(item, device) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


class Collate:
    """The user's collate function, and for an empty batch the same structure with no examples in it."""

    def __init__(self, inner: Any, dataset: Any) -> None:
        self.inner, self.dataset = inner, dataset

    def __call__(self, batch: list[Any]) -> Any:
        """A batch, possibly of nothing: only the shapes of a record are read then."""
        if batch:
            return self.inner(batch)
        record = self.dataset[0]
        return emptied(self.inner([record]), self.inner([record, record]))


def emptied(one: Any, two: Any) -> Any:
    """A batch of nothing, from batches of one and of two: what grows with the examples is emptied, the rest stays.

    >>> import torch
    >>> emptied((torch.ones(3, 1), {"y": [7], "kind": "a"}), (torch.ones(3, 2), {"y": [7, 7], "kind": "a"}))
    (tensor([], size=(3, 0)), {'y': [], 'kind': 'a'})
    """
    if isinstance(one, Tensor):
        grown = [dim for dim in range(one.ndim) if one.shape[dim] != two.shape[dim]]
        return one.narrow(grown[0], 0, 0) if grown else one
    if isinstance(one, Mapping):
        return type(one)({key: emptied(item, two[key]) for key, item in one.items()})  # type: ignore[call-arg]
    if isinstance(one, (tuple, list)):
        if len(one) != len(two):
            return one[:0]
        items = [emptied(*pair) for pair in zip(one, two, strict=True)]
        return type(one)(*items) if hasattr(one, "_fields") else type(one)(items)
    return one[:0] if hasattr(one, "__len__") and hasattr(one, "__getitem__") and len(one) != len(two) else one


class BatchMemoryManager:
    """Cuts the batches of a private loader to a physical size, within a `with` block.

    >>> BatchMemoryManager(data_loader=None, max_physical_batch_size=4, optimizer=None)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: data_loader=None is not allowed: give the loader that make_private returned
    """

    def __init__(self, *, data_loader: Any, max_physical_batch_size: int, optimizer: Any) -> None:
        private = isinstance(data_loader, PrivateLoader)
        validate.check(private, "data_loader", data_loader, "give the loader that make_private returned")
        validate.positive_int(max_physical_batch_size=max_physical_batch_size)
        self.data_loader, self.size = data_loader, max_physical_batch_size
        check_physical(self.size, data_loader._draws.micro)

    def __enter__(self) -> PrivateLoader:
        draws = self.data_loader._draws
        self._before, draws.physical = draws.physical, self.size
        return self.data_loader

    def __exit__(self, *error: Any) -> None:
        self.data_loader._draws.physical = self._before


def check_physical(physical: int | None, micro: int) -> None:
    """Micro-batches are clipped whole: they are not cut."""
    if physical is not None:
        validate.positive_int(max_physical_batch_size=physical)
        remedy = (
            "give either max_physical_batch_size or micro_batch_size: micro-batches are clipped whole and cannot be cut"
        )
        validate.check(micro == 1, "max_physical_batch_size", physical, remedy)


def check_loader(loader: Any) -> tuple[int, int]:
    """(n, batch size) of a user's loader."""
    validate.check(isinstance(loader, DataLoader), "data_loader", type(loader).__name__, "give a torch DataLoader")
    validate.check(
        not isinstance(loader, PrivateLoader),
        "data_loader",
        loader,
        "give a loader of your own: this one is private already",
    )
    validate.check(
        not isinstance(loader.dataset, IterableDataset),
        "data_loader",
        type(loader.dataset).__name__,
        "give a map-style dataset: the sampling of a stream cannot be accounted",
    )
    n = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
    validate.check(n > 0, "data_loader.dataset", n, "give a map-style dataset with at least one record")
    size = loader.batch_size if loader.batch_size is not None else getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        validate.refuse("data_loader.batch_size", size, "give a loader with a batch_size, which sets the sampling rate")
    validate.positive_int(**{"data_loader.batch_size": size})
    validate.at_most(n, "the number of records", batch_size=size)
    _check_sampler(loader, n)
    return n, size


def _check_sampler(loader: DataLoader, n: int) -> None:
    """Batches are drawn anew from all records: a sampler that means something else would be ignored in silence."""
    own, sampler = type(loader.batch_sampler) is BatchSampler, loader.sampler
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == n
    )
    validate.check(
        own and plain,
        "data_loader.sampler" if own else "data_loader.batch_sampler",
        type(sampler if own else loader.batch_sampler).__name__,
        "leave it out: batches are drawn secretly from the whole dataset; to train on some of the records, "
        "give a Subset",
    )
