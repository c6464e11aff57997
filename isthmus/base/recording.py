"""Work of a device that is recorded once and run again: CUDA graphs, for computations whose memory comes back.

A training loop asks for the same thing in every step: the same kernels, of tensors that the allocator puts in the same
places.  What the host does to ask for it, thousands of calls, is then done once: a `Replay` notes where the inputs of a
computation lie, records the computation when all of them come back to the same places, and from then on has the device
run what was recorded.  Nothing depends on it: another batch size, another place, whatever cannot be recorded, is
computed as before.

What keeps it sound.  The key of a recording holds the place, shape, strides and dtype of every input and everything
else that the caller says the computation depends on; while it is recorded, an operation that reads memory of anybody
else is refused, also a kernel of our own, which says what it `reads`; results are copied out before anything runs
again; and after the 1st, 2nd, 4th, 8th, ... run the result is compared with the ordinary computation.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")
Key = tuple[Hashable, ...]

AGAIN = 2
"""How often inputs must have come to the same places before the computation is recorded."""
_MAX_RECORDINGS = 8
"""Recordings that are kept."""
PATIENCE = 64
"""Computations in a row that nothing was recorded for, after which no more is looked for."""


class _ThisThread(threading.local):
    recording = False


_HERE = _ThisThread()


def recording_now() -> bool:
    """Whether the work of this thread is being recorded."""
    return _HERE.recording


def reads(*tensors: Tensor) -> None:
    """Tell what a kernel of our own is given: torch does not see it, and nor would the watch over what is recorded."""
    if recording_now():
        for x in tensors:
            x.detach()  # an operation that asks nothing of the device, and is refused as any other


class _Unrecordable(RuntimeError):
    """Work that cannot be recorded: it reads memory that is no input."""


@dataclass
class _Recording(Generic[T]):
    """One recorded computation: its graph and its result."""

    graph: torch.cuda.CUDAGraph
    result: T
    runs: int = 0


class _Watch(TorchDispatchMode):
    """Refuses operations that read memory of nobody that is known."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = {_place(x) for x in known}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and x.numel() and _place(x) not in self.known:
                raise _Unrecordable(f"{func} reads a tensor that is no input")
        out = func(*args, **kwargs)
        self.known.update(_place(x) for x in tree_leaves(out) if isinstance(x, Tensor))
        return out


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any) -> Iterator[None]:
    """The work of this thread goes into the graph: as `torch.cuda.graph` does, but the allocator keeps its memory.

    An emptied cache would have the inputs of the next steps come to other places.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    collects = gc.isenabled()
    gc.disable()  # what is collected meanwhile may be memory of a device
    _HERE.recording = True
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        _HERE.recording = False
        if collects:
            gc.enable()


def _place(x: Tensor) -> tuple[str, int]:
    return x.device.type, x.untyped_storage().data_ptr()


class Replay(Generic[T]):
    """Computes `compute()`, or has the device run what it recorded of it.

    renew    a result with tensors of its own: the recorded one is overwritten by the next run
    same     whether two results are the same up to the order of additions; None for what works on memory of others
    """

    def __init__(
        self, renew: Callable[[T], T] = lambda result: result, same: Callable[[T, T], bool] | None = None
    ) -> None:
        self.renew, self.same = renew, same
        self.on = True
        """Whether computations are recorded at all."""
        self.runs = 0
        """How often a recording was run."""
        self.why = ""
        """Why the last computation that should have been recorded was not."""
        self._seen: OrderedDict[Key, int] = OrderedDict()
        self._kept: OrderedDict[Key, _Recording[T] | None] = OrderedDict()
        self._idle = 0
        self._pool: Any = None

    def __call__(self, key: Hashable, inputs: Sequence[Tensor], compute: Callable[[], T]) -> T:
        """The result for these inputs; `key` holds whatever else it depends on."""
        if not self.on or not inputs or not all(x.is_cuda for x in inputs):
            return compute()
        places = tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in inputs)
        whole: Key = (key, places, torch.is_autocast_enabled("cuda"), torch.get_float32_matmul_precision())
        if whole not in self._kept:
            times = self._seen[whole] = self._seen.pop(whole, 0) + 1
            if times <= AGAIN:
                return self._wait(compute)
            del self._seen[whole]
            self._kept[whole] = self._recorded(inputs, compute)
            if len(self._kept) > _MAX_RECORDINGS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(whole)
        recording = self._kept[whole]
        if recording is None:
            return self._wait(compute)
        self._idle = 0
        return self._again(recording, compute)

    def forget(self) -> None:
        """Drop every recording, and the memory it holds."""
        self._seen.clear()
        self._kept.clear()

    def _wait(self, compute: Callable[[], T]) -> T:
        self._idle += 1
        if self._idle > PATIENCE:
            self.on = False
            self.forget()
        while len(self._seen) > PATIENCE:
            self._seen.popitem(last=False)
        return compute()

    def _recorded(self, inputs: Sequence[Tensor], compute: Callable[[], T]) -> _Recording[T] | None:
        """The computation as a graph; None where it cannot be one."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with _capturing(graph, inputs[0].device, self._pool), _Watch(inputs):
                result = compute()
        except Exception as error:  # whatever it is, the ordinary computation says it again
            self.why = f"{type(error).__name__}: {error}"
            torch.cuda.synchronize()
            return None
        return _Recording(graph, result)

    def _again(self, recording: _Recording[T], compute: Callable[[], T]) -> T:
        self.runs += 1
        recording.runs += 1
        recording.graph.replay()
        result = self.renew(recording.result)
        looked = self.same is not None and recording.runs & (recording.runs - 1) == 0
        if looked and self.same is not None and not self.same(result, compute()):
            self.on = False
            raise RuntimeError(
                "what the device ran again is not what it computes: a recorded step differs from an ordinary one; "
                "nothing was released; please report this, and "
                "set engine.driver.pending.replay.on = False to train without recordings"
            )
        return result
