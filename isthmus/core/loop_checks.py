"""What a user's loop does with a batch, looked at where it can be seen: before the module, and before `backward()`.

A round takes every record's gradient for its own, times a public number.  A loop can break that in three ways:

  * **Mixed examples.**  What the module is given was made from several records (mixup, cutmix).
  * **Another divisor.**  `loss_reduction="mean"` says that the terms are divided by the number of examples, "sum" that
    they are not.  Where a loss does the other thing, one record more changes every other record's share; so it does
    where the divisor is a sum over the records (class weights, targets that are ignored, tokens that are counted).
  * **Terms of two examples.**  The gradient that the loss has for the outputs of an example may not change with the
    outputs of others, as it does in contrastive losses or behind statistics of the batch.  The derivative of that
    gradient, for half of the examples, by the outputs of the other half is zero if it does not: this is exact, and the
    network takes no part in it.

The last two are seen in the loss's graph while it still has what it saved, which is until `backward()` runs.  The first
batches are looked at, and later ones by chance.  What is not seen: functions with a backward pass of their own, outputs
with too many numbers for a second derivative, and targets (or weights of single terms) that were made from several
records before the loss got them.  What a loss divides by may also follow a public schedule, so that a divisor which
changes is only warned of.

**The division of a mean is undone** before anything is rounded to fewer than 32 bits (`_MeanLossCorrection`).  A mean
over n examples divides every example's gradient by n.  In float32 the rows are multiplied by n when all of them are
known.  In bfloat16 that is too late: what rounding left of g / n is another number for every n, and one record more
would change every record's share.  So the outputs of the module are handed on in float32 (nothing is lost by that), and
the gradient that comes back is multiplied by n there, in float32, before the network's own backward pass rounds it.
What a later rounding sees is the gradient of the example's own loss, up to the last of 24 bits, whatever n is; for a
loss that the module computes itself, a number, it is exact (n / n is 1).  That last bit is the assumption which every
mean loss rests on (see docs/privacy.md); a sum has no division to undo.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from isthmus.base import secret, validate
from isthmus.gradients.layers.layers import trains
from isthmus.gradients.layers.trial import AGAIN, mapped, returned_examples

FIRST = 3
"""Batches that are always looked at."""
NUMBERS = 1 << 24
"""Outputs with more numbers are not differentiated twice."""
CLOSE = 1e-6
"""Divisors are float32 numbers: closer ones are the same."""
SMALL = 1e-5
"""What is left of a sum of zeros, against the derivatives of the examples' own terms."""
_MIN_EXAMPLES = 4
"""Of fewer examples their number is easily that of something else."""
ROWS = 4
"""Examples that are looked at for mixtures."""
PLACES = 1024
"""Numbers of an example that are looked at, at most."""
_FEWEST = 16
"""Of fewer numbers too many are combinations of others by chance."""
_PASSING = frozenset("Neg Alias Clone ToCopy View UnsafeView Squeeze Unsqueeze Add Sub Stack Cat _Undone".split())
"""Operations that leave the size of every term as it is, up to its sign."""

_REDUCTION = (
    'the loss is a {other} over the examples, and loss_reduction="{said}" says that it is a {said}: one record would '
    "change every gradient with the size of the batch; take the {said}, or give make_private("
    'loss_reduction="{other}")'
)
_WEIGHED = (
    "the loss divides by the weights of the batch's targets (weight= of a mean), or by how many of them are not "
    "ignored (ignore_index), so that one record would change every other one's share: take reduction='none', add up "
    "the terms of each example, and divide by a public number (the mean over examples)"
)
_CROSSED = (
    "examples meet in the loss: its gradient for the outputs of one example changes with the outputs of others (as in "
    "contrastive losses, or behind statistics of the batch); let the term of an example use that example only, or make "
    "the examples that belong together one record of the dataset"
)
_FOREIGN = (
    "the gradient of this loss reaches {count} parameter(s) that are not of the private module, of shape {shape} for "
    "one: backward() would write unprotected sums of the private batch into their .grad. Put everything that is "
    "trained into one module and make that private, or freeze the rest (requires_grad_(False)) or detach what they give"
)
_SELECTED = (
    "the loss chooses among the examples of a batch (by max, topk, sort or a median over them, as in hard-example "
    "mining): one record more takes the place of another; let every example count, or weigh each by its own loss"
)
_SELECTING = ("Topk", "Sort", "Max", "Min", "Amax", "Amin", "Median", "Kthvalue", "Nanmedian")
_CHANGES = (
    "the loss divides its terms by another number{unit} than in an earlier batch: where that follows the data "
    "(weights, masks, counted tokens, the longest text), one record changes every other one's share; divide by a "
    "public number. Where it follows a public schedule, all is well"
)
_PRECISIONS = (
    "a batch went through the module both with and without autocast, and the division by n of a mean loss is undone in "
    "another place for each: run all passes of a batch in one precision, or use a sum, loss_reduction='sum'"
)
_KEPT = (
    "{what}: in less than 32 bits a mean loss must be one of what the module returns; return that too, keep it with "
    ".detach(), or use a sum, loss_reduction='sum'"
)


# ---------------------------------------------------------------- mixed examples


def mixed(given: object, handed: object, n: int, dim: int = 0) -> bool:
    """Whether examples that a module is given were made from pairs of those that were handed out.

    Sums of two examples (and a constant), and examples with a piece of another, are known by their numbers; those of
    other functions are not.  Half precision has too few digits to tell.

    >>> x = torch.randn(8, 20)
    >>> mixed(0.7 * x + 0.3 * x.flip(0), x, 8), mixed(2 * x - 1, x, 8), mixed(x.sin(), x, 8)
    (True, False, False)
    """
    theirs, ours = _comparable(given, n, dim), _comparable(handed, n, dim)
    theirs = [x for x in theirs if not any(x.shape == y.shape and torch.equal(x.to(y), y) for y in ours)]
    for x, y in ((x, y) for x in theirs for y in ours if x.shape == y.shape):
        places = torch.randperm(x[0].numel(), generator=torch.Generator().manual_seed(0))[:PLACES]
        x, y = (z.flatten(1)[:, places.to(z.device)].double().cpu() for z in (x, y))
        if sum(_summed(x[i], y, i) or _pasted(x[i], y, i) for i in range(min(ROWS, n))) >= 2:
            return True
    return False


def _comparable(tree: object, n: int, dim: int) -> list[Tensor]:
    """The tensors with enough digits and numbers for each of three examples or more, examples in front."""
    tensors = [x.detach() for x in tree_leaves(tree) if isinstance(x, Tensor) and x.is_floating_point()]
    tensors = [x.movedim(dim, 0) for x in tensors if x.ndim > dim and x.shape[dim] == n >= 3 and x.dtype.itemsize >= 4]
    return [x for x in tensors if x.numel() // n >= _FEWEST]


def _summed(row: Tensor, y: Tensor, i: int) -> bool:
    """Whether a row is a y_i + b y_j + c for another j, and is not for b = 0."""
    row, y = row - row.mean(), y - y.mean(1, keepdim=True)
    own = y[i] / y[i].norm().clamp_min(1e-300)
    size, rest, others = row.norm(), row - own * (row @ own), y - torch.outer(y @ own, own)
    explained = (others @ rest) / others.norm(dim=1).clamp_min(1e-9 * y.norm(dim=1).max() + 1e-300)
    explained[i] = 0
    left = rest.norm() ** 2 - explained.abs().max() ** 2
    return bool(rest.norm() > 1e-2 * size and left <= (1e-4 * size) ** 2)


def _pasted(row: Tensor, y: Tensor, i: int) -> bool:
    """Whether a row is y_i but for a piece of y_j, which is no constant."""
    piece = row != y[i]
    if not _FEWEST // 2 <= int(piece.sum()) < len(row) or bool((row[piece] == row[piece][0]).all()):
        return False
    return bool((y[:, piece] == row[piece]).all(1).any())


# ---------------------------------------------------------------- the division of a mean


class _Undone(torch.autograd.Function):
    """The identity, in float32 at least; its gradient is multiplied by n in the pass that trains."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, n: int, fired: Callable[[], None]) -> Tensor:
        """The same numbers."""
        ctx.n, ctx.dtype, ctx.fired = n, x.dtype, fired
        return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """n g, rounded to the output's dtype last."""
        (g,) = gradients
        if not trains(ctx):
            return g.to(ctx.dtype), None, None, None
        ctx.fired()
        if torch.is_grad_enabled():  # a gradient of this gradient is asked for
            return (g * ctx.n).to(ctx.dtype), None, None, None
        out = torch.empty_like(g, dtype=ctx.dtype)
        return torch.mul(g, ctx.n, out=out), None, None, None  # multiplied in float32 and rounded, in one kernel


class _MeanLossCorrection:
    """Undoes the division of a mean loss behind the outputs of one batch."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Another batch."""
        self.on, self._fired = False, False
        """Whether outputs were handed on so, and whether a gradient has come back through them."""
        self._low: bool | None = None

    def outputs(self, output: object, anchor: Tensor, n: int, low: bool) -> object:
        """The outputs of a pass of `low` precision with the division undone behind them; those of others as they are.

        `anchor` is that of the layers' taps, by which the backward pass that trains is known.  All passes of one batch
        must agree: their rows are added, and all of them are divided by n or none is.
        """
        if self._low not in (None, low):
            raise validate.InvalidInput(_PRECISIONS)
        self._low = low
        if not low:
            return output

        def fired() -> None:
            self._fired = True

        def tapped(x: Tensor) -> Tensor:
            if not (x.requires_grad and x.is_floating_point()):
                return x
            self.on = True
            tap: Tensor = _Undone.apply(x, anchor, n, fired)  # type: ignore[no-untyped-call]
            return tap

        return mapped(tapped, output)

    def check_kept(self, things: Mapping[str, object]) -> None:
        """Refuse what a module keeps of a pass: a loss of it beside the outputs would be divided by n still."""
        names = sorted(name for name, x in things.items() if isinstance(x, Tensor) and x.grad_fn is not None)
        validate.require(not names, _KEPT.format(what=f"the module keeps {names} of its pass with their graph"))

    def check(self) -> None:
        """Where outputs were handed on so, refuse gradients that came another way, and are divided by n still."""
        way = "a gradient reached a layer without passing the module's own output (through a tensor that a hook kept)"
        validate.require(self._fired, _KEPT.format(what=way))


# ---------------------------------------------------------------- the loss


class Losses:
    """Looks at the losses of a training, one batch at a time.

    reduction   what the losses are said to be: "mean" or "sum"
    dim         where outputs keep their examples
    mine        parameters that the loss may move: by the ids of those of the private module
    """

    def __init__(self, reduction: str, dim: int, mine: Container[int] | None = None) -> None:
        self.reduction, self.dim, self.mine = reduction, dim, mine
        self._looks, self._told = 0, False
        self._divisors: list[float] = []
        """Those of the first batch that had any."""
        self._n, self._scale = 0, 1.0
        self._outputs: list[tuple[Tensor, int]] = []
        self._nodes: set[Node] = set()

    def due(self) -> bool:
        """Whether the batch that comes is one to look at: of the first, or drawn."""
        self._looks += 1
        return self._looks <= FIRST or not secret.randbelow(AGAIN)

    def expect(self, output: object, n: int, scale: float) -> None:
        """A pass has returned this for n examples: the loss, times a public scale, is looked at when it comes."""
        if n < 2:
            return  # nobody to meet, and a sum is a mean
        self._n, self._scale = n, scale

        def keep(x: Tensor) -> Tensor:
            if x.grad_fn is not None:
                cut = returned_examples(x, n, self.dim)
                self._nodes.add(x.grad_fn)
                if cut is not None:
                    self._outputs.append((x, cut))
            return x

        mapped(keep, output)
        if self._nodes:
            with _lock:
                if self._look not in _looks:
                    _looks.append(self._look)
                torch.autograd.backward = _looked_at

    def reset(self) -> None:
        """The batch is spent."""
        if self._n:
            self._n, self._outputs, self._nodes = 0, [], set()
            with _lock:
                if self._look in _looks:
                    _looks.remove(self._look)
                if not _looks and torch.autograd.backward is _looked_at:  # as it was once nobody looks
                    torch.autograd.backward = _plain

    def _look(self, losses: list[Tensor], gradients: list[Tensor | None]) -> None:
        """Refuse a loss, before its backward pass, that gives a record the share of another."""
        ends = {x.grad_fn for x, _ in self._outputs}
        roots = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        passed = _above(roots, ends)
        if passed.isdisjoint(self._nodes):
            return  # of another module
        if self.mine is not None:  # parameters beside the private ones would move by raw gradients
            variables = [_of(node, "variable") for node in _above(roots, ())]
            foreign = [list(x.shape) for x in variables if isinstance(x, nn.Parameter) and id(x) not in self.mine]
            validate.require(not foreign, _FOREIGN.format(count=len(foreign), shape=foreign[:1]))
        validate.require(not any(_selects(node, self._n, self.dim) for node in passed - ends), _SELECTED)
        for loss in losses:
            if loss.ndim == 0 and loss.grad_fn is not None:
                self._check(list(divisors(loss.grad_fn, ends, self._n, self.dim, self._scale)))
        ours = [(x, cut) for x, cut in self._outputs if x.grad_fn in passed]
        if ours and sum(x.numel() for x, _ in ours) <= NUMBERS and _differentiable(passed, ends):
            validate.require(not _crosses(losses, gradients, ours), _CROSSED)

    def _check(self, found: list[_Divisor]) -> None:
        """Refuse divisors that are not what was said, and warn of one that changes from batch to batch."""
        validate.require(not any(divisor.weighed for divisor in found), _WEIGHED)
        if self._n < _MIN_EXAMPLES or len(found) >= self._n:
            return  # too few to tell examples from classes, or a loss that takes example by example
        mean, by, unit, other = False, 1, "", "mean"
        if self.reduction == "mean":
            mean, by, unit, other = True, self._n, " (times the number of examples)", "sum"
        said = all(divisor.mean == mean for divisor in found if not divisor.touched)
        validate.require(said, _REDUCTION.format(said=self.reduction, other=other))
        numbers = [divisor.number / by for divisor in found]
        self._divisors = self._divisors or numbers
        for now in numbers:
            if not self._told and not any(math.isclose(now, before, rel_tol=CLOSE) for before in self._divisors):
                self._told = True
                warnings.warn(_CHANGES.format(unit=unit), stacklevel=5)


@dataclass(frozen=True)
class _Divisor:
    """What the terms of a loss are divided by: the sizes that means divide by, and all other factors."""

    number: float = 1.0
    summed: bool = False
    """Whether the examples are added up on the way."""
    mean: bool = False
    """Whether the number of examples is among what it divides by."""
    weighed: bool = False
    """Whether it is a mean by weights, which divides by a sum over the targets."""
    touched: bool = False
    """Whether the loop multiplies or divides by a number of its own."""

    def over(self, size: int, examples: bool, mean: bool) -> _Divisor:
        """A sum or a mean of so many terms, perhaps of all examples."""
        found = replace(self, summed=self.summed or examples)
        if mean:
            found = replace(found, number=self.number * size, mean=self.mean or examples)
        return found

    def times(self, factor: float, own: bool) -> _Divisor:
        """Terms that are multiplied by a number, perhaps by one of the loop's own."""
        return replace(self, number=self.number / abs(factor), touched=self.touched or own)


def divisors(root: Node, ends: Container[Node | None], n: int, dim: int = 0, scale: float = 1.0) -> Iterator[_Divisor]:
    """What each sum over n examples in the graph of a loss (times a scale) is divided by, as far as that is seen.

    >>> x = torch.ones(4, 2, requires_grad=True)
    >>> for loss in (x.exp().sum() / 3, x.exp().mean(), x.exp().mean(1).sum() * 0.5):
    ...     print([(found.number, found.mean) for found in divisors(loss.grad_fn, set(), 4)])
    [(3.0, False)]
    [(8.0, True)]
    [(4.0, False)]
    """
    todo = [(root, _Divisor(scale))]
    while todo:
        node, found = todo.pop()
        terms = [(child, place) for place, (child, _) in enumerate(node.next_functions) if child is not None]
        name, reduction = node.name().split("Backward")[0], _of(node, "_saved_reduction")
        below: list[tuple[Node, _Divisor]] = []
        if node in ends or not terms:
            pass
        elif reduction is not None:
            found = _of_loss(node, found, reduction, n)
        elif name in ("Mean", "Sum"):
            below = [(terms[0][0], _reduced(node, name == "Mean", found, n, dim))]
        elif name in ("Mul", "Div"):
            factor = _factor(node, name == "Div")
            if factor is not None and len(terms) == 1:  # a GradScaler's is none of the loop's own
                below = [(terms[0][0], found.times(factor, own=factor != scale or scale == 1))]
        elif name in _PASSING and (not found.summed or len(terms) == 1):  # later terms may be repeated to be added
            for child, place in terms:
                alpha = 1.0
                if place == 1:
                    alpha = float(_of(node, "_saved_alpha") or 1)  # of the second term of a sum
                below.append((child, found.times(alpha, own=alpha != 1)))
        todo += below
        if found.summed and not below:
            yield found


def _of(node: object, name: str) -> Any:
    """What a node of a graph has saved; None where this kind of node has nothing of that name."""
    return getattr(node, name, None)


def _of_loss(node: Any, found: _Divisor, reduction: int, n: int) -> _Divisor:
    """The divisor of one of torch's own losses."""
    if reduction == 0:
        return found
    if reduction == 2:
        return replace(found, summed=True)
    total = _of(node, "_saved_total_weight")
    if total is None:
        size = node._saved_self.numel()
        return found.over(size, size % n == 0, mean=True)
    targets = node._saved_target.numel()
    weighed = node._saved_weight is not None or float(total) != targets
    return replace(found.over(targets, targets % n == 0, mean=True), weighed=weighed)


def _reduced(node: Any, mean: bool, found: _Divisor, n: int, dim: int) -> _Divisor:
    """A sum or a mean over all entries of a tensor, or over some of its dimensions."""
    sizes, places = node._saved_self_sym_sizes, _of(node, "_saved_dim")
    if places is None:
        size = math.prod(sizes)
        return found.over(size, size % n == 0, mean)
    dims = _dimensions(places, len(sizes))
    examples = any(place in dims and sizes[place] % n == 0 for place in (0, dim) if place < len(sizes))
    return found.over(math.prod(sizes[place] for place in dims), examples, mean)


def _dimensions(places: Sequence[int], ndim: int) -> set[int]:
    """The dimensions that an operation goes over, as numbers from 0: all of them where it names none."""
    return {place if place < ndim else place - (1 << 64) + ndim for place in places} or set(range(ndim))


def _factor(node: object, divides: bool) -> float | None:
    """What a product with a number, or a quotient by one, multiplies by; None for all others."""
    numbers = [x for x in (_of(node, "_saved_other"), _of(node, "_saved_self")) if x is not None]
    if len(numbers) != 1 or (divides and _of(node, "_saved_other") is None):
        return None
    if isinstance(numbers[0], Tensor) and numbers[0].numel() != 1:
        return None
    number = float(numbers[0])
    if not math.isfinite(number) or number == 0:
        return None
    if divides:
        return 1 / number
    return number


def _above(roots: Iterable[Node], ends: Container[Node | None]) -> set[Node]:
    """The nodes of a graph down to some of its nodes, those included."""
    passed: set[Node] = set()
    todo = list(roots)
    while todo:
        node = todo.pop()
        if node not in passed:
            passed.add(node)
            if node not in ends:
                todo += [child for child, _ in node.next_functions if child is not None]
    return passed


def _selects(node: Any, n: int, dim: int) -> bool:
    """Whether an operation chooses among the entries of different examples."""
    if node.name().split("Backward")[0] not in _SELECTING:
        return False
    sizes, places = _of(node, "_saved_self_sym_sizes"), _of(node, "_saved_dim")
    sizes = sizes or getattr(_of(node, "_saved_self"), "shape", ())
    if places is None:
        return bool(sizes) and math.prod(sizes) % n == 0 and n in (sizes[0], math.prod(sizes))
    if not isinstance(places, (tuple, list)):
        places = (places,)
    dims = _dimensions(places, len(sizes))
    return any(place in dims and sizes[place] == n for place in {0, dim} if place < len(sizes))


def _differentiable(passed: set[Node], ends: set[Node | None]) -> bool:
    """Whether a loss is made of torch's own operations alone, and no output of others."""
    if any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in passed - ends):
        return False
    reached = passed & ends
    below = [child for node in reached for child, _ in node.next_functions if child is not None]
    return len(reached) == 1 or _above(below, ()).isdisjoint(reached)


def _crosses(losses: list[Tensor], gradients: list[Tensor | None], outputs: list[tuple[Tensor, int]]) -> bool:
    """Whether the gradient for the outputs of half of the examples, drawn in secret, depends on the others'."""
    tensors, n = [x for x, _ in outputs], outputs[0][0].shape[outputs[0][1]]
    source = torch.Generator().manual_seed(secret.randbits(63))
    half = torch.randperm(n, generator=source)[: n // 2]
    try:
        first = torch.autograd.grad(losses, tensors, gradients, create_graph=True, allow_unused=True)
        total: Any = 0  # of the gradients for these examples, each number times a random one
        for g, (_, cut) in zip(first, outputs, strict=True):
            if g is not None and g.requires_grad:
                x = g.index_select(cut, half.to(g.device))
                total = total + (x * torch.randn(x.shape, generator=source).to(x.device, x.dtype)).sum()
        if isinstance(total, int):
            return False
        second = torch.autograd.grad(total, tensors, retain_graph=True, allow_unused=True)
    except (RuntimeError, NotImplementedError):  # no second derivative
        return False
    for g, (_, cut) in zip(second, outputs, strict=True):
        if g is not None:
            sizes = g.detach().movedim(cut, 0).flatten(1).nan_to_num(0, 0, 0).abs().amax(1)
            own = torch.zeros(n, dtype=torch.bool).index_fill(0, half, True).to(g.device)
            if sizes[~own].max() > SMALL * sizes[own].max():
                return True
    return False


# ---------------------------------------------------------------- where a loss is met

_Look = Callable[[list[Tensor], list[Tensor | None]], None]
_plain = torch.autograd.backward
_looks: list[_Look] = []
_lock = threading.Lock()


@functools.wraps(_plain)
def _looked_at(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
    """`torch.autograd.backward`, as `Tensor.backward` calls it, while losses are expected."""
    losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    gradients = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors or [None] * len(losses))
    if all(isinstance(loss, Tensor) for loss in losses):
        for look in tuple(_looks):
            look(losses, gradients)
    _plain(tensors, grad_tensors, *args, **kwargs)
