"""Few bytes for `DistributedDataParallel`: gradients that are not private, by buckets (docs/distributed.md).

    ddp = torch.nn.parallel.DistributedDataParallel(module)
    ddp.register_comm_hook(SketchState(WarmRank(4)), sketch_hook)

Private training needs no hook: `make_private(group=)` never forms the gradients that a hook would see.
"""

from isthmus.distributed.hooks.hook import sketch_hook
from isthmus.distributed.hooks.low_rank import WarmRank
from isthmus.distributed.hooks.state import SketchState

__all__ = ["WarmRank", "SketchState", "sketch_hook"]
