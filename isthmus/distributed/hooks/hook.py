"""The hook: one bucket after the other, and everything of a bucket in one order.

    v = g + e,   y = mean over ranks of Phi v,   gradient = Phi^+ y,   e = v - Phi^+ Phi v

A bucket has one collective, started when DDP hands the bucket over, which is in the same order on all ranks; where its
map is made from the gradient (`WarmRank`), another one before it, which is waited for.  (A hook that starts another
one when the first has arrived leaves the order of its collectives to threads: PowerSGD's aborts on gloo.)  The map is
linear and shared: the mean of the ranks' errors is what one process with the mean gradient would have left.
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
    them; what that rounds off is kept too.  A bucket that is not finite on any rank is NaN on all of them, and leaves
    its errors and bases as they were: a `GradScaler` skips that step.
    """
    layout, buffer, t = state.layout(bucket), bucket.buffer(), state.t
    state.t += bucket.is_last()
    state.plain += buffer.numel() * buffer.element_size()
    if t < state.start:
        return _whole(state, buffer)
    return _sketched(state, layout, buffer, t)


def _whole(state: SketchState, buffer: Tensor) -> Future[Tensor]:
    """The mean as it is."""
    return _sum(state, buffer.div_(_size(state))).then(lambda future: future.value()[0])


def _sketched(state: SketchState, layout: Layout, buffer: Tensor, t: int) -> Future[Tensor]:
    wide = torch.promote_types(buffer.dtype, torch.float32)
    before = state.error(layout)
    v = buffer.to(wide, copy=True) if before is None else before.to(buffer.device) + buffer
    drawn = state.way.map(layout, state.seed, t, state.bases, v, lambda part: _mean_now(state, part, buffer.dtype))
    code = drawn.forward(v)
    code.masked_fill_(~v.sum().isfinite(), torch.nan)  # also where a map does not look
    wire = (code / _size(state)).to(buffer.dtype)  # divided first, so that halves do not overflow
    own = wire.to(wide) * _size(state)
    coming = _sum(state, wire)
    error = _remainder(drawn, v, own) if state.feedback else None  # while the numbers travel

    def lifted(future: Future[list[Tensor]]) -> Tensor:
        mean = future.value()[0].to(wide)
        if not mean.sum().isfinite():
            return buffer.fill_(torch.nan)
        if error is not None:
            state.keep(layout, error)
        state.way.learn(drawn, mean, state.seed, t, state.bases)
        return buffer.copy_(drawn.pinv(mean))

    return coming.then(lifted)


def _remainder(drawn: Linear, v: Tensor, own: Tensor) -> Tensor:
    """v - Phi^+ y for the y that was sent, in the room of v."""
    return v.sub_(drawn.pinv(own))


def _sum(state: SketchState, wire: Tensor) -> Future[list[Tensor]]:
    """The one all-reduce of a bucket."""
    state.sent += wire.numel() * wire.element_size()
    return dist.all_reduce(wire, group=state.process_group, async_op=True).get_future()


def _mean_now(state: SketchState, part: Tensor, dtype: torch.dtype) -> Tensor:
    """A mean that the map of this bucket hangs on: waited for, before anything else of the bucket is sent."""
    wire = (part / _size(state)).to(dtype)
    _sum(state, wire).wait()
    return wire.to(part.dtype)


def _size(state: SketchState) -> int:
    return dist.get_world_size(state.process_group)
