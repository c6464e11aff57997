"""What a kind of layer tells: its leaves, and their rows from its input and the gradient of its output.

A `LayerRule` keeps what it needs of the forward pass and, when the gradient b of the output arrives, answers with
the rows of the layer's leaves, factored where they can be.  In its own pass the weights ask for no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle

from isthmus.base import validate
from isthmus.gradients import fused, rounding
from isthmus.gradients.rounding import exact_products
from isthmus.gradients.rows import Dense, Lazy, Lookup, Outer, Rows, Stack, row_spans

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers

Handle: TypeAlias = "RemovableHandle | _Replaced"
"""What takes a hook away again."""
Trainable = Callable[[nn.Parameter | None], bool]
"""Whether a parameter was asked to be trained when the layers were read."""
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
L = TypeVar("L", bound=nn.Module)

AnyRule: TypeAlias = "LayerRule[Any]"
"""A rule of any kind of layer."""
Found: TypeAlias = "list[tuple[AnyRule, str, Rows]]"
"""Rows of leaves: the layer, the suffix, and what was found."""
RowsOf: TypeAlias = Callable[[Tensor], Found]
"""The rows of leaves from the gradient of an output."""
_ABSENT = object()


@dataclass(frozen=True, eq=False)
class LeafBinding:
    """A leaf [W | c] of shape (q, p): a weight seen as q rows and, where there is one, its bias as the last column.

    `rows` says which rows of the parameters the leaf covers, when it is not all of them (the query, key and value
    parts of one stacked weight); a lone bias or bare parameter is a weight without a bias.

    >>> layer = nn.Linear(4, 3)
    >>> LeafBinding(layer.weight, layer.bias).shape
    (3, 5)
    """

    weight: nn.Parameter
    bias: nn.Parameter | None = None
    rows: slice | None = None
    columns: bool = False
    """A vector as one column (q, 1), as norm layers hold scale and shift, rather than as one row (1, q)."""

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters the leaf covers."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(q, p), the bias column counted."""
        q, p = self._matrix(self.weight, self.weight).shape
        return q, p + (self.bias is not None)

    @cached_property
    def spans(self) -> list[tuple[nn.Parameter, int, int]]:
        """Each parameter, and the columns lo..hi-1 of the leaf that it is."""
        width = self.shape[1]
        if self.bias is None:
            return [(self.weight, 0, width)]
        return [(self.weight, 0, width - 1), (self.bias, width - 1, width)]

    def places(self) -> list[tuple[nn.Parameter, Tensor, int, int]]:
        """Each parameter, its matrix in memory, and its columns."""
        return [(parameter, self._matrix(parameter, parameter.detach()), lo, hi) for parameter, lo, hi in self.spans]

    def read(self) -> Tensor:
        """The parameters as one q x p matrix."""
        return torch.cat([self._matrix(parameter, parameter.detach()) for parameter in self.parameters], 1)

    def packed(self, values: Mapping[int, Tensor]) -> Tensor:
        """The leaf, flat, of other values of its parameters, given by the parameters' ids."""
        return torch.cat([self._matrix(parameter, values[id(parameter)]) for parameter in self.parameters], 1).flatten()

    @torch.no_grad()
    def write(self, leaf: Tensor) -> None:
        """Copy a leaf (flat or q x p) into the parameters."""
        leaf = leaf.view(self.shape)
        for parameter, lo, hi in self.spans:
            part = self._part(parameter)
            part.copy_(leaf[:, lo:hi].reshape(part.shape))

    def set_gradients(self, columns: Callable[[int, int], Tensor]) -> None:
        """Give the parameters their columns lo..hi-1 of a leaf as `.grad`, without a copy where they are whole."""
        for parameter, lo, hi in self.spans:
            values = columns(lo, hi).to(parameter.dtype)
            if self.rows is None:
                parameter.grad = values.reshape(parameter.shape)
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            part = self._part(parameter.grad)
            part.copy_(values.reshape(part.shape))

    def _part(self, x: Tensor) -> Tensor:
        return x if self.rows is None else x[self.rows]

    def _matrix(self, parameter: nn.Parameter, values: Tensor) -> Tensor:
        """Values of a weight as q rows, of a bias as a column."""
        part = self._part(values)
        if self.columns or parameter is self.bias:
            return part.reshape(-1, 1)
        if part.ndim < 2:
            return part.reshape(1, -1)
        return part.reshape(part.shape[0], -1)


def _leaf(
    parameter: nn.Parameter | None, trainable: Trainable, rows: slice | None = None, columns: bool = False
) -> LeafBinding | None:
    """A parameter as a leaf of its own, if it is trained."""
    return LeafBinding(parameter, None, rows, columns) if parameter is not None and trainable(parameter) else None


def _leaves(name: str, weight: LeafBinding | None, bias: LeafBinding | None, split: bool) -> dict[str, LeafBinding]:
    """A weight and its bias by suffix: one leaf where both are trained and lie alike, unless they are to be apart."""
    if weight is not None and bias is not None and not split and weight.rows == bias.rows:
        return {name: replace(weight, bias=bias.weight)}
    leaves = {f"{name}.weight".strip(".") if split else name: weight, f"{name}.bias".strip("."): bias}
    return {suffix: leaf for suffix, leaf in leaves.items() if leaf is not None}


class _Replaced:
    """A handle of an attribute of one object: `remove` puts back what was there."""

    def __init__(self, owner: nn.Module, name: str, value: object) -> None:
        self.owner, self.name, self.before = owner, name, owner.__dict__.get(name, _ABSENT)
        setattr(owner, name, value)

    def remove(self) -> None:
        """Put back what was there."""
        if self.before is _ABSENT:
            self.owner.__dict__.pop(self.name, None)
        else:
            setattr(self.owner, self.name, self.before)


class LayerRule(Generic[L]):
    """One layer of some kind.  Its leaves are named by a suffix: "" is the layer's own leaf, [W | c] or W alone.

    `batch_dim` is where a tensor of the module keeps its examples; rows always count examples first.
    """

    kinds: ClassVar[tuple[type[nn.Module], ...]] = ()
    columns: ClassVar[bool] = False
    """Whether a weight lies in its leaf as one column."""

    def __init__(self, name: str, layer: L, batch_dim: int = 0) -> None:
        self.name, self.layer, self.batch_dim = name, layer, batch_dim
        self.wanted: dict[str, LeafBinding] = {}
        """The leaves that are trained, by suffix."""
        self.leaves: dict[str, str] = {}
        """What those are called (a tied parameter is one leaf, which several layers feed)."""
        self.parameters: list[nn.Parameter] = []
        """The parameters whose gradients the rule tells."""

    def own(self, wanted: dict[str, LeafBinding]) -> None:
        """Take these leaves for what the layer trains."""
        self.wanted = wanted
        self.parameters = [parameter for binding in wanted.values() for parameter in binding.parameters]

    def bindings(self, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """The trainable leaves by suffix; `split` asks for weight and bias apart, because one of them is tied."""
        owned = self.layer._parameters
        weight = _leaf(owned.get("weight"), trainable, columns=self.columns)
        return _leaves("", weight, _leaf(owned.get("bias"), trainable), split)

    def check(self) -> None:
        """Refuse a layer that has no per-example gradient, with the remedy."""
        return None

    def install(self, layers: Layers) -> list[Handle]:
        """Put the hooks of the layer in place; returns their handles."""
        return [layers.tap_layer(self)]

    def given(self, args: Args, kwargs: Kwargs) -> tuple[Tensor, int] | None:
        """The tensor that should hold examples, and where; None where its shape does not tell whether it does."""
        x = self.input(args, kwargs)
        return (x, self.dim(x)) if isinstance(x, Tensor) and x.ndim else None

    def input(self, args: Args, kwargs: Kwargs) -> Any:
        """What the layer is called with."""
        return args[0] if args else kwargs.get("input")

    def prepare(self, args: Args) -> Args:
        """The arguments of the layer, or others with which it computes the same."""
        return args

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """What makes rows of the gradient of the output; it keeps what of the forward pass they need."""
        raise NotImplementedError

    def dim(self, output: Tensor) -> int:
        """Where an output of the layer keeps its examples."""
        return self.batch_dim if output.ndim > 2 else 0


def _examples_dim(ndim: int, batch_dim: int) -> int:
    """Where a tensor of so many dimensions keeps its examples: in front where there is nothing between."""
    if ndim < 3:
        return 0
    return batch_dim


class _LinearRule(LayerRule[nn.Linear]):
    """z = W a + c at any number of positions: g = sum_t b_t [a_t, 1]'."""

    kinds = (nn.Linear,)

    def prepare(self, args: Args) -> Args:
        """The input as autocast rounds it: kept so, it takes half the room."""
        if args and isinstance(args[0], Tensor) and torch.is_autocast_enabled(args[0].device.type):
            return (_as_multiplied(args[0]), *args[1:])
        return args

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """Outer products of the input and the gradient."""
        a = self.input(args, kwargs).detach()
        return partial(_factored, self, self.wanted, a.transpose(0, self.dim(a)))


def _as_multiplied(x: Tensor) -> Tensor:
    """A factor of a product as autocast rounds it."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype in (torch.float32, torch.float16):
        return x.to(torch.get_autocast_dtype(kind))
    return x


def _factored(rule: AnyRule, wanted: Mapping[str, LeafBinding], a: Tensor, b: Tensor) -> Found:
    """The rows of a weight and its bias from a (n, ..., p) and b (n, ..., q); a bias alone is the sum of b."""
    if a.ndim > 2:
        a, b = _positions(a), _positions(b)
    rows: Found = []
    for suffix, binding in wanted.items():
        if suffix.endswith("bias"):
            rows.append((rule, suffix, _bias_rows(b)))
        else:
            rows.append((rule, suffix, Outer(a, b, ones=binding.bias is not None)))
    return rows


def _bias_rows(b: Tensor) -> Dense:
    """The rows of a bias from b, (n, q) or (n, T, q): its sum over positions."""
    if b.ndim > 2:
        b = b.sum(1, dtype=torch.promote_types(b.dtype, torch.float32))
    return Dense(b)


def _positions(x: Tensor) -> Tensor:
    """(n, p) as it is; (n, ..., p) with every position in the middle."""
    return x if x.ndim <= 2 else x.flatten(1, -2)


# ------------------------------------------------------------ tables that are read at places, and bags of such places


def _check_table(name: str, layer: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuse settings that change the table outside the gradient, or the gradient by the rest of the batch."""
    settings = {
        "max_norm": "set max_norm=None: it rewrites the rows that the data name, before any noise is added",
        "scale_grad_by_freq": "set scale_grad_by_freq=False: it divides an example's gradient by counts of the batch",
        "sparse": "set sparse=False: released gradients are dense, and which rows an example names is private",
    }
    for setting, remedy in settings.items():
        value = vars(layer)[setting]
        validate.check(value is None or value is False, f"{name}.{setting}".strip("."), value, remedy)


class _EmbeddingRule(LayerRule[nn.Embedding]):
    """z_t = W[k_t]: g = sum_t e_{k_t} b_t'; the padding row gets nothing."""

    kinds = (nn.Embedding,)

    def given(self, args: Args, kwargs: Kwargs) -> tuple[Tensor, int] | None:
        """The places, whose examples are in front unless there are positions."""
        index: Tensor = self.input(args, kwargs)
        return (index, _examples_dim(index.ndim + 1, self.batch_dim)) if index.ndim else None

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """The places and the gradients there; positions 0, 1, 2, ... that all share would pass for one an example."""
        layer, index = self.layer, self.input(args, kwargs)
        shared = index.ndim == 1 and len(index) > 1 and _counts(index)
        remedy = "give ids that all examples share, as these seem to be, as one row of shape (1, T)"
        validate.check(not shared, "index.shape", tuple(index.shape), remedy)
        index = index.transpose(0, _examples_dim(index.ndim + 1, self.batch_dim))
        places = index.reshape(len(index), math.prod(index.shape[1:]))

        def rows_of(b: Tensor) -> Found:
            values = b.reshape(*places.shape, b.shape[-1])
            rows = _table_rows(places, values, layer.num_embeddings, layer.padding_idx)
            return [(self, suffix, rows) for suffix in self.wanted]

        return rows_of


class _EmbeddingBagRule(LayerRule[nn.EmbeddingBag]):
    """z = sum_t v_t W[k_t] over the bag of an example: g = sum_t v_t e_{k_t} b'; v_t = 1 / |bag| for means."""

    kinds = (nn.EmbeddingBag,)

    def check(self) -> None:
        """Only sums and means of a bag are linear in the table."""
        remedy = "use mode='sum' or mode='mean': which entry is the largest is not kept"
        validate.check(self.layer.mode != "max", f"{self.name}.mode".strip("."), self.layer.mode, remedy)

    def given(self, args: Args, kwargs: Kwargs) -> None:
        """A flat list of places has bags as examples, not entries."""
        return None

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """The places of every bag, filled up to the longest, and their shares of the gradient (0 where filled up)."""
        layer, names = self.layer, dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
        index, offsets, weights = names["input"], names.get("offsets"), names.get("per_sample_weights")
        if weights is None:
            weights = torch.ones_like(index, dtype=layer.weight.dtype)
        weights = weights.detach().to(rounding.working(layer.weight.dtype))
        if index.ndim == 1:
            if offsets is None:
                validate.refuse("offsets", offsets, "give the start of every bag, which a flat input needs")
            if not layer.include_last_offset:
                offsets = torch.cat([offsets, offsets.new_full((1,), len(index))])
            # rows filled up with place 0 and weight 0: the longest bag decides, so the host waits for it
            sizes, bags = offsets.diff().tolist(), slice(int(offsets[0]), int(offsets[-1]))
            index, weights = (pad_sequence(x[bags].split(sizes), batch_first=True) for x in (index, weights))
        if layer.padding_idx is not None:
            weights = weights * (index != layer.padding_idx)
        if layer.mode == "mean":
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)

        def rows_of(b: Tensor) -> Found:
            values = weights[:, :, None] * b[:, None, :]
            rows = _table_rows(index, values, layer.num_embeddings, layer.padding_idx)
            return [(self, suffix, rows) for suffix in self.wanted]

        return rows_of


def _counts(index: Tensor) -> bool:
    """Whether places are 0, 1, 2, ..."""
    whole = index.ndim == 1 and not index.is_floating_point()
    return whole and torch.equal(index, torch.arange(len(index), device=index.device))


def _table_rows(index: Tensor, values: Tensor, vocabulary: int, padding: int | None) -> Lookup:
    """The rows of a table that is read at the places `index` (n, T), without those of its padding."""
    index = index % vocabulary
    if padding is not None:
        values = values.masked_fill((index == padding)[:, :, None], 0.0)
    return Lookup(index, values, vocabulary)


# ------------------------------------------------------------ normalisations: a scale and a shift inside one example


class _NormalisationRule(LayerRule[nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | _InstanceNorm]):
    """z_c = scale_c x^_c + shift_c at every place: the leaf [scale | shift] has the row (sum b x^, sum b).

    A layer norm normalises the last dimensions together, which hold the channels, and all between are places.  A group
    norm takes statistics of groups of channels, an instance norm of single ones: there examples come first, channels
    second, places after them.  The normalised input x^ is computed again from the input, a chunk of examples at a time,
    in float32 or better.
    """

    kinds = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    columns = True

    def check(self) -> None:
        """Running statistics come from other examples and have no per-example gradient or bound."""
        remedy = "make the layer with track_running_stats=False: running statistics mix examples"
        mixes = isinstance(self.layer, _InstanceNorm) and self.layer.track_running_stats
        validate.check(not mixes, f"{self.name}.track_running_stats", True, remedy)

    def dim(self, output: Tensor) -> int:
        """In front, but for a layer norm with places."""
        if isinstance(self.layer, (nn.LayerNorm, nn.RMSNorm)) and output.ndim >= 2 + len(self.layer.normalized_shape):
            return self.batch_dim
        return 0

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """Scale and shift, or one of them; an input without a dimension for examples is refused."""
        layer, x = self.layer, self.input(args, kwargs)
        if isinstance(layer, _InstanceNorm):
            dims = 1 + layer._get_no_batch_dim()
            needed = f"give a {type(layer).__name__} an input of {dims} dimensions: (n, C, ...)"
            validate.check(x.ndim == dims, "input.ndim", x.ndim, needed)
        elif not isinstance(layer, nn.GroupNorm):
            needed = "keep the examples in a dimension of their own"
            validate.check(x.ndim > len(layer.normalized_shape), "input.ndim", x.ndim, needed)
        x = x.detach().transpose(0, self.dim(x))
        return lambda b: self.rows(x, b)

    def rows(self, x: Tensor, b: Tensor) -> Found:
        """The rows of the leaves from input and gradient; on a device in one kernel, where they are one leaf."""
        layer, work = self.layer, rounding.working(x.dtype, b.dtype)
        whole = list(self.wanted) == [""] and self.wanted[""].bias is not None
        if whole and b.numel() and isinstance(layer, nn.LayerNorm) and fused.can_sum(b.device, work):
            shape = (len(b), -1, math.prod(layer.normalized_shape))
            sums = fused.norm_sums(x.reshape(shape), b.reshape(shape), layer.eps)
            if sums is not None:
                return [(self, "", Dense(sums))]
        parts: dict[str, list[Tensor]] = {suffix: [] for suffix in self.wanted}
        for lo, hi in row_spans(len(b), 3 * work.itemsize * math.prod(b.shape[1:])) or [(0, 0)]:
            out = b[lo:hi].to(work)
            shift = self.channels(out)
            for suffix, binding in self.wanted.items():
                values = shift
                if suffix != "bias":
                    values = self.channels(out * self.normal(x[lo:hi].to(work)))
                    if binding.bias is not None:
                        values = torch.stack([values, shift], 2).flatten(1)
                parts[suffix].append(values)
        return [(self, suffix, Dense(torch.cat(pieces))) for suffix, pieces in parts.items()]

    def normal(self, x: Tensor) -> Tensor:
        """The input normalised, without scale and shift."""
        bare = object.__new__(type(self.layer))
        vars(bare).update(vars(self.layer), _parameters=dict.fromkeys(self.layer._parameters))
        forward: Callable[..., Tensor] = type(bare).forward
        return forward(bare, x)

    def channels(self, x: Tensor) -> Tensor:
        """(n, C): the sums over places."""
        if isinstance(self.layer, (nn.LayerNorm, nn.RMSNorm)):
            x = x.flatten(x.ndim - len(self.layer.normalized_shape))
            return x if x.ndim == 2 else x.flatten(1, -2).sum(1)
        return x if x.ndim == 2 else x.flatten(2).sum(2)


# ------------------------------------------------------------ convolutions: linear layers over patches


_PRODUCT_BYTES = 1 << 24
"""Sums of products that are larger than their factors are kept instead of them only below this size."""


class _ConvolutionRule(LayerRule[_ConvNd]):
    """z_t = W a_t + c for the patches a_t of the input: g = sum_t b_t [a_t, 1]', one such block for each group.

    Where the sums are smaller than patches and output gradients, they are what is returned, and the patches of only
    `CHUNK_BYTES` at a time are ever held.
    """

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def dim(self, output: Tensor) -> int:
        """Examples are always in front."""
        return 0

    def watch(self, args: Args, kwargs: Kwargs) -> RowsOf:
        """Products or factors of the weight, whichever are smaller; a bias alone is the sum of b over places."""
        layer, dims = self.layer, len(self.layer.kernel_size) + 2
        x: Tensor = self.input(args, kwargs).detach()
        needed = f"give a {type(layer).__name__} an input of {dims} dimensions: (n, C, ...)"
        validate.check(x.ndim == dims, "input.ndim", x.ndim, needed)

        def rows_of(b: Tensor) -> Found:
            b = b.flatten(2)
            rows: Found = []
            for suffix, binding in self.wanted.items():
                if suffix == "bias":
                    rows.append((self, suffix, _bias_rows(b.mT)))
                else:
                    rows.append((self, suffix, _weight_rows(layer, x, b, ones=binding.bias is not None)))
            return rows

        return rows_of


def _weight_rows(layer: _ConvNd, x: Tensor, b: Tensor, ones: bool) -> Rows:
    """The rows of [W | c] or W from the input and b (n, C_out, T)."""
    n, places, groups = len(x), b.shape[2], layer.groups
    p, q, work = layer.weight[0].numel(), layer.out_channels // groups, rounding.working(b.dtype)
    b = b.unflatten(1, (groups, q))
    spans = row_spans(n, groups * places * p * work.itemsize)
    factors, products = places * (p + ones + q), (p + ones) * q
    # sums are computed once, where factors are multiplied again for norms, sums and codes: twice as large they may be
    small = products <= 2 * factors and n * groups * products * work.itemsize <= _PRODUCT_BYTES
    if places * groups > 1 and (products <= factors or small):
        return Dense(_products(layer, x, b, spans, ones))
    a = x.new_empty(n, groups, places, p)
    for lo, hi in spans:
        a[lo:hi] = _patches(layer, x[lo:hi])
    b = b.mT.contiguous()
    if groups > 1:
        return Stack([(str(j), Outer(a[:, j], b[:, j], ones)) for j in range(groups)])
    return Outer(a[:, 0, 0], b[:, 0, 0], ones) if places == 1 else Outer(a[:, 0], b[:, 0], ones)


def _patches(layer: _ConvNd, x: Tensor) -> Tensor:
    """The patches of (n, C, ...) as (n, groups, T, p), in the order of the flattened weight.

    >>> _patches(nn.Conv1d(1, 1, 2, stride=2), torch.arange(4.0).view(1, 1, 4)).tolist()
    [[[[0.0, 1.0], [2.0, 3.0]]]]
    """
    view, k = _windows(layer, x), len(layer.kernel_size)
    shape = (len(x), layer.groups, math.prod(view.shape[3 : 3 + k]), layer.weight[0].numel())
    return view.permute(0, 1, *range(3, 3 + k), 2, *range(3 + k, 3 + 2 * k)).reshape(shape)


def _windows(layer: _ConvNd, x: Tensor) -> Tensor:
    """A view of the padded input: (n, groups, C / groups, *places, *kernel)."""
    x = _padded(layer, x)
    for dim, (size, step, gap) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), 2):
        x = x.unfold(dim, gap * (size - 1) + 1, step)[..., ::gap]
    windows: Tensor = x.unflatten(1, (layer.groups, x.shape[1] // layer.groups))
    return windows


def _products(layer: _ConvNd, x: Tensor, b: Tensor, spans: list[tuple[int, int]], ones: bool) -> Tensor:
    """sum_t b_t [a_t, 1]' of every example, a chunk of patches at a time; b is (n, groups, q, T)."""
    n, groups, q, _ = b.shape
    p, work = layer.weight[0].numel(), rounding.working(b.dtype)
    # One channel in, one out: patches would cost far more to copy than to use, and convolving with b needs none.
    alone = groups == layer.in_channels == layer.out_channels and x.device.type == "cpu"
    total = torch.empty(n, groups, q, p + ones, dtype=work, device=b.device)
    with exact_products(b.device):
        for lo, hi in spans:
            part, piece = b[lo:hi].to(work), x[lo:hi].to(work)
            total[lo:hi, ..., :p] = (_convolved if alone else _multiplied)(layer, piece, part)
            if ones:
                total[lo:hi, ..., p] = part.sum(3)
    return total.view(n, groups * q * (p + ones))


def _multiplied(layer: _ConvNd, x: Tensor, b: Tensor) -> Tensor:
    """(n, groups, q, p): b times patches, these laid out by places, which copies the longest runs."""
    view, k = _windows(layer, x), len(layer.kernel_size)
    shape = (len(x), layer.groups, layer.weight[0].numel(), b.shape[3])
    return b @ view.permute(0, 1, 2, *range(3 + k, 3 + 2 * k), *range(3, 3 + k)).reshape(shape).mT


def _convolved(layer: _ConvNd, x: Tensor, b: Tensor) -> Tensor:
    """The same of one channel a group: every channel of every example convolved with its own b."""
    x, k = _padded(layer, x), len(layer.kernel_size)
    spare = zip(x.shape[2:], layer.kernel_size, layer.dilation, layer.stride, strict=True)
    places = [(length - gap * (size - 1) - 1) // step + 1 for length, size, gap, step in spare]
    count = x.shape[0] * x.shape[1]
    kernels = b.reshape(count, 1, *places)
    product = torch.convolution(
        x.reshape(1, count, *x.shape[2:]), kernels, None, layer.dilation, [0] * k, layer.stride, False, [0] * k, count
    )
    for dim, size in enumerate(layer.kernel_size, 2):
        product = product.narrow(dim, 0, size)
    return product.reshape(*b.shape[:3], -1)


def _padded(layer: _ConvNd, x: Tensor) -> Tensor:
    """The input with what the layer adds around it."""
    if layer.padding == "valid":
        return x
    if layer.padding == "same":
        spare = [gap * (size - 1) for size, gap in zip(layer.kernel_size, layer.dilation, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in spare]
    else:
        pairs = [(int(width), int(width)) for width in layer.padding]
    margins = [width for pair in reversed(pairs) for width in pair]
    if not any(margins):
        return x
    return F.pad(x, margins, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)


# ------------------------------------------------------------ attention: each of its stacked projections has a tap


_EXTRAS = ("bias_k", "bias_v")


class _AttentionRule(LayerRule[nn.MultiheadAttention]):
    """softmax(Q K' / sqrt(h)) V with Q = W_q x_q + c_q and so on: each projection is a linear layer of its own.

    Leaves `in_proj.q`, `in_proj.k` and `in_proj.v` lie over the rows of `in_proj_weight` and `in_proj_bias`, or over
    `q_proj_weight` and its like; `bias_k` and `bias_v` are rows of their own; `out_proj` is a child with its own rule.
    The forward that is put in place while someone listens computes the numbers of torch's, in the same order of
    random draws; otherwise torch's own runs.

    >>> from isthmus.gradients.layers import Layers
    >>> layers = Layers(nn.MultiheadAttention(4, 2, kdim=3, vdim=3, bias=False))
    >>> [(leaf.name, leaf.shape) for leaf in layers.space.leaves]
    [('in_proj.q', (4, 4)), ('in_proj.k', (4, 3)), ('in_proj.v', (4, 3)), ('out_proj', (4, 4))]
    """

    kinds = (nn.MultiheadAttention,)

    def bindings(self, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """Rows of the stacked parameters; a bias joins its weight where both are stacked alike and trained."""
        leaves: dict[str, LeafBinding] = {}
        owned, size = self.layer._parameters, self.layer.embed_dim
        for index, part in enumerate("qkv"):
            rows = slice(index * size, (index + 1) * size)
            weight = _leaf(owned.get(f"{part}_proj_weight"), trainable)
            weight = weight or _leaf(owned["in_proj_weight"], trainable, rows)
            leaves |= _leaves(f"in_proj.{part}", weight, _leaf(owned["in_proj_bias"], trainable, rows), split)
        for name in _EXTRAS:
            leaves |= _leaves(name, _leaf(owned.get(name), trainable), None, False)
        return leaves

    def install(self, layers: Layers) -> list[Handle]:
        """A forward with taps while someone listens; torch's fused inference is kept from going round it."""
        layer = self.layer

        def run(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> object:
            with layers.silenced(layer.parameters()):  # the output projection's too: torch reads it here
                return self._attend(layers, query, key, value, *args, **kwargs)

        nested = [m for m in layers.module.modules() if isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor]
        return [
            layers.replace_forward(layer, list(layer.parameters()), run),
            layer.register_forward_hook(lambda *_: None),  # torch looks for hooks before it fuses a layer
            *(_Replaced(encoder, "use_nested_tensor", False) for encoder in nested),
        ]

    def dim(self, output: Tensor) -> int:
        """As the layer itself was told."""
        return int(not self.layer.batch_first)

    def _attend(
        self,
        layers: Layers,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What `nn.MultiheadAttention.forward` returns."""
        layer, dim = self.layer, self.dim(query)
        remedy = f"give a batch of three dimensions: layer {self.name!r} needs its examples apart"
        validate.check(query.dim() == 3, "query.shape", tuple(query.shape), remedy)
        needed = "give the causal attn_mask with it, which the layer needs"
        validate.check(not is_causal or attn_mask is not None, "is_causal", is_causal, needed)
        fast = is_causal and key_padding_mask is None and not need_weights
        q, k, v = (self._projected(layers, index, x) for index, x in enumerate((query, key, value)))
        # numbers to add over (n, heads, targets, sources): what is true in a mask of booleans is closed
        masks: list[Tensor] = []
        if attn_mask is not None and not fast:
            masks.append(attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, q.shape[:2]))
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None, :])
        for place, x in enumerate(masks):
            if x.dtype == torch.bool:
                masks[place] = torch.zeros_like(x, dtype=q.dtype).masked_fill_(x, -math.inf)
        mask = reduce(torch.add, masks) if masks else None
        if layer.bias_k is not None:
            k, v = (
                torch.cat([x, self._extra(layers, name, len(x))], 2) for name, x in zip(_EXTRAS, (k, v), strict=True)
            )
        if layer.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        if mask is not None:  # open at the positions that the layer itself adds
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[3]))
        drop = layer.dropout * layer.training
        weights = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
            if mask is not None:
                scores = scores + mask
            weights = F.dropout(torch.softmax(scores, dim=-1), p=drop)
            mixed = weights @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, drop, fast)
        # called with examples where the module's linear layers expect them
        place = layers.batch_dim
        output = layer.out_proj(mixed.transpose(1, 2).flatten(2).transpose(0, place)).transpose(0, place)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        return output.transpose(0, dim), weights

    def _projected(self, layers: Layers, index: int, x: Tensor) -> Tensor:
        """Q, K or V with a tap: outer products of the input and the gradient."""
        owned, size, part = self.layer._parameters, self.layer.embed_dim, "qkv"[index]
        stacked, bias = owned["in_proj_weight"], owned["in_proj_bias"]
        rows = slice(index * size, (index + 1) * size)
        weight = owned[f"{part}_proj_weight"] if stacked is None else stacked[rows]
        assert weight is not None
        z = F.linear(x, weight, None if bias is None else bias[rows])
        wanted = {suffix: leaf for suffix, leaf in self.wanted.items() if suffix.startswith(f"in_proj.{part}")}
        if wanted:
            dim = self.dim(x)
            a = x.detach().transpose(0, dim)
            z = layers.tap(self, z, dim, [a], partial(_factored, self, wanted, a))
        return self._heads(z.transpose(0, self.dim(x)))

    def _extra(self, layers: Layers, name: str, n: int) -> Tensor:
        """bias_k or bias_v, one of its own for every example."""
        bias = self.layer._parameters[name]
        assert bias is not None
        rows = bias.expand(n, 1, -1).clone()

        def found(b: Tensor) -> Found:
            return [(self, name, Dense(b.flatten(1)))]

        if name in self.wanted:
            rows = layers.tap(self, rows, 0, [], found)
        return self._heads(rows)

    def _heads(self, x: Tensor) -> Tensor:
        """(n, heads, positions, size) of a projection, examples in front."""
        heads: Tensor = x.unflatten(-1, (self.layer.num_heads, self.layer.head_dim))
        return heads.transpose(1, 2)


RULES: tuple[type[AnyRule], ...] = (_LinearRule, _EmbeddingRule, _EmbeddingBagRule, _NormalisationRule)
RULES += (_ConvolutionRule, _AttentionRule)

# ------------------------------------------------------------ examples that come in several pieces


def shapes_of_one(leaves: list[Any], cuts: list[int | None]) -> Hashable:
    """The shapes of one example's arguments, and where the batch keeps its examples."""
    shapes: list[Hashable] = []
    for x, cut in zip(leaves, cuts, strict=True):
        if isinstance(x, Tensor):
            sizes = list(x.shape)
            if cut is not None:
                del sizes[cut]
            shapes.append((x.dtype, cut, *sizes))
        else:
            shapes.append(None)
    return tuple(shapes)


def _pieces_of(count: int, n: int | None) -> int:
    """How many pieces of every one of n examples there are in `count` (0 where that is no whole number).

    >>> _pieces_of(12, 4), _pieces_of(12, 5), _pieces_of(4, 4)
    (3, 0, 1)
    """
    return count // n if n and count and count % n == 0 else 0


def _folded(rows: Rows, n: int) -> Rows:
    """The rows of n examples from the rows of their pieces, those of an example side by side: their sums.

    >>> import torch
    >>> _folded(Dense(torch.tensor([[1.0], [2.0], [3.0], [4.0]])), 2).dense()
    tensor([[3.],
            [7.]])
    """
    if rows.n == n:
        return rows
    k = rows.n // n
    if isinstance(rows, Outer) and isinstance(rows.a, Tensor):
        a, b = (x.reshape(n, -1, x.shape[-1]) for x in (rows.a, rows.b))
        return Outer(a, b, rows.ones)
    if isinstance(rows, Lookup):
        return Lookup(rows.index.reshape(n, -1), rows.values.reshape(n, -1, rows.p), rows.q)
    if isinstance(rows, Stack):
        return Stack([(name, _folded(piece, n)) for name, piece in rows.items], rows.factor)
    if isinstance(rows, Dense):
        return Dense(rows.values.view(n, k, rows.d).sum(1, dtype=rows.dtype))

    def sums(lo: int, hi: int) -> Tensor:
        return rows.part(lo * k, hi * k).dense().view(hi - lo, k, rows.d).sum(1)

    return Lazy(sums, n, rows.d, dtype=rows.dtype, device=rows.device)
