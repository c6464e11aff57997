"""Several parts of one piece of work at once, each on a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Found = TypeVar("Found")


def in_order(work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[Found]:
    """`work(item)` of every item, in their order, by as many threads as torch may use; each item by one of them.

    Small operations that share their threads wait for each other; whole items do not.  The first is done alone: what
    is made at its first use is then there.

    >>> list(in_order(lambda x: x * x, [1, 2, 3]))
    [1, 4, 9]
    """
    threads = min(torch.get_num_threads(), len(items) - 1)
    if threads <= 1:
        yield from map(work, items)
        return
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        yield work(items[0])
        ahead = 2 * threads  # what is done waits in memory: not much of it
        waiting = deque(pool.submit(work, item) for item in items[1 : 1 + ahead])
        try:
            for item in items[1 + ahead :]:
                result = waiting.popleft().result()
                waiting.append(pool.submit(work, item))
                yield result
                del result
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def share_out(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """`work(item)` of every item, by as many threads as torch may use, this one among them; each item by one of them.

    Nobody waits for anybody before the end: a thread that is held up holds up one item, where threads that share every
    operation wait for it each time.  Modes of autograd are as they are here.

    >>> squares = torch.arange(4.0)
    >>> share_out(lambda x: x.mul_(x), squares.split(1))
    >>> squares
    tensor([0., 1., 4., 9.])
    """
    helpers, waiting = min(torch.get_num_threads(), len(items)) - 1, iter(items)
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def serve() -> None:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            for item in waiting:  # which gives an item to one thread only
                work(item)

    with one_thread():
        if helpers < 1:
            return serve()
        with ThreadPoolExecutor(helpers) as pool:
            others = [pool.submit(serve) for _ in range(helpers)]
            serve()
            for other in others:
                other.result()


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """torch's operations on one thread meanwhile."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ahead(work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[Found]:
    """`work(item)` of every item in order, the next one done by another thread while the last is looked at.

    >>> list(ahead(abs, [-1, 2]))
    [1, 2]
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[Found] | None = None
        for item in items:
            done, waiting = waiting, pool.submit(work, item)
            if done is not None:
                yield done.result()
        if waiting is not None:
            yield waiting.result()
