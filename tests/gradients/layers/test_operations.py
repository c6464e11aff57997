"""Taps at operations: every use of a parameter against one backward pass an example, alone and beside other layers."""

import gc
import inspect

import pytest
import torch
from layer_reference import Built, agree, attached, capture, squares, truth
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Outer
from isthmus.gradients.layers import Layers
from isthmus.gradients.layers.trial import look
from isthmus.gradients.rows import Lookup

P = 4
"""The width of every case, and one of the batch sizes: what has n entries by chance must do no harm."""
SHAPES = {
    "w": (P,),
    "b": (P,),
    "s": (),
    "m": (3, P),
    "t": (P, 3),
    "sq": (P, P),
    "cube": (2, P, P),
    "one": (1, 1, P),
    "place": (1, 3, P),
    "bare": (3, P),
    "kernel": (P, 3, 2),
    "group": (3, 1, 2),
    "table": (7, P),
    "heads": (1, 2, 3, 3),
}
OPERATIONS = {
    "scale": ("w", lambda x, w: x * w),
    "scale from the left": ("w", lambda x, w: w * x),
    "shift and scale": ("w b", lambda x, w, b: torch.addcmul(b, w, x)),
    "rms norm": ("w", lambda x, w: w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)),
    "one plus w": ("w", lambda x, w: x * (1.0 + w.float())),
    "number minus w": ("w", lambda x, w: x * (3 - 2 * w) / (-w).exp()),
    "scalar": ("s", lambda x, s: x * s.exp() + s),
    "in place": ("w", lambda x, w: (x * 1).mul_(w).add_(w.sin())),
    "where": ("w b", lambda x, w, b: torch.where(x > 0, w, b) * x),
    "power": ("w", lambda x, w: (x.abs() + 1) ** w),
    "divided": ("w", lambda x, w: x / (w.abs() + 1) - w),
    "linear": ("m b3", lambda x, m, b: F.linear(x, m, b)),
    "scaled linear": ("m b3 s", lambda x, m, b, s: s * F.linear(x, m, b)),
    "scaled product": ("m b3 s", lambda x, m, b, s: (x @ m.T + b) * s),
    "linear without a bias": ("m", lambda x, m: F.linear(x, m)),
    "frozen weight": ("b3", lambda x, b: F.linear(x, FIXED.to(x), b)),
    "matmul": ("t", lambda x, t: x @ t),
    "transposed matmul": ("m", lambda x, m: x @ m.T),
    "twice": ("sq", lambda x, m: F.linear((x @ m).tanh(), m)),
    "vector": ("w", lambda x, w: (x @ w)[..., None] * x),
    "from the left": ("bare", lambda x, m: m.T @ x),
    "addmm": ("t b3", lambda x, t, b: torch.addmm(b, x.reshape(-1, P), t).view(*x.shape[:-1], 3)),
    "scaled weight": ("m", lambda x, m: F.linear(x, 0.5 * m)),
    "computed weight": ("m t", lambda x, m, t: F.linear(x, m * t.T.sigmoid())),
    "slices": ("sq", lambda x, m: torch.cat([x @ m[:2].T, x @ m[2:].T], -1)),
    "largest": ("sq", lambda x, m: x * m.max(0).values),
    "distances": ("one", lambda x, w: torch.cdist(x, w)),
    "filled": ("s", lambda x, s: x.masked_fill(x > 0.5, s * 2)),
    "kind of another": ("w", lambda x, w: x.type_as(w).to(w) * w.to(x).expand_as(x)),
    "in front": ("cube", lambda x, c: (c @ x.mT.unsqueeze(1)).sum(1)),
    "table of single examples": ("table", lambda x, t: x + t[x[:, 0].argmax(-1)][:, None]),
    "chunks": ("sq", lambda x, m: sum(x[..., :2] @ part for part in m.T.chunk(2))),
    "einsum": ("t", lambda x, t: torch.einsum("btp,pq->bqt", x, t).mT),
    "einsum of three": ("cube", lambda x, c: torch.einsum("bti,btj,kij->btk", x, x, c)),
    "layer norm": ("w b", lambda x, w, b: F.layer_norm(x, (P,), w, b)),
    "torch's rms norm": ("w", lambda x, w: F.rms_norm(x, (P,), w, 1e-6)),
    "group norm": ("w3 b3", lambda x, w, b: F.group_norm(x, 3, w, b)),
    "prelu": ("w3", lambda x, w: F.prelu(x, w)),
    "class token": ("one", lambda x, c: torch.cat([c.expand(len(x), -1, -1), x], 1)),
    "bare class token": ("w", lambda x, c: torch.cat((c.expand(x.shape[0], 1, -1), x), dim=1).tanh()),
    "repeated": ("one", lambda x, c: torch.cat([c.repeat(len(x), 1, 1) * 2, x], 1)),
    "stacked": ("place", lambda x, p: torch.stack([p.expand_as(x), x], 2)),
    "position": ("place", lambda x, p: x + p),
    "position without a dimension of examples": ("bare", lambda x, p: x + p),
    "position beside a constant": ("place s", lambda x, p, s: x + (p + s * torch.ones(len(x), 1, 1).to(x))),
    "cut position": ("sq", lambda x, p: x + p[None, : x.shape[1]]),
    "convolution": ("kernel b", lambda x, k, b: F.conv1d(x, k, b, padding=1)),
    "grouped convolution": ("group", lambda x, k: F.conv1d(x, k, None, stride=2, groups=3)),
    "written": ("w", lambda x, w: written(x, w)),
    "read by position": ("table", lambda x, t: x + t[torch.arange(x.shape[1])]),
    "attention mask": ("heads", lambda x, h: attended(x, h)),
}
FIXED = torch.randn(3, P, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def written(x: Tensor, w: Tensor) -> Tensor:
    x = x * 1
    x[:, 0] = w
    return x.sin()


def attended(x: Tensor, mask: Tensor) -> Tensor:
    q = torch.stack([x, x.cos()], 1)
    return F.scaled_dot_product_attention(q, q.sin(), q, mask)


def parameter(name: str) -> nn.Parameter:
    shape = SHAPES.get(name) or ((3,) if name.endswith("3") else ())
    return nn.Parameter(torch.randn(shape))


class Own(nn.Module):
    """A function of the input and parameters."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.names, self.function = [], OPERATIONS[case][1]
        for name in OPERATIONS[case][0].split():
            self.register_parameter(name, parameter(name))
            self.names.append(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *(getattr(self, name) for name in self.names))


class Beside(Own):
    """The same in a module whose children have taps, which must see the whole batch."""

    def __init__(self, case: str) -> None:
        super().__init__(case)
        self.first = nn.Linear(P, P)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.first(x))


class Held(Own):
    """The same with the parameters in a list, which others compute with."""

    def __init__(self, case: str) -> None:
        nn.Module.__init__(self)
        self.function, self.first = OPERATIONS[case][1], nn.Linear(P, P)
        self.held = nn.ParameterList([parameter(name) for name in OPERATIONS[case][0].split()])

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x), *self.held)


def data(module: nn.Module, n: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(n)
    x = torch.randn(n, 3, P, generator=draws, dtype=torch.float64)
    with torch.no_grad():
        y = module(x)
    return x, torch.randn(y.shape, generator=draws, dtype=torch.float64)


KINDS = (Own, Beside, Held)


@pytest.mark.parametrize("case", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_use_of_a_parameter_has_its_rows(kind, case):
    torch.manual_seed(0)
    n = (5, P, 3)[(list(OPERATIONS).index(case) + KINDS.index(kind)) % 3]
    module = kind(case).double()
    tolerance = 1e-6 if "float" in case or case == "one plus w" else None
    agree(module, *data(module, n), tolerance=tolerance)


@pytest.mark.parametrize("case", ["linear", "class token", "scalar"])
@pytest.mark.parametrize("kind", [Own, Beside])
def test_one_example(kind, case):
    torch.manual_seed(0)
    module = kind(case).double()
    agree(module, *data(module, 1))


class Conv1D(nn.Module):
    """The linear layer of GPT-2 as Hugging Face has it: its weight lies on its side."""

    def __init__(self, q: int, p: int) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = q, nn.Parameter(torch.randn(p, q)), nn.Parameter(torch.randn(q))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], self.nf)


class Scaled(nn.Embedding):
    """An embedding times a number."""

    def forward(self, index: Tensor) -> Tensor:
        return super().forward(index) * 3.0


def test_factors_stay_factors():
    """What a linear layer and an embedding keep, layers that do the same keep too."""
    torch.manual_seed(0)
    module = nn.Sequential(Scaled(50, 30, padding_idx=3), Conv1D(40, 30), nn.Tanh(), Conv1D(2, 40)).double()
    x = torch.randint(0, 50, (5, 2))
    rows = agree(module, x, torch.randn(5, 2, 2, dtype=torch.float64))
    kinds = {name: type(piece) for name, piece in rows.leaves()}
    assert kinds["0.weight"] is Lookup and kinds["1.weight"] is Outer and kinds["1.bias"] is Dense
    equal = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 2)).double()
    for mine, theirs in ((1, 0), (3, 2)):
        equal[theirs].weight.data, equal[theirs].bias.data = module[mine].weight.data.T, module[mine].bias.data
    x, y = torch.randn(5, 2, 30, dtype=torch.float64), torch.randn(5, 2, 2, dtype=torch.float64)
    one = capture(module[1:], squares, x, y)[1]
    torch.testing.assert_close(one.norms(), capture(equal, squares, x, y)[1].norms())


@pytest.mark.parametrize("n", [4, 5, 7])
def test_a_table_that_all_examples_read_at_the_same_places(n):
    """A relative position bias: computed once, by a layer that is given no examples, and used by all."""

    def attend(m: nn.Module, x: Tensor) -> Tensor:
        t = x.shape[1]
        places = (torch.arange(t)[:, None] - torch.arange(t)[None]).clamp(-2, 2) + 2
        bias = m.bias(places).permute(2, 0, 1).unsqueeze(0)
        mask = torch.zeros(len(x), 1, 1, t).to(x)
        mask[1:, ..., -1] = -9.0
        heads = m.first(x).unflatten(-1, (2, P // 2)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, bias + mask)
        return m.out(mixed.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    module = Built(attend, bias=nn.Embedding(6, 2), first=nn.Linear(P, P), out=nn.Linear(P, 2)).double()
    x, y = torch.randn(n, 5, P, dtype=torch.float64), torch.randn(n, 5, 2, dtype=torch.float64)
    # where 5 examples have 5 positions, it is known from the trial what is what
    total = dict(capture(module, squares, x, y, tried=True)[1].leaves())["bias"].dense()
    for i in range(n):  # the first example has no mask
        both = x[i : i + 1] if i == 0 else x[[i, i]]
        exact = torch.autograd.grad(squares(module(both)[-1:], y[i : i + 1]), module.bias.weight)[0]
        torch.testing.assert_close(total[i], exact.flatten(), rtol=1e-10, atol=1e-12)


def test_tokens_and_windows_are_pieces_of_their_examples():
    def windows(m: nn.Module, x: Tensor) -> Tensor:
        h = m.first(x).unflatten(1, (2, 3)).flatten(0, 1)
        return m.out(m.inner(h.tanh()).reshape(-1, 3)).view(len(x), 6, 2)

    torch.manual_seed(0)
    module = Built(windows, first=nn.Linear(P, P), inner=Own("linear"), out=nn.Linear(3, 2)).double()
    agree(module, torch.randn(5, 6, P, dtype=torch.float64), torch.randn(5, 6, 2, dtype=torch.float64))


@pytest.mark.parametrize("n", [4, 9])
def test_pieces_that_are_not_one_example_after_another_are_refused(n):
    def turned(m: nn.Module, x: Tensor) -> Tensor:
        flat = m.first(x).transpose(0, 1).reshape(-1, P)
        return m.out(flat.tanh()).view(x.shape[1], len(x), 2).transpose(0, 1)

    layers = attached(Built(turned, first=nn.Linear(P, P), out=nn.Linear(P, 2)))
    with pytest.raises(InvalidInput, match="examples meet"):
        look(layers, (torch.randn(n, 3, P),), {}, n)


def test_rows_picked_by_the_data_are_refused_though_there_are_as_many_of_each_by_chance():
    """A trial saw two of every example; what comes has eight of four examples, but three of one and one of another."""
    picked = Built(lambda m, x, mask: m.out(m.first(x)[mask]), first=nn.Linear(P, P), out=nn.Linear(P, 2))
    layers = attached(picked)
    x, mask = torch.randn(8, 3, P), torch.zeros(8, 3, dtype=torch.bool)
    mask[:, 0] = True
    mask[4:, 1] = True
    with pytest.raises(InvalidInput, match="examples|pieces"):
        with layers.listening(lambda *_: None, 8, look(layers, (x, mask), {}, 8)):
            layers.module(x, mask).sum().backward()


def test_a_layer_may_see_other_pieces_than_in_its_trial_only_after_another_trial():
    def tokens(m: nn.Module, x: Tensor) -> Tensor:
        return m.out(m.first(x)[:, m.drop :].reshape(-1, P)).view(len(x), -1, 2)

    layers = attached(Built(tokens, first=nn.Linear(P, P), out=nn.Linear(P, 2), drop=0))
    x = torch.randn(6, 4, P)
    pieces = look(layers, (x,), {}, 6)
    assert pieces == {("out", 4)}
    assert look(layers, (x[:1, :3],), {}, 1) is None  # one example alone has nobody to meet, whatever its pieces are
    layers.module.drop = 2
    with layers.listening(lambda *_: None, 6, pieces), pytest.raises(InvalidInput, match="saw 2 pieces of every"):
        layers.module(x).sum().backward()


def test_a_constant_with_as_many_entries_as_examples_is_told_from_a_trial():
    """self.scale * positions, of shape (T, P): with T examples nothing in its shape says that all share it."""

    def sinusoid(m: nn.Module, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1] * P).view(x.shape[1], P).to(x).sin()
        return m.out((m.first(x) + m.scale * t).tanh())

    torch.manual_seed(0)
    parts = {"scale": nn.Parameter(torch.tensor(0.7)), "first": nn.Linear(P, P), "out": nn.Linear(P, 2)}
    module = Built(sinusoid, **parts).double()
    for n in (8, 5):  # the trial of eight examples is one of six
        x, y = torch.randn(n, 5, P, dtype=torch.float64), torch.randn(n, 5, 2, dtype=torch.float64)
        exact = truth(module, squares, x, y)
        total = dict(capture(module, squares, x, y, tried=True)[1].leaves())["scale"].dense()
        torch.testing.assert_close(total[:, 0], exact[:, 0], rtol=1e-10, atol=1e-12)


REFUSED = {
    "among the examples": (
        lambda x, w: torch.cat([x, w.expand(1, 3, P)]),
        "put beside other examples",
    ),
    "written to": (lambda x, w: w.mul_(2) * x, "changed in place"),
    "statistics": (lambda x, w: F.batch_norm(x, None, None, F.pad(w, (0, -1)), None, True), "something else alone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_told_by_example_is_refused(case):
    function, message = REFUSED[case]
    parts = {"first": nn.Linear(P, P), "w": nn.Parameter(torch.randn(P))}
    module = Built(lambda m, x: function(m.first(x), m.w), **parts).double()
    x = torch.randn(5, 3, P, dtype=torch.float64)
    with pytest.raises((InvalidInput, RuntimeError), match=f"{message}|one example|in-place"):
        capture(module, lambda out, _: out.sum(), x, x)


def test_a_gradient_that_reaches_a_parameter_round_the_taps_is_refused():
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            return w * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    parts = {"first": nn.Linear(P, P), "w": nn.Parameter(torch.randn(P))}
    module = Built(lambda m, x: m.first(x) * Hidden.apply(m.w), **parts)
    with pytest.raises(InvalidInput, match="'w' is used by an operation that shows no per-example gradient"):
        capture(module, squares, torch.randn(3, P), torch.randn(3, P))


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_learned_query_is_one_of_each_example(batch_first):
    def pooled(m: nn.Module, x: Tensor) -> Tensor:
        x, probe = m.first(x), m.probe.repeat(len(x), 1, 1)
        if not batch_first:
            x, probe = x.transpose(0, 1), probe.transpose(0, 1)
        found = m.mix(probe, x, x)[0]
        return found if batch_first else found.transpose(0, 1)

    torch.manual_seed(0)
    mix = nn.MultiheadAttention(P, 2, batch_first=batch_first)
    module = Built(pooled, probe=nn.Parameter(torch.randn(1, 2, P)), first=nn.Linear(P, P), mix=mix).double()
    agree(module, *data(module, 5))


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_an_embedding_of_ones_own_may_do_no_more_than_torchs(setting):
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        Layers(nn.Sequential(Scaled(5, 3, **setting), nn.Linear(3, 2)))


def test_the_signature_of_a_module_stays():
    """Trainers read from it which columns a model takes."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(P))

        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
            return input_ids * self.token

    module = Named()
    before = inspect.signature(module.forward)
    Layers(module).attach()
    assert inspect.signature(module.forward) == before


@pytest.mark.parametrize("kind", [Own, Beside])
def test_a_pass_leaves_nothing_behind(kind):
    """Tensors of a pass are freed when its rows are, without the garbage collector."""
    module = kind("computed weight").double()
    layers, x = attached(module), torch.randn(5, 3, P, dtype=torch.float64)

    def tensors() -> int:
        return sum(issubclass(type(each), Tensor) for each in gc.get_objects())

    def go() -> None:
        with layers.listening(lambda *_: None, 5):
            module(x).square().sum().backward()

    go()
    gc.collect()
    before = tensors()
    gc.disable()
    try:
        go()
        assert tensors() <= before
    finally:
        gc.enable()


def test_a_table_that_is_given_examples_and_looks_at_their_shape_only():
    """Positions of BART: the layer runs one example at a time, and what it returns is the same for all."""

    class Places(nn.Embedding):
        def forward(self, index: Tensor) -> Tensor:
            return super().forward(torch.arange(index.shape[1]).expand(len(index), -1) + 1)

    torch.manual_seed(0)
    parts = {"token": nn.Embedding(9, P), "place": Places(9, P), "out": nn.Linear(P, 2)}
    placed = Built(lambda m, index: m.out(torch.cumsum(m.token(index) * m.place(index), 1)), **parts).double()
    rows = agree(placed, torch.randint(0, 9, (5, 3)), torch.randn(5, 3, 2, dtype=torch.float64))
    assert isinstance(dict(rows.leaves())["place.weight"], Lookup)
