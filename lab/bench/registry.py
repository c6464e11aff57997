"""All benchmarks by name, in the order of the page."""

from __future__ import annotations

from lab.bench import calibrating, coding, compressing, devices, fitting, lifting, projecting, sketching, steps
from lab.bench.cases import Benchmark

FAMILIES = (steps, compressing, sketching, projecting, lifting, coding, calibrating, fitting, devices)
HOMES = {benchmark.name: family.__name__ for family in FAMILIES for benchmark in family.BENCHMARKS}
"""The module of each benchmark: a worker imports no other."""
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for family in FAMILIES for benchmark in family.BENCHMARKS}
