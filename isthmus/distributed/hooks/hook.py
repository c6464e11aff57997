"""The hook: one bucket, one all-reduce, in the order of the buckets.

    v = g + e,   y = mean over ranks of Phi v,   gradient = Phi^+ y,   e = v - Phi^+ Phi v

Every bucket has exactly one collective, and it is started when DDP hands the bucket over, which is in the same order on
all ranks.  (A hook that starts another one when the first has arrived leaves the order of its collectives to threads:
PowerSGD's aborts on gloo.)  The map is linear and shared, so the mean of the ranks' errors is what one process with the
mean gradient would have left.
"""

import torch  # annotations are evaluated here: DDP reads those of a hook
import torch.distributed as dist
from torch import Tensor

from isthmus.distributed.hooks.state import SketchState
from isthmus.distributed.hooks.ways import Layout, Linear

Future = torch.futures.Future


def sketch_hook(state: SketchState, bucket: dist.GradBucket) -> Future[Tensor]:
    """The mean gradient of a bucket through the state's map; `ddp.register_comm_hook(state, sketch_hook)`.

    Numbers travel in the dtype of the bucket, so torch's `bf16_compress_wrapper` and `fp16_compress_wrapper` halve
    them; what that rounds off is kept too.  A gradient that is not finite on any rank is NaN on all of them, and leaves
    errors and bases as they were: a `GradScaler` skips that step.
    """
    layout, buffer, t = state.layout(bucket), bucket.buffer(), state.t
    state.t += bucket.is_last()
    state.plain += buffer.numel() * buffer.element_size()
    if t < state.start:
        return _whole(state, buffer)
    return _sketched(state, layout, buffer, t)


def _whole(state: SketchState, buffer: Tensor) -> Future[Tensor]:
    """The mean as it is."""
    state.sent += buffer.numel() * buffer.element_size()
    return _mean(state, buffer).then(lambda done: done.value()[0])


def _sketched(state: SketchState, layout: Layout, buffer: Tensor, t: int) -> Future[Tensor]:
    wide = torch.promote_types(buffer.dtype, torch.float32)
    before = state.error(layout)
    v = buffer.to(wide, copy=True) if before is None else before.to(buffer.device) + buffer
    drawn = state.way.map(layout, state.seed, t, state.kept, v)
    code = drawn.forward(v)
    code.masked_fill_(~v.sum().isfinite(), torch.nan)  # also where a map does not look
    wire = code.to(buffer.dtype)
    state.sent += wire.numel() * wire.element_size()
    own = wire.to(wide, copy=True)
    coming = _mean(state, wire)
    left = _left(drawn, v, own) if state.feedback else None  # while the numbers travel

    def lifted(done: Future[list[Tensor]]) -> Tensor:
        mean = done.value()[0].to(wide)
        if not mean.sum().isfinite():
            return buffer.fill_(torch.nan)
        if left is not None:
            state.keep(layout, left)
        state.way.learn(drawn, mean, state.seed, t, state.kept)
        return buffer.copy_(drawn.pinv(mean))

    return coming.then(lifted)


def _left(drawn: Linear, v: Tensor, own: Tensor) -> Tensor:
    """v - Phi^+ y for the y that was sent, in the room of v."""
    return v.sub_(drawn.pinv(own))


def _mean(state: SketchState, wire: Tensor) -> Future[list[Tensor]]:
    """One all-reduce; divided first, so that halves do not overflow."""
    wire.div_(dist.get_world_size(state.process_group))
    return dist.all_reduce(wire, group=state.process_group, async_op=True).get_future()
