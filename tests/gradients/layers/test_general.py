"""Modules that own bare parameters, by taps at operations: against one backward pass an example."""

import copy

import pytest
import torch
from layer_reference import Built, agree, agrees_in_bfloat16, attached, capture, squares, truth
from refusals import refuses
from torch import nn
from torch.utils.checkpoint import checkpoint

from isthmus.base.validate import InvalidInput
from isthmus.core.driver import TorchDriver
from isthmus.core.pipeline import Pipeline, Stage
from isthmus.gradients import Dense, Lazy, rounding
from isthmus.gradients.layers import Layers, operations
from isthmus.objectives.module import captured
from isthmus.parts import Shuffle


class LowRank(nn.Linear):
    """W + B A with W frozen."""

    def __init__(self, p, q, rank=2):
        super().__init__(p, q)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(rank, p)), nn.Parameter(torch.randn(q, rank))

    def forward(self, x):
        return super().forward(x) + (x @ self.down.T) @ self.up.T


class Scale(nn.Module):
    """exp(s) x + shift, with a scalar parameter and a nested argument."""

    def __init__(self, p):
        super().__init__()
        self.s, self.shift = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.randn(p))

    def forward(self, pair, *, more):
        x, (y,) = pair
        return self.s.exp() * x * more["gate"] + self.shift * y


def nested():
    gate = nn.Buffer(torch.tensor([1.0, 2.0, 3.0]))
    more = {"flag": True, "none": None}
    return Built(lambda m, x: m.scale((x, (x.cos(),)), more={"gate": m.gate, **more}), scale=Scale(3), gate=gate)


class Vision(nn.Module):
    """A small vision transformer: class token and position embedding are bare parameters of the root."""

    def __init__(self, dropout=0.0, mode=None):
        super().__init__()
        self.patch, self.mode = nn.Linear(4, 6), mode
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 4, 6))
        self.body = nn.TransformerEncoderLayer(6, 2, 8, dropout, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = self.patch(x)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        x = self.body(x) if self.mode is None else checkpoint(self.body, x, use_reentrant=self.mode)
        return self.head(x[:, 0])


def many(m, x):
    """Several outputs, one of them used inside for another, one an argument, one twice."""
    h = x @ m.w
    return {"h": h, "more": [torch.sin(h) * m.v, x, h], "index": h.argmax(-1), "none": None}


def uses_many(m, x):
    found = m.many(m.first(x))
    sine, passed, again = found["more"]
    return found["h"] + 2 * sine + passed.square() + again * found["index"].unsqueeze(-1)


def several():
    parts = {"w": nn.Parameter(torch.randn(3, 3)), "v": nn.Parameter(torch.randn(3))}
    return Built(uses_many, first=nn.Linear(3, 3), many=Built(many, **parts))


def curved(p, q):
    """x' W_k x: an operation that keeps no factors, so that each example has a copy of W, or rows come in chunks."""
    return Built(lambda m, x: torch.einsum("bi,bj,kij->bk", x, x, m.w), w=nn.Parameter(torch.randn(q, p, p)))


def distances(p, q):
    """Distances from points, which depend on these otherwise than linearly."""
    return Built(lambda m, x: torch.cdist(x[:, None], m.w)[:, 0], w=nn.Parameter(torch.randn(q, p)))


class Outside(nn.Module):
    """A layer of one's own that is computed again in the backward pass."""

    def __init__(self, mode=None):
        super().__init__()
        self.first, self.layer, self.mode = nn.Linear(3, 3), LowRank(3, 2), mode

    def forward(self, x):
        x = self.first(x)
        return self.layer(x) if self.mode is None else checkpoint(self.layer, x, use_reentrant=self.mode)


@pytest.fixture
def no_room(monkeypatch):
    """No memory for copies: rows are computed a few at a time, from the gradient of the output."""
    monkeypatch.setattr(rounding, "CHUNK_BYTES", 100)


def total(output, _):
    return output.sum()


def pair(module, *shape, dtype=torch.float64, seed=0):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=draws, dtype=dtype)
    with torch.no_grad():
        y = module(x)
    return x, torch.randn(y.shape, generator=draws, dtype=dtype)


CASES = {
    "low rank": (lambda: nn.Sequential(nn.Linear(5, 4), LowRank(4, 3)), (5, 5)),
    "low rank, positions": (lambda: nn.Sequential(LowRank(4, 3), nn.ReLU(inplace=True), LowRank(3, 2)), (4, 2, 4)),
    "nested arguments": (nested, (4, 3)),
    "curved": (lambda: nn.Sequential(nn.Linear(5, 4), curved(4, 3), nn.Tanh(), nn.Linear(3, 2)), (5, 5)),
    "vision": (Vision, (5, 3, 4)),
    "one example": (Vision, (1, 3, 4)),
    "many outputs": (several, (4, 3)),
    "called twice": (lambda: Built(lambda m, x: m.layer(m.layer(x).tanh()), layer=LowRank(3, 3)), (4, 3)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_their_codes_are_those_of_the_reference(case, dtype):
    torch.manual_seed(0)
    make, shape = CASES[case]
    module = make().to(dtype)
    agree(module, *pair(module, *shape, dtype=dtype))


def test_rows_that_do_not_fit_are_computed_in_chunks_with_the_weights_of_their_time(no_room, monkeypatch):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 4), distances(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)).double()
    x, y = pair(module, 5, 5)
    torch.manual_seed(2)
    layers, rows = capture(module, squares, x, y)
    pieces = dict(rows.leaves())
    assert isinstance(pieces["1.w"], Lazy)
    layers.unpack(torch.zeros(layers.space.d, dtype=torch.float64))
    found = rows.dense()
    assert torch.equal(pieces["1.w"].part(1, 3).dense(), pieces["1.w"].dense()[1:3])
    monkeypatch.undo()
    torch.manual_seed(2)
    layers, rows = capture(module, squares, x, y)
    assert isinstance(dict(rows.leaves())["1.w"], Dense)
    torch.testing.assert_close(found, rows.dense(), rtol=1e-10, atol=1e-10)


def test_rows_that_do_not_fit_are_those_of_single_examples(no_room):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 4), curved(4, 3), nn.Linear(3, 2)).double()
    agree(module, *pair(module, 5, 5))


def test_examples_in_the_second_dimension():
    torch.manual_seed(2)
    parts = {"place": nn.Parameter(torch.randn(3, 1, 4)), "out": nn.Linear(4, 2)}
    module = Built(lambda m, x: m.out((x + m.place).tanh()), **parts).double()
    agree(module, *pair(module, 3, 5, 4), batch_dim=1)


def test_an_empty_batch_has_no_rows():
    rows = captured(Layers(Vision()), squares, torch.zeros(0, 3, 4), torch.zeros(0, 2))
    assert rows.n == 0 and rows.sum().shape == (rows.d,) and not rows.sum().any()


def test_a_parameter_shared_with_a_child_or_under_two_names_is_one_leaf():
    torch.manual_seed(3)
    child = nn.Linear(3, 3, bias=False)
    parts = {"child": child, "weight": child.weight, "again": child.weight}
    module = Built(lambda m, x: m.child(x).tanh() @ m.weight + x @ m.again.T, **parts).double()
    rows = agree(module, *pair(module, 4, 3))
    assert rows.d == 9


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(("make", "shape"), [(Outside, (4, 3)), (Vision, (4, 3, 4))])
def test_checkpointing_around_and_inside_a_module_with_bare_parameters(make, shape, reentrant):
    torch.manual_seed(5)
    module = make().double()
    x, y = pair(module, *shape)
    exact = truth(module, squares, x, y)
    module.mode = reentrant
    torch.testing.assert_close(capture(module, squares, x, y)[1].dense(), exact, rtol=1e-10, atol=1e-10)


def test_checkpointing_inside_a_layer_of_ones_own_is_refused():
    module = bad(lambda x, w: checkpoint(lambda z: (z * w).sin(), x, use_reentrant=True))
    with pytest.raises(InvalidInput, match="gradient checkpointing"):
        capture(module, total, torch.randn(2, 3), torch.zeros(2))


def test_without_a_listener_and_after_removal_the_layer_is_itself():
    module = Vision()
    x = torch.randn(2, 3, 4)
    expected = module(x).detach()
    handles = (layers := Layers(module)).attach()
    with layers.listening(None):
        torch.testing.assert_close(module(x), expected)
    for handle in handles:
        handle.remove()
    assert "forward" not in module.__dict__


def bad(function):
    """A layer with one bare parameter that does something no single example can follow."""
    return nn.Sequential(Built(lambda m, x: function(x, m.w), w=nn.Parameter(torch.ones(3))))


def in_place(x, w):
    return x.mul_(2) * w


BAD = {
    "control flow": (lambda x, w: x * w if x.sum() > 0 else x + w, "one example at a time.*control flow"),
    "value": (lambda x, w: x * w * x[0, 0].item(), "one example at a time"),
    "in place": (in_place, "changes its arguments in place"),
    "examples meet": (lambda x, w: (x - x.mean(0)) * w, "other numbers for an example alone"),
    "no examples out": (lambda x, w: (x * w).sum(), "no tensor with one entry for every example"),
    "shape": (lambda x, w: (x * w).flatten().reshape(-1, 6), "no tensor with one entry|saw 2 examples|one example"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_single_examples_cannot_follow_is_refused(case):
    function, message = BAD[case]
    with pytest.raises(InvalidInput, match=message) as error:
        capture(bad(function), total, torch.randn(4, 3), torch.zeros(4))
    assert "layer '0'" in str(error.value) and "small module" in str(error.value)


def test_random_numbers_of_a_layer_are_those_of_its_one_pass():
    """The gradient of x * mask * w at w = 1 is the output."""
    module, seen = bad(lambda x, w: nn.functional.dropout(x, 0.5) * w), []
    layers = attached(module)
    with layers.listening(lambda _, rows: seen.append(rows), 40):
        output = module(torch.randn(40, 3))
        output.sum().backward()
    assert torch.equal(seen[0].dense(), output) and 0 < int((output == 0).sum()) < 120


def test_a_table_with_as_many_rows_as_examples_is_no_row_for_each():
    table = Built(lambda m: m.rows * 1, rows=nn.Parameter(torch.ones(4, 3)))
    module = Built(lambda m, x: m.first(x) + m.table(), first=nn.Linear(3, 3), table=table)
    message = "'table.rows' is put beside other examples by 'add', or shared by all"
    with pytest.raises(InvalidInput, match=message):
        capture(module, total, torch.randn(4, 3), torch.zeros(4))


def test_a_shared_argument_as_long_as_the_batch_is_found_out():
    mixes = Built(lambda m, x, table: (x * m.w) @ table, w=nn.Parameter(torch.ones(3)))
    module = Built(lambda m, x: m.inner(x, m.table), inner=mixes, table=torch.arange(9.0).reshape(3, 3))
    with pytest.raises(InvalidInput, match="one example|other numbers"):
        capture(module, total, torch.randn(3, 3), torch.zeros(3))


def test_dropout_inside_a_module_with_bare_parameters_draws_as_it_does_without_taps():
    def dropped(m, x):
        x = torch.cat([m.token.expand(len(x), -1, -1), m.first(x)], 1)
        return m.out(m.drop(x).tanh())

    torch.manual_seed(0)
    parts = {"first": nn.Linear(4, 6), "drop": nn.Dropout(0.3), "out": nn.Linear(6, 2)}
    module = Built(dropped, token=nn.Parameter(torch.randn(1, 1, 6)), **parts).double()
    x = torch.randn(6, 3, 4, dtype=torch.float64)
    torch.manual_seed(1)
    squares(module(x), 0.0).backward()
    torch.manual_seed(1)
    _, rows = capture(module, lambda output, _: squares(output, 0.0), x, x)
    whole = torch.cat([b.packed({id(p): p.grad for p in b.parameters}) for b in Layers(module).bindings.values()])
    torch.testing.assert_close(rows.sum(), whole, rtol=1e-10, atol=1e-10)


test_layers_without_a_rule_are_refused_by_name = refuses(
    (nn.BatchNorm1d(3), "get_compatible_module"),
    (nn.LSTM(3, 2), "get_compatible_module"),
    (nn.LazyLinear(3), "run one batch"),
    (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "remove_parametrizations"),
    by=lambda layer: Layers(nn.Sequential(nn.Linear(2, 2), layer)),
)


def test_an_argument_changed_in_place_after_the_call_is_found_out():
    def changes(m, x):
        x = x * 1
        y = m.layer(x)
        return y + x.mul_(2)

    with pytest.raises(InvalidInput, match="changed in place"):
        capture(Built(changes, layer=LowRank(3, 3)), total, torch.randn(4, 3), torch.zeros(4))


def test_a_copy_of_a_tapped_layer_computes_with_its_own_weights():
    layers = attached(LowRank(3, 2))
    twin = copy.deepcopy(layers.module)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    with layers.listening(lambda *_: None):
        assert not twin(torch.ones(2, 3)).any() and layers.module(torch.ones(2, 3)).any()


def test_batches_of_many_sizes_are_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(operations, "_near_enough", lambda *_: checked.append(1) or True)
    layers = attached(nn.Sequential(LowRank(3, 2)))
    for n in (4, 6, 1):
        with layers.listening(lambda *_: None, n):
            layers.module(torch.randn(n, 3)).sum().backward()
    assert len(checked) == 1


def test_rows_under_autocast_have_its_precision():
    torch.manual_seed(6)
    module = Vision()
    agrees_in_bfloat16(module, *pair(module, 5, 3, 4, dtype=torch.float32))


def test_a_users_loop_takes_the_steps_of_plain_descent():
    torch.manual_seed(7)
    module = Vision().double()
    plain = copy.deepcopy(module)
    sgd, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, plain))
    driver = TorchDriver(Pipeline([Stage(Shuffle(4))], step=lambda t: 0.1), module, sgd, n=4)
    x, y = pair(plain, 4, 3, 4)
    for _ in range(2):
        nn.functional.mse_loss(module(x), y).backward()
        driver.step()
        theirs.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        theirs.step()
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
