"""Sketches of layered spaces: factored codes, public subspaces, residuals and schedules."""

from types import SimpleNamespace

import pytest
import scipy.sparse as sp
import torch
from sketch_cases import normal

from isthmus import InvalidInput, sketches
from isthmus.base.space import Space
from isthmus.gradients import Dense, Outer, Stack

SPACE = Space.of({"hidden": (4, 6), "out": (3, 5)})
N = 9


def rows(positions=2, sparse=False):
    middle = () if positions is None else (positions,)
    a = normal(N, *middle, 6)
    hidden = Outer(sp.csr_array(a.numpy()) if sparse else a, normal(N, *middle, 4, seed=1))
    return Stack([("hidden", hidden), ("out", Outer(normal(N, 1, 5, seed=2), normal(N, 1, 3, seed=3)))])


class Rounds:
    """A context that counts how often it is asked for public rows."""

    def __init__(self, public=None, space=SPACE, dtype=torch.float64):
        self.public, self.space, self.seed, self.t, self.epoch = public, space, 0, 0, 0
        self.device = None
        self.w, self.asked, self.bound = torch.zeros(space.d, dtype=dtype), [], {}

    def rows(self, data):
        self.asked.append(data)
        return self.public

    def bind(self, encoder):
        if encoder not in self.bound:
            self.bound[encoder] = encoder.bind(self, None)[0]
        return self.bound[encoder]


@pytest.mark.parametrize("encoder", [sketches.Kronecker(3, 2), sketches.KroneckerSubspace(3, 2, data=0)])
def test_kronecker_codes_stay_factored_in_their_own_space(encoder):
    sketch, _ = encoder.bind(Rounds(rows()), None)
    codes = sketch.encode(rows(1))
    assert [(leaf.name, leaf.shape) for leaf in sketch.code_space.leaves] == [("hidden", (2, 3)), ("out", (2, 3))]
    assert [(name, type(piece)) for name, piece in codes.leaves()] == [("hidden", Outer), ("out", Outer)]


def test_kronecker_coverage_is_that_of_each_leaf():
    coverage = sketches.Kronecker(3, 2).draw(SPACE).coverage
    assert coverage[:24].unique().tolist() == [6 / 24] and coverage[24:].unique().tolist() == [6 / 15]


def test_rank_deficient_public_gradients():
    public = Dense(torch.cat([normal(2, 39), torch.zeros(3, 39, dtype=torch.float64)]))
    assert sketches.PublicSubspace(5, data=0).bind(Rounds(public), None)[0].m == 2
    whole = sketches.KroneckerSubspace(6, 4, data=0).bind(Rounds(public), None)[0]
    torch.testing.assert_close(whole.dense() @ whole.dense().T, torch.eye(39, dtype=torch.float64))


@pytest.mark.parametrize(
    "encoder", [sketches.PublicSubspace(2, data="d", refresh=3), sketches.KroneckerSubspace(2, 1, data="d", refresh=3)]
)
def test_public_maps_are_refreshed_every_few_rounds(encoder):
    context, state, maps = Rounds(rows()), None, []
    for context.t in range(7):
        context.public = Dense(normal(5, 39, seed=context.t))
        sketch, state = encoder.bind(context, state)
        maps.append(sketch.dense())
    assert context.asked == ["d"] * 3
    assert [torch.equal(a, b) for a, b in zip(maps, maps[1:], strict=False)] == [True, True, False] * 2


def test_public_subspace_is_the_identity_before_its_epoch_and_passes_the_loss():
    context, encoder = Rounds(rows()), sketches.PublicSubspace(2, data="d", loss="l", start_epoch=1)
    sketch, state = encoder.bind(context, None)
    assert sketch.m == SPACE.d and state is None and context.asked == []
    context.epoch = 1
    assert encoder.bind(context, state)[0].m == 2 and context.asked == [("d", "l")]


@pytest.mark.parametrize(
    "encoder", [sketches.CountSketch(5), sketches.PublicSubspace(3, data=0), sketches.Kronecker(2, 2)]
)
def test_residual_is_what_the_shared_map_loses(encoder):
    context, given = Rounds(rows()), rows()
    sketch, _ = sketches.Residual(encoder).bind(context, None)
    inner = context.bind(encoder)
    projector = torch.eye(39, dtype=torch.float64) - torch.linalg.pinv(inner.dense()) @ inner.dense()
    torch.testing.assert_close(sketch.dense(), projector)
    torch.testing.assert_close(sketch.encode(given).dense(), given.dense() @ projector)
    torch.testing.assert_close(sketch.join(dict(given.leaves())).dense(), given.dense() @ projector)
    torch.testing.assert_close(sketch.rows(normal(3, 10), 5), normal(3, 10) @ projector[5:15])
    torch.testing.assert_close(sketch.pinv(normal(39)), projector @ normal(39))
    for ord, value in ((1, projector.abs().sum(0).max()), (2, torch.linalg.svdvals(projector)[0])):
        assert sketch.gain(ord) >= float(value)
    assert sketch.gain(float("inf")) >= float(projector.abs().sum(1).max())


def test_progressive_follows_the_epoch():
    context, state = Rounds(rows()), None
    schedule = sketches.Progressive(
        [(1, sketches.PublicSubspace(2, data="d")), (2, sketches.Kronecker(3, 2)), (9, sketches.Identity())]
    )
    sizes = []
    for context.epoch in (0, 0, 1, 2, 50):
        sketch, state = schedule.bind(context, state)
        sizes.append(sketch.m)
    assert sizes == [2, 2, 12, 39, 39] and context.asked == ["d"]


def test_encoders_bring_the_facts_that_others_ask_for():
    public, before = sketches.PublicSubspace(1), sketches.PublicSubspace(1, clip="before")
    subspace, leafwise = sketches.KroneckerSubspace(1, 1), sketches.PerLeaf(sketches.CountSketch(2))
    layers = (sketches.Identity(), sketches.Kronecker(1, 1), subspace, leafwise)
    assert all(encoder.keeps_layers for encoder in layers) and not sketches.CountSketch(2).keeps_layers
    assert before.clips_before and not public.clips_before and not sketches.CountSketch(2).clips_before
    schedule = sketches.Progressive([(1, sketches.Identity()), (2, public)])
    learned = (public, subspace, sketches.Residual(public), schedule)
    assert all(encoder.public for encoder in learned) and not sketches.Residual(sketches.Identity()).public
    assert sketches.Progressive([(1, before), (2, before)]).clips_before
    assert sketches.Progressive([(1, sketches.Identity()), (2, sketches.Kronecker(1, 1))]).keeps_layers
    assert not schedule.keeps_layers
    with pytest.raises(InvalidInput, match="let every part of the schedule clip"):
        _ = sketches.Progressive([(1, before), (2, public)]).clips_before


def test_a_schedule_keeps_the_map_that_serves_many_rounds():
    def token(encoder, t, epoch):
        return encoder.token(SimpleNamespace(seed=3, t=t, epoch=epoch))

    lasting = sketches.Kronecker(2, 2, refresh=10)
    schedule = sketches.Progressive([(1, sketches.Kronecker(2, 2)), (9, lasting)])
    assert token(schedule, 0, 0) is None and token(schedule, 12, 1) == token(schedule, 19, 1) != token(schedule, 20, 1)
    assert token(sketches.Residual(lasting), 12, 0) == token(lasting, 12, 0) is not None
