"""`BatchMemoryManager`: batches in pieces that fit into memory, with a length that counts the pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from isthmus.engine.loader import BatchMemoryManager as Cutter
from isthmus.engine.loader import PrivateLoader

__all__ = ["BatchMemoryManager", "wrap_data_loader"]


class PhysicalBatches:
    """A private loader seen by its pieces.

    `len()` is the number of pieces for batches of a fixed size, and about that number for Poisson batches, whose sizes
    vary: it is computed from the public size of a batch.
    """

    def __init__(self, loader: PrivateLoader, size: int) -> None:
        self.loader, self.size = loader, size

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader) * math.ceil(round(self.loader.sample_rate * len(self.loader.dataset)) / self.size)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class BatchMemoryManager(Cutter):
    """Cuts the batches of a private loader to a physical size, within a `with` block."""

    def __enter__(self) -> PhysicalBatches:  # type: ignore[override]
        return PhysicalBatches(super().__enter__(), self.size)


def wrap_data_loader(*, data_loader: PrivateLoader, max_batch_size: int, optimizer: Any) -> PhysicalBatches:
    """The loader's batches in pieces, from now on."""
    options = {"data_loader": data_loader, "max_physical_batch_size": max_batch_size, "optimizer": optimizer}
    return BatchMemoryManager(**options).__enter__()
