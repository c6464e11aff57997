"""Items that several threads share out: each is done once, by one thread, as the caller would have done it."""

import threading
from collections.abc import Iterator

import pytest
import torch

from isthmus.base.parallel import share_out


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_every_item_is_done_once(threads: int, size: int) -> None:
    done: list[int] = []
    share_out(done.append, range(size))
    assert sorted(done) == list(range(size)) and torch.get_num_threads() == threads


def test_as_many_threads_as_torch_may_use_take_part(threads: int) -> None:
    """Each waits for all the others: with fewer of them nobody would come through."""
    meeting, seen = threading.Barrier(threads, timeout=60), set()

    def work(item: int) -> None:
        meeting.wait()
        seen.add(threading.get_ident())

    share_out(work, range(threads))
    assert len(seen) == threads and threading.get_ident() in seen


def test_no_operation_is_shared_meanwhile(threads: int) -> None:
    found: list[int] = []
    share_out(lambda item: found.append(torch.get_num_threads()), range(20))
    assert found == [1] * 20


def test_modes_are_those_of_the_caller(threads: int) -> None:
    found: list[tuple[bool, bool]] = []

    def work(item: int) -> None:
        found.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with mode:
            share_out(work, range(9))
    assert found == [(True, False)] * 9 + [(False, False)] * 9 + [(False, True)] * 9


def test_an_error_arrives(threads: int) -> None:
    def work(item: int) -> None:
        if item == 7:
            raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        share_out(work, range(20))
    assert torch.get_num_threads() == threads
