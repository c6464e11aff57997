"""Sets, sketches, clips and lifts of any shape and size: the laws of geometry hold, or the arguments are refused.

Inputs are drawn by hypothesis: the tests let it search and shrink, `make fuzz` lets atheris drive the same strategies
(`fuzz_one_input`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fuzz.target import DOCUMENTED, Target, check
from isthmus import project_and_lift, sets
from isthmus.base.space import Space
from isthmus.gradients import Dense
from isthmus.privacy.clips import Clip
from isthmus.sketches import (
    SRHT,
    Blocks,
    Coordinates,
    CountSketch,
    GaussianSketch,
    Identity,
    Kronecker,
    Nice,
    PerLeaf,
    RademacherSketch,
    SparseJL,
    TensorSketch,
)

SETTINGS = hypothesis.settings(
    max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
usual = st.floats(-1e3, 1e3, allow_subnormal=False)
sizes = st.floats(1e-3, 1e3)
wild = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
any_number = st.one_of(wild, st.floats(), st.integers(-5, 5), st.none(), st.booleans(), st.text(max_size=2))


def vectors(d: int, elements: st.SearchStrategy[float] = usual) -> st.SearchStrategy[np.ndarray]:
    """Vectors with ties and zeros among them."""
    return arrays(np.float64, d, elements=elements)


# ---------------------------------------------------------------- sets


@st.composite
def bodies(draw: Any, elements: st.SearchStrategy[float] = usual, radius: st.SearchStrategy[float] = sizes) -> Any:
    """A bounded set and its dimension."""
    d = draw(st.integers(1, 7))
    r = draw(radius)
    kind = draw(st.sampled_from("l1 l2 ball linf box lp simplex hull subspace ellipsoid nuclear group product".split()))
    if kind == "product":
        return sets.Product([(sets.L1Ball(r), d), (sets.Simplex(draw(radius)), 2), (sets.L2Ball(r), 1)]), d + 3
    made: dict[str, Callable[[], Any]] = {
        "l1": lambda: sets.L1Ball(r),
        "l2": lambda: sets.L2Ball(r),
        "ball": lambda: sets.L2Ball(r, draw(vectors(d, elements))),
        "linf": lambda: sets.LInfBall(r),
        "box": lambda: sets.Box(*np.sort(draw(arrays(np.float64, (2, d), elements=elements)), axis=0)),
        "lp": lambda: sets.LpBall(draw(st.one_of(st.floats(1, 20), st.floats(1, 1.001), st.floats(1))), r),
        "simplex": lambda: sets.Simplex(r),
        "hull": lambda: sets.ConvexHull(draw(arrays(np.float64, (draw(st.integers(1, 6)), d), elements=elements))),
        "subspace": lambda: sets.Subspace(draw(arrays(np.float64, (draw(st.integers(1, d)), d), elements=elements)), r),
        "ellipsoid": lambda: sets.Ellipsoid(np.abs(draw(vectors(d, elements))), r),
        "nuclear": lambda: sets.NuclearBall(r, (d, 1 if d > 3 else 2)),
        "group": lambda: sets.GroupBall([list(range(d // 2)), list(range(d // 2, d))] if d > 1 else [[0]], r),
    }
    body = made[kind]()
    return body, body.dim or d


@hypothesis.given(st.data())
@SETTINGS
def set_laws(data: st.DataObject) -> None:
    """Projections are nearest, minimisers are least, and both are members."""
    try:
        body, d = data.draw(bodies())
    except DOCUMENTED:
        return
    x, g = (torch.from_numpy(data.draw(vectors(d))) for _ in range(2))
    p, s = body.project(x), body.lmo(g)
    size = max(1.0, float(x.norm())) * max(1.0, float(p.norm()), body.diameter(d))
    gap = body.support(x - p) - float((x - p) @ p)
    check(gap <= 1e-7 * size, f"{body}: a projection with a better neighbour, by {gap / size:g}")
    check(body.contains(p) and body.contains(s), f"{body}: a projection or a minimiser outside")
    again = float((body.project(p) - p).norm())
    check(again <= 1e-8 * max(1.0, float(p.norm())), f"{body}: a projection that moves again, by {again:g}")
    scale = max(1.0, float(g.norm())) * max(1.0, float(s.norm()))
    check(abs(body.support(-g) + float(g @ s)) <= 1e-9 * scale, f"{body}: a support that no member reaches")
    check(float(g @ (p - s)) >= -1e-9 * scale * max(1.0, float(p.norm())), f"{body}: a member below the minimiser")
    check(float((p - s).norm()) <= body.diameter(d) * (1 + 1e-9) + 1e-12, f"{body}: members beyond the diameter")


@hypothesis.given(st.data())
@SETTINGS
def set_extremes(data: st.DataObject) -> None:
    """Numbers of any size: finite answers inside, or a refusal."""
    try:
        body, d = data.draw(bodies(wild, st.floats(1e-30, 1e30)))
    except DOCUMENTED:
        return
    kind = data.draw(st.sampled_from([torch.float64, torch.float32]))
    edge = 1e100 if kind is torch.float64 else 1e18
    x = torch.from_numpy(data.draw(vectors(d, st.floats(-edge, edge)))).to(kind)
    try:
        p, s = body.project(x), body.lmo(x)
    except DOCUMENTED:
        return  # the set is too large for float32
    check(p.dtype == kind and bool(p.isfinite().all()) and bool(s.isfinite().all()), f"{body}: no numbers for {x}")
    again = float((body.project(p) - p).double().norm())  # against the set's size: a hull spans 94 orders of magnitude
    slack = 1e-9 if kind is torch.float64 else 1e-4
    check(body.contains(p) or again <= slack * body.diameter(d), f"{body}: {x} is projected to {p}, outside")
    for value in (body.gauge(x), body.support(x), body.diameter(d)):
        check(not math.isnan(value), f"{body}: NaN for {x}")


@hypothesis.given(st.data())
@SETTINGS
def set_arguments(data: st.DataObject) -> None:
    """Arguments that make no sense are refused by name."""
    kind = data.draw(st.sampled_from([sets.L1Ball, sets.L2Ball, sets.LInfBall, sets.LpBall, sets.Simplex, sets.Box]))
    kinds = st.one_of(any_number, st.lists(any_number, max_size=3))
    count = 2 if kind in (sets.LpBall, sets.Box) else 1
    given, point = [data.draw(kinds) for _ in range(count)], data.draw(st.one_of(st.lists(wild, max_size=4), kinds))
    try:
        made = kind(*given)  # type: ignore[operator]
        values = np.asarray(made.project(point), dtype=np.float64)
    except DOCUMENTED:
        return
    check(bool(np.isfinite(values).all()), f"{made}: no numbers for {point}")


# ---------------------------------------------------------------- sketches


@st.composite
def spaces(draw: Any) -> Space:
    """A few leaves: vectors and matrices."""
    shapes = st.one_of(
        st.tuples(st.integers(1, 30)),
        st.tuples(st.integers(1, 9), st.integers(1, 9)),
        st.tuples(st.just(1), st.just(1)),
    )
    drawn = draw(st.lists(shapes, min_size=1, max_size=4))
    return Space.of({f"leaf{k}": shape for k, shape in enumerate(drawn)})


@st.composite
def encoders(draw: Any, d: int) -> Any:
    """Any map of R^d, its arguments in and out of range."""
    m: Any = draw(st.one_of(st.integers(1, d), st.floats(0.01, 1.0), st.integers(-1, 2 * d)))
    kinds: list[Callable[[], Any]] = [
        lambda: GaussianSketch(m, scaling=draw(st.sampled_from(["jl", "tight", None])) or "jl"),
        lambda: RademacherSketch(m),
        lambda: SparseJL(m, s=draw(st.one_of(st.none(), st.integers(0, 5), st.just("theorem")))),
        lambda: CountSketch(m),
        lambda: SRHT(m),
        lambda: TensorSketch(m),
        lambda: Coordinates(m),
        lambda: Nice(m),
        lambda: Identity(),
        lambda: Blocks(draw(st.integers(0, 8))),
        lambda: Kronecker(draw(st.integers(0, 5)), draw(st.integers(0, 5))),
        lambda: PerLeaf(draw(st.sampled_from([CountSketch(0.3), GaussianSketch(0.5), TensorSketch(0.4), SRHT(0.5)]))),
    ]
    return draw(st.sampled_from(kinds))()


@hypothesis.given(st.data())
@SETTINGS
def sketch_laws(data: st.DataObject) -> None:
    """Linear, with its adjoint, its matrix what it does, its gain no less than it is, the same when drawn again."""
    space = data.draw(spaces())
    try:
        encoder = data.draw(encoders(space.d))
        seed, t = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 10**6))
        sketch = encoder.draw(space, seed=seed, t=t)
    except DOCUMENTED:
        return
    noise = np.random.default_rng(seed % 1000)
    v, y = torch.from_numpy(noise.standard_normal(space.d)), torch.from_numpy(noise.standard_normal(sketch.m))
    phi, code = sketch.dense(), sketch.forward(v)
    check(
        code.shape == (sketch.m,) and torch.allclose(code, phi @ v, rtol=1e-9, atol=1e-9), f"{sketch}: not its matrix"
    )
    check(torch.allclose(sketch.adjoint(y), phi.T @ y, rtol=1e-9, atol=1e-9), f"{sketch}: not its adjoint")
    for ord, true in ((2, float(torch.linalg.matrix_norm(phi, 2))), (1, float(phi.abs().sum(0).max()))):
        check(sketch.gain(ord) >= true * (1 - 1e-12), f"{sketch}: a gain of {sketch.gain(ord)} below {true}")
    if sketch.tight:
        check(torch.allclose(sketch.forward(sketch.pinv(y)), y, rtol=1e-8, atol=1e-8), f"{sketch}: no pseudo-inverse")
    check(torch.equal(encoder.draw(space, seed=seed, t=t).dense(), phi), f"{sketch}: another one when drawn again")


@hypothesis.given(st.data())
@SETTINGS
def clip_laws(data: st.DataObject) -> None:
    """Whatever a record is, its weighted norm stays below the bound."""
    try:
        clip = Clip(data.draw(st.floats(1e-30, 1e31)), ord=data.draw(st.sampled_from([1, 2, math.inf, 3])))
    except DOCUMENTED:
        return
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    x = data.draw(
        arrays(kind, (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))), elements=st.floats(width=32))
    )
    weights = clip.weights(Dense(torch.from_numpy(x)), clip.bound)
    check(bool(((weights >= 0) & (weights <= 1)).all()), f"{clip}: weights {weights} of {x}")
    exact = np.nan_to_num(x.astype(np.longdouble), nan=0.0, posinf=0.0, neginf=0.0)
    bad = ~np.isfinite(x).all(axis=1)
    check(not bool((weights.numpy()[bad] != 0).any()), f"{clip}: a record without numbers counts in {x}")
    moved = np.linalg.norm(exact * weights.numpy().astype(np.longdouble)[:, None], ord=clip.ord, axis=1)
    check(bool((moved <= np.longdouble(clip.bound) * (1 + 1e-15)).all()), f"{clip}: {moved} for {x}")


@hypothesis.given(st.data())
@SETTINGS
def lift_laws(data: st.DataObject) -> None:
    """A lift is a member of the set, whatever the code is."""
    d = data.draw(st.integers(2, 12))
    m, seed = data.draw(st.integers(1, d)), data.draw(st.integers(0, 99))
    radius, code = data.draw(st.floats(1e-2, 1e2)), data.draw(vectors(m, st.floats(-1e2, 1e2)))
    body = data.draw(st.sampled_from([sets.L1Ball(radius), sets.L2Ball(radius), sets.Simplex(radius)]))
    sketch, start = GaussianSketch(m).draw(d, seed=seed), torch.from_numpy(data.draw(vectors(d)))
    lift = project_and_lift(body, sketch, torch.from_numpy(code), start)
    check(bool(torch.as_tensor(lift).isfinite().all()), f"{body}: a lift of {code} that is no number")
    check(body.contains(lift), f"{body}: a lift of {code} outside")


# ---------------------------------------------------------------- as targets

LAWS = {
    "set laws": set_laws,
    "set extremes": set_extremes,
    "set arguments": set_arguments,
    "sketch laws": sketch_laws,
    "clip laws": clip_laws,
    "lift laws": lift_laws,
}


def _driven(law: Any) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        law.hypothesis.fuzz_one_input(data)

    return run


def _bytes() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.bytes(size) for size in (40, 120, 400, 1500)]


TARGETS = [Target(name, _driven(law), _bytes) for name, law in LAWS.items()]
