"""The private loader: secret batches, cut to what memory holds, with a ticket for each.

Membership is drawn from the operating system's generator in the main process; workers only fetch.  What a dataset draws
while it is read (augmentation) is secret too, unless the noise has a seed: see `gradients.layers.forward_guard`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as datasets
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten
from torch.utils.data import DataLoader

from isthmus.base import secret, validate
from isthmus.core.driver import Ticket, TorchDriver
from isthmus.core.wire import Keys
from isthmus.gradients.layers import Layers
from isthmus.gradients.layers.forward_guard import RandomStates, hide_generators
from isthmus.gradients.layers.rules import Args, Kwargs
from isthmus.gradients.layers.trial import EXAMPLES, depends, due, examples_of
from isthmus.privacy import FixedSize, Poisson
from isthmus.privacy.noise import Source

_STAND_IN = [0]
"""What is handed out where no record was drawn: modules and loops need not know what to do with no example at all."""


_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""What draws random numbers from a state of its own."""
MANY = 64
"""Longer lists hold records, and no transforms."""

_TRIED = 2
"""Records of a batch that are given to the module alone, where their part of the batch is another."""


class Draws(datasets.Sampler[list[int]]):
    """The index lists of an epoch: `sampler.rounds` logical batches, each cut into physical ones.

    Where nothing was drawn a record stands in, whose gradient the driver drops: what is released is noise alone.

    micro     the size of micro-batches: every drawn record is put into one of `divisor / micro` of them, independently
              of every other record, so that one record moves one micro-batch only
    order     index lists that are taken as they are, where nothing is private (`noise_multiplier=0`)
    shard     (rank, size): only records rank, rank + size, ... are drawn here, by coins of this rank's own
    """

    def __init__(
        self,
        sampler: Poisson | FixedSize,
        n: int,
        noise: Source,
        physical: int | None,
        micro: int = 1,
        order: Iterable[list[int]] | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.shard, self.own = shard, len(range(shard[0], n, shard[1]))
        self.noise, self.keys = noise, Keys(0, noise)
        self.draw, self.n, self.physical, self.micro, self.order = sampler, n, physical, micro, order
        self.was_cut = False
        """Whether logical batches were ever to be cut into physical ones."""
        self.tickets: deque[tuple[Ticket, list[int]]] = deque()
        """Those of the latest epoch that was begun, in the order of its batches, and who is in each."""

    def __len__(self) -> int:
        if self.order is not None:
            return len(self.order)  # type: ignore[arg-type]
        return self.draw.rounds(self.n)

    def __iter__(self) -> Iterator[list[int]]:
        self.tickets = deque()  # an epoch that is still being read keeps its own
        return self._cut(self.tickets)

    def _cut(self, tickets: deque[tuple[Ticket, list[int]]]) -> Iterator[list[int]]:
        drawn: Iterable[Tensor] = (
            self.shard[0] + self.shard[1] * self.draw.draw(self.own, t, self.keys, "0") for t in range(len(self))
        )
        if self.order is not None:
            drawn = map(torch.tensor, self.order)
        for index in drawn:
            self.was_cut |= self.physical is not None
            counts, groups = len(index) > 0, None
            if not counts:
                index = torch.tensor(_STAND_IN)
            elif self.micro > 1:
                groups = self.noise.integers(max(1, round(self.draw.rate * self.own / self.micro)), len(index))
            parts = index.split(self.physical or len(index))
            for number, part in enumerate(parts, 1):
                tickets.append((Ticket(len(part), number == len(parts), groups, counts), part.tolist()))
                yield part.tolist()


class PrivateLoader(DataLoader):
    """A DataLoader over secret batches that tells the driver which batch it hands out.

    `len()` counts logical batches; with a physical limit it yields more than that.  `sample_rate` is the probability
    of a record to be in a batch.  Of a module that `accelerate` has prepared batches come on its device.
    """

    _is_accelerate_prepared = True
    """To `accelerate`, which would read a batch ahead and leave the tickets behind: the loader is used as it is."""

    def __init__(self, loader: DataLoader, draws: Draws, driver: TorchDriver) -> None:
        self._draws, self._driver = draws, driver
        self._together = _Collating(loader, driver.layers) if _collates(loader) else None
        names = ["num_workers", "pin_memory", "timeout", "worker_init_fn", "collate_fn", "multiprocessing_context"]
        if loader.num_workers > 0:
            names += ["prefetch_factor", "persistent_workers"]
        if not driver.guard.secret:
            names.append("generator")
        super().__init__(loader.dataset, batch_sampler=draws, **{name: getattr(loader, name) for name in names})

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        turn, secret = self._driver.rest(), self._driver.guard.secret
        back = hide_generators(by_place=False, wanted=secret)  # the seeds of workers are drawn here
        try:
            batches = super().__iter__()
        finally:
            back()
        tickets = self._draws.tickets
        while True:
            back = hide_generators(wanted=secret)  # random augmentation follows the place in a batch, as layers do
            try:
                batch = next(batches, self)
            finally:
                back()
            if batch is self:
                return
            ticket, index = tickets.popleft()
            if getattr(self._driver.module, "_is_accelerate_prepared", False):
                batch = moved(batch, next(self._driver.layers.parameters()).device)
            if self._together is not None and len(index) > 1:
                ticket = replace(ticket, look=partial(self._together.look, index, batch))
            self._driver.begin(ticket, turn, batch)
            yield batch

    @property
    def sample_rate(self) -> float:
        """The probability of a record to be in a batch: public, as the size of the batches is."""
        return float(self._draws.draw.rate)


def moved(batch: object, device: torch.device) -> object:
    """A batch with its tensors on a device, its structure as it was.

    >>> moved({"x": [torch.ones(1)], "n": 3}, torch.device("cpu"))
    {'x': [tensor([1.])], 'n': 3}
    """
    return tree_map(lambda item: item.to(device) if hasattr(item, "to") else item, batch)


def _collates(loader: DataLoader) -> bool:
    """Whether the user's own code sees a batch's records together: torch's stacks those of one shape, and keeps them
    apart."""
    return loader.collate_fn is not datasets.default_collate or _reads_together(loader.dataset)


def _reads_together(dataset: object) -> bool:
    """Whether a dataset reads the records of a batch in one call (`__getitems__`), where they may meet.

    >>> from torch.utils.data import Subset, TensorDataset
    >>> _reads_together(Subset(TensorDataset(torch.ones(3)), [0, 1]))  # which has one that passes it on
    False
    """
    while type(dataset) is datasets.Subset:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


def _check_draws(loader: DataLoader) -> None:
    """Refuse generators that the dataset or the collate function keeps: whoever knows their seed knows what they draw.

    Records are read in the order of the batch, so one record more would shift the draws of all others.
    """
    parts = {"the dataset": loader.dataset, "collate_fn": getattr(loader.collate_fn, "__self__", loader.collate_fn)}
    own = [f"{name}{path}" for name, part in parts.items() for path in _generators_in(part, set())]
    remedy = (
        "draw from the global generators of torch, NumPy or Python, which are secret while records are read: "
        "generators of one's own have seeds that may be known, and one record more in a batch would shift what they "
        "draw for all others (one made anew from a seed and the record's index is fine; delete what is no longer used)"
    )
    validate.check(not own, "data_loader", own, remedy)


def _generators_in(part: object, seen: set[int]) -> Iterator[str]:
    """Where a dataset, its transforms and the datasets in it keep generators."""
    if id(part) in seen or isinstance(part, (Tensor, type)):
        return
    seen.add(id(part))
    if isinstance(part, _GENERATORS) and not isinstance(part, random.SystemRandom):
        yield ""
    elif isinstance(part, (list, tuple)) and len(part) <= MANY:
        for number, item in enumerate(part):
            yield from (f"[{number}]{path}" for path in _generators_in(item, seen))
    elif isinstance(part, datasets.Dataset) or callable(part):
        for name, item in getattr(part, "__dict__", {}).items():
            yield from (f".{name}{path}" for path in _generators_in(item, seen))


class _Collating:
    """Whether a record's part of a batch is its own: some are collated alone, and together, and given to the module.

    Padding to the longest record of a batch, for instance, moves every other record's gradient unless it is masked.
    Tried out when a shape of batches is first seen (of four, as `isthmus.gradients.layers.trial` does), and by chance
    later.  Where it cannot be told (the loop computes other arguments from the batch; collating draws random numbers)
    nothing is refused: whether it could be told may depend on the data, so the statement of every training with a
    collate function of its own names the assumption.
    """

    def __init__(self, loader: DataLoader, layers: Layers) -> None:
        self.collate, self.dataset, self.layers = loader.collate_fn, loader.dataset, layers
        self.fetch: Callable[[list[int]], list[Any]] | None = None
        self.where = "collate_fn"
        """Where records may meet."""
        if _reads_together(loader.dataset):
            self.fetch = loader.dataset.__getitems__  # type: ignore[attr-defined]
            self.where = "__getitems__ of the dataset (or in collate_fn)"
        self._shapes: set[Hashable] = set()

    def look(self, index: list[int], batch: object, args: Args, kwargs: Kwargs) -> None:
        """Refuse a batch in whose arguments records meet; nothing else is changed or kept."""
        given = _tensors(batch)
        if not due(self.layers, tuple((place, x.shape[1:]) for place, x in given.items()), self._shapes):
            return
        with RandomStates(next(self.layers.parameters()).device):
            try:
                meet = self._meet(index, given, *tree_flatten((args, kwargs)))
            except Exception:  # records, or the module, that cannot be run so: it cannot be told
                return
        if meet:
            raise validate.InvalidInput(
                f"examples meet in {self.where}: what it makes of a record changes with the records beside it, and so "
                "does the module's output for it, so that no record's gradient is its own. Pad to a public length in "
                "place of the longest record of the batch, or mask the padding wherever the module sums over it, and "
                f"compute nothing in {self.where} from several records"
            )

    def _meet(self, index: list[int], given: dict[str, Tensor], leaves: list[object], spec: TreeSpec) -> bool:
        n, records, fetch = len(index), dict[int, object](), self.fetch
        if fetch is None:
            records = {i: self.dataset[i] for i in index}

        def made(places: Iterable[int]) -> dict[str, Tensor]:
            chosen = [index[place] for place in places]
            if fetch is not None:
                return _tensors(self.collate(fetch(chosen)))
            return _tensors(self.collate([records[i] for i in chosen]))

        with RandomStates(torch.device("cpu")) as dice:
            whole, again = (made(range(n)) for _ in range(2))
            if dice.drew() or not all(torch.equal(x, again[place]) for place, x in whole.items()):
                return False
        copies, tried = 3 if n == 2 else 2, 0  # as many as the batch has would say nothing
        drawn = torch.Generator().manual_seed(secret.randbits(63))
        for place in torch.randperm(n, generator=drawn)[:EXAMPLES].tolist():
            own = made([place] * copies)
            other = {name for name, x in whole.items() if not _same(x, own[name], n, copies, place)}
            origins = [_origins(x, given, own) if isinstance(x, Tensor) else set() for x in leaves]
            computed = [x for x, names in zip(leaves, origins, strict=True) if not names and not isinstance(x, bool)]
            if any(
                isinstance(x, (int, float)) or examples_of(x, n, self.layers.batch_dim) is not None for x in computed
            ):
                return False  # by the loop, from the batch: a number, or something for its examples
            if other.isdisjoint(set().union(*origins)):
                continue
            together, alone = (tree_unflatten(_filled(leaves, origins, source), spec) for source in (whole, own))
            if depends(self.layers, together, alone, n, place):
                return True
            tried += 1
            if tried == _TRIED:
                return False
        return False


def _tensors(batch: object, place: str = "") -> dict[str, Tensor]:
    """The tensors of a batch, by where they are in it."""
    if isinstance(batch, Tensor):
        return {place: batch}
    items: Iterable[tuple[object, object]] = ()
    if isinstance(batch, Mapping):
        items = batch.items()
    elif isinstance(batch, (tuple, list)):
        items = enumerate(batch)
    return {name: x for key, item in items for name, x in _tensors(item, f"{place}/{key}").items()}


def _same(x: Tensor, own: Tensor, n: int, copies: int, place: int) -> bool:
    """Whether a record has in a batch of n what it has among copies of itself."""
    if x.ndim != own.ndim:
        return False
    cut = next((i for i in range(x.ndim) if x.shape[i] == n and own.shape[i] == copies), None)
    if cut is not None:
        x, own = x.select(cut, place), own.select(cut, 0)
    return torch.equal(x, own)


def _origins(x: Tensor, given: dict[str, Tensor], own: dict[str, Tensor]) -> set[str]:
    """Which tensors of a batch an argument is (on another device, or of another kind); none where several differ."""
    names = [name for name, y in given.items() if y is x]
    names = names or [name for name, y in given.items() if y.shape == x.shape and torch.equal(y.to(x), x)]
    if any(not torch.equal(own[name].to(x), own[names[0]].to(x)) for name in names):
        return set()
    return set(names)


def _filled(leaves: list[object], origins: list[set[str]], source: dict[str, Tensor]) -> list[object]:
    """Arguments of another batch: each from where it came from, all else as it is."""
    filled = leaves.copy()
    for place, names in enumerate(origins):
        x = leaves[place]
        if names and isinstance(x, Tensor):
            filled[place] = source[min(names)].to(x)
    return filled


class BatchMemoryManager:
    """Cuts the batches of a private loader to a physical size, within a `with` block.

    >>> BatchMemoryManager(data_loader=None, max_physical_batch_size=4, optimizer=None)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: data_loader=None is not allowed: give the loader that make_private returned
    """

    def __init__(self, *, data_loader: PrivateLoader, max_physical_batch_size: int, optimizer: object) -> None:
        private = isinstance(data_loader, PrivateLoader)
        validate.check(private, "data_loader", data_loader, "give the loader that make_private returned")
        validate.positive_int(max_physical_batch_size=max_physical_batch_size)
        self.data_loader, self.size = data_loader, max_physical_batch_size
        _check_physical(self.size, data_loader._draws.micro)

    def __enter__(self) -> PrivateLoader:
        draws = self.data_loader._draws
        self._before, draws.physical = draws.physical, self.size
        return self.data_loader

    def __exit__(self, *error: object) -> None:
        self.data_loader._draws.physical = self._before


def _check_physical(physical: int | None, micro: int) -> None:
    """Micro-batches are clipped whole: they are not cut."""
    validate.positive_int(micro_batch_size=micro)
    if physical is not None:
        validate.positive_int(max_physical_batch_size=physical)
        remedy = "give either this or micro_batch_size: micro-batches are clipped whole and cannot be cut"
        validate.check(micro == 1, "max_physical_batch_size", physical, remedy)


def _check_loader(loader: DataLoader) -> tuple[int, int]:
    """(n, batch size) of a user's loader."""
    validate.check(isinstance(loader, DataLoader), "data_loader", type(loader).__name__, "give a torch DataLoader")
    remedy = "give a loader of your own: this one is private already"
    validate.check(not isinstance(loader, PrivateLoader), "data_loader", loader, remedy)
    dataset, kind = loader.dataset, type(loader.dataset).__name__
    n = len(dataset) if isinstance(dataset, Sized) and not isinstance(dataset, datasets.IterableDataset) else 0
    remedy = "give a map-style dataset with at least one record: the sampling of a stream cannot be accounted"
    validate.check(n > 0, "data_loader.dataset", kind, remedy)
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        validate.refuse("data_loader.batch_size", size, "give a loader with a batch_size, which sets the sampling rate")
    validate.positive_int(**{"data_loader.batch_size": size})
    validate.at_most(n, "the number of records", batch_size=size)
    # batches are drawn anew from all records: a sampler that means something else would be ignored in silence
    remedy = "leave it out: batches are drawn secretly from the whole dataset; of some of the records give a Subset"
    own, sampler = type(loader.batch_sampler), loader.sampler
    validate.check(own is datasets.BatchSampler, "data_loader.batch_sampler", own.__name__, remedy)
    plain = type(sampler) is datasets.SequentialSampler
    if type(sampler) is datasets.RandomSampler:
        plain = not sampler.replacement and sampler.num_samples == n
    validate.check(plain, "data_loader.sampler", type(sampler).__name__, remedy)
    return n, size
