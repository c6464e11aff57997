"""Wrappers for several processes: refused, since each would be a training of its own."""

from isthmus.opacus_compat.refused import refused

DifferentiallyPrivateDistributedDataParallel = refused(
    "DifferentiallyPrivateDistributedDataParallel", "train in one process: clipped sums are not added up over processes"
)

__all__ = ["DifferentiallyPrivateDistributedDataParallel"]
