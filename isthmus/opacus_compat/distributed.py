"""Wrappers for several processes: refused, for `make_private(group=)` takes their place."""

from isthmus.opacus_compat.refused import refused

DifferentiallyPrivateDistributedDataParallel = refused(
    "DifferentiallyPrivateDistributedDataParallel",
    "give the bare module to make_private(group=True): the clipped sums of all processes are added there",
)

__all__ = ["DifferentiallyPrivateDistributedDataParallel"]
