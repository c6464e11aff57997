"""What is measured of steps on a device: times, memory, launches, the host's share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from lab.bench.cases import Facts, Work

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GIB, MIB, WAITING = "peak GiB", "MiB beyond the vector", "ms waiting"
STEPS, SAMPLE, WARM, MOST_WARM = 10, 0.6, 24, 60
"""Steps of a call, or as many as take so many seconds; steps before, and at most so many until one is recorded."""


def wait() -> None:
    """Until the device is done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def gauged(
    step: Callable[[], object], quick: bool, runs: Callable[[], int] | None = None, beyond: bool = False
) -> Work:
    """Several steps without waiting, as a training loop runs; memory and a recorded step have come to rest before.

    runs      how many recorded steps were run so far, of a step that may be recorded
    beyond    memory is that beyond what the device holds between the calls
    """
    first = _seconds(step)
    _warm_up(step, quick, runs)
    steps = 2 if quick else max(3, min(STEPS, int(SAMPLE / _seconds(step))))

    def call() -> None:
        for _ in range(steps):
            step()
        wait()

    held = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def facts() -> Facts:
        memory: Facts = {}
        if DEVICE == "cuda":  # before anything else is run
            peak = torch.cuda.max_memory_allocated()
            memory |= {MIB: (peak - held) / 2**20} if beyond else {GIB: peak / 2**30}
        return memory | _looked_at(step, steps, runs) | {"first s": first}

    return Work(call, facts, steps)


def _warm_up(step: Callable[[], object], quick: bool, runs: Callable[[], int] | None) -> None:
    least, most = (2, 2) if quick else (4, 4) if runs is None else (WARM, MOST_WARM)
    before = runs() if runs else 0
    for done in range(most):
        if done >= least and (runs is None or runs() > before):
            break
        step()
    wait()


def _seconds(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - began


def _looked_at(step: Callable[[], object], steps: int, runs: Callable[[], int] | None) -> Facts:
    """A loop that waits after every step, the processors' time in one that does not, and one step under a profiler."""
    waiting = statistics.median(_seconds(step) for _ in range(steps))
    before, used = runs() if runs else 0, time.process_time()
    for _ in range(steps):
        step()
    used = time.process_time() - used
    wait()
    times: Facts = {WAITING: 1e3 * waiting, "host ms": 1e3 * used / steps}
    if runs is not None and DEVICE == "cuda":
        times["recorded"] = (runs() - before) / steps
    return times | (_launches(step) if DEVICE == "cuda" else {})


def _launches(step: Callable[[], object]) -> Facts:
    """Kernel launches that the host asks for in a step, how often it waits, and the device's own milliseconds."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        step()
        torch.cuda.synchronize()  # counted under another name than the waits of a step
    events = profile.key_averages()
    starts, waits = ("cudaLaunchKernel", "cuLaunchKernel"), ("cudaStreamSynchronize", "cudaMemcpy")
    return {
        "launches": sum(event.count for event in events if event.key.startswith(starts)),
        "recordings started": sum(event.count for event in events if event.key == "cudaGraphLaunch"),
        "waits": sum(event.count for event in events if event.key in waits),
        "GPU ms": sum(event.self_device_time_total for event in events) / 1e3,
    }
