"""What a user's loss does with the outputs of a batch, looked at before its gradient is taken.

A round takes every record's gradient for its own, times a public number.  Two things in a loss can break that, and both
can be seen in its graph while it still has what it saved, which is until `backward()` runs:

  * **Another divisor.**  `loss_reduction="mean"` says that the terms are divided by the number of examples, "sum" that
    they are not.  Where a loss does the other thing, one record more changes every other record's share; so it does
    where the divisor is a sum over the records (class weights, targets that are ignored, tokens that are counted).
  * **Terms of two examples.**  The gradient that the loss has for the outputs of an example may not change with the
    outputs of others, as it does in contrastive losses or behind statistics of the batch.  The derivative of that
    gradient, for half of the examples, by the outputs of the other half is zero if it does not: this is exact, and the
    network takes no part in it.

The first batches are looked at, and later ones by chance.  What is not seen: functions with a backward pass of their
own, outputs with too many numbers for a second derivative, and targets (or weights of single terms) that were made from
several records before the loss got them.  What a loss divides by may also follow a public schedule, so that a divisor
which changes is only warned of.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from isthmus.base import secret, validate
from isthmus.gradients.layers.apart import AGAIN, returned_examples
from isthmus.gradients.layers.between import mapped

FIRST = 3
"""Batches that are always looked at."""
NUMBERS = 1 << 24
"""Outputs with more numbers are not differentiated twice."""
CLOSE = 1e-6
"""Divisors are float32 numbers: closer ones are the same."""
SMALL = 1e-5
"""What is left of a sum of zeros, against the derivatives of the examples' own terms."""

LEAST = 4
"""Of fewer examples their number is easily that of something else."""
PASSING = frozenset("Neg Alias Clone ToCopy View UnsafeView Squeeze Unsqueeze Add Sub Stack Cat _Undone".split())
"""Operations that leave the size of every term as it is, up to its sign."""

SUM = (
    'the loss is a sum over the examples, and loss_reduction="mean" says that it is a mean: every gradient would be '
    "multiplied by the size of the batch, which one record changes; take the mean, or give make_private("
    'loss_reduction="sum")'
)
MEAN = (
    'the loss is a mean over the examples, and loss_reduction="sum" says that it is a sum: every gradient would be '
    "divided by the size of the batch, which one record changes; take the sum, or give make_private("
    'loss_reduction="mean")'
)
WEIGHED = (
    "the loss divides by the weights of the batch's targets (weight= of a mean), or by how many of them are not "
    "ignored (ignore_index), so that one record would change every other one's share: take reduction='none', weigh or "
    "leave out the terms of each example by yourself, add them up for each example, and divide by a public number: "
    ".mean() over the examples, or a sum with make_private(loss_reduction='sum')"
)
CROSSED = (
    "examples meet in the loss: its gradient for the outputs of one example changes with the outputs of others (as in "
    "contrastive losses, or behind statistics of the batch), so that no record's gradient is its own; let the term of "
    "an example use that example only, or make the examples that belong together one record of the dataset"
)
FOREIGN = (
    "the gradient of this loss reaches {count} parameter(s) that are not of the private module, of shape {shape} for "
    "one (of a head, an encoder or a learned loss beside it): backward() would write unprotected sums of the private "
    "batch into their .grad, and whatever moves them publishes it. Put everything that is trained into one module and "
    "make that private, or freeze the rest (requires_grad_(False)) or detach what they give"
)
SELECTED = (
    "the loss chooses among the examples of a batch (by max, topk, sort or a median over them, as in hard-example "
    "mining): one record more takes the place of another, and moves the sum by both; let every example count, or "
    "weigh each by its own loss"
)
SELECTING = ("Topk", "Sort", "Max", "Min", "Amax", "Amin", "Median", "Kthvalue", "Nanmedian")
CHANGES = (
    "the loss divides its terms by another number{unit} than in an earlier batch: where that follows the "
    "data (weights, masks, counted tokens, the longest text), one record changes every other one's share; divide by a "
    "public number. Where it follows a public schedule, all is well"
)


@dataclass(frozen=True)
class Divisor:
    """What the terms of a loss are divided by: the sizes that means divide by, and all other factors."""

    sizes: float = 1.0
    factor: float = 1.0
    summed: bool = False
    """Whether the examples are added up on the way."""
    mean: bool = False
    """Whether the number of examples is among the sizes."""
    weighed: bool = False
    """Whether it is a mean by weights, which divides by a sum over the targets."""
    touched: bool = False
    """Whether the loop multiplies or divides by a number of its own."""

    @property
    def number(self) -> float:
        """Its size."""
        return self.sizes / abs(self.factor)

    def times(self, factor: float) -> Divisor:
        """All terms multiplied by a number of the loop's own."""
        return replace(self, factor=self.factor * factor, touched=True)

    def over(self, size: int, examples: bool, mean: bool) -> Divisor:
        """A sum or a mean of so many terms, perhaps of all examples."""
        sizes = self.sizes * size if mean else self.sizes
        return replace(self, sizes=sizes, summed=self.summed or examples, mean=self.mean or (examples and mean))


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

    def expect(self, output: Any, n: int, scale: float) -> None:
        """A pass has returned this for n examples: the loss, times a public scale, is looked at when it comes."""
        if n < 2:
            return  # nobody to meet, and a sum is a mean
        self._n, self._scale = n, scale
        for x in leaves_of(output):
            if x.grad_fn is not None:
                cut = returned_examples(x, n, self.dim)
                self._nodes.add(x.grad_fn)
                self._outputs += [] if cut is None else [(x, cut)]
        if self._nodes:
            _listen(self._look)

    def reset(self) -> None:
        """The batch is spent."""
        if self._n:
            self._n, self._outputs, self._nodes = 0, [], set()
            _silence(self._look)

    def _look(self, losses: list[Tensor], gradients: list[Tensor | None]) -> None:
        """Refuse a loss, before its backward pass, that gives a record the share of another."""
        ends = {x.grad_fn for x, _ in self._outputs}
        roots = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        passed = _above(roots, ends)
        if passed.isdisjoint(self._nodes):
            return  # of another module
        self._check_mine(roots)
        validate.require(not any(_selects(node, self._n, self.dim) for node in passed - ends), SELECTED)
        for root in [loss.grad_fn for loss in losses if loss.ndim == 0 and loss.grad_fn is not None]:
            self._check(list(divisors(root, ends, self._n, self.dim, self._scale)))
        ours = [(x, cut) for x, cut in self._outputs if x.grad_fn in passed]
        few = sum(x.numel() for x, _ in ours) <= NUMBERS
        if ours and few and _differentiable(passed, ends) and _crosses(losses, gradients, ours):
            raise validate.InvalidInput(CROSSED)

    def _check_mine(self, roots: list[Node]) -> None:
        """Refuse a loss that would move parameters beside the private ones by raw gradients."""
        if self.mine is None:
            return
        variables = [getattr(node, "variable", None) for node in _above(roots, ())]
        foreign = [x for x in variables if isinstance(x, nn.Parameter) and id(x) not in self.mine]
        if foreign:
            raise validate.InvalidInput(FOREIGN.format(count=len(foreign), shape=list(foreign[0].shape)))

    def _check(self, found: list[Divisor]) -> None:
        """Refuse divisors that are not what was said, and warn of one that changes from batch to batch."""
        if any(divisor.weighed for divisor in found):
            raise validate.InvalidInput(WEIGHED)
        if self._n < LEAST or len(found) >= self._n:
            return  # too few to tell examples from classes, or a loss that takes example by example
        bare = [divisor for divisor in found if not divisor.touched]
        if self.reduction == "mean" and any(not divisor.mean for divisor in bare):
            raise validate.InvalidInput(SUM)
        if self.reduction == "sum" and any(divisor.mean for divisor in bare):
            raise validate.InvalidInput(MEAN)
        by, unit = (self._n, " (times the number of examples)") if self.reduction == "mean" else (1, "")
        numbers = [divisor.number / by for divisor in found]
        self._divisors = self._divisors or numbers
        for now in numbers:
            if not self._told and not any(math.isclose(now, before, rel_tol=CLOSE) for before in self._divisors):
                self._told = True
                warnings.warn(CHANGES.format(unit=unit), stacklevel=5)


# ---------------------------------------------------------------- what a graph says


def leaves_of(output: Any) -> list[Tensor]:
    """The tensors of what a module returns, in lists, dicts and dataclasses too."""
    found: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        found.append(x)
        return x

    mapped(keep, output)
    return found


def divisors(root: Node, ends: Container[Node | None], n: int, dim: int = 0, scale: float = 1.0) -> Iterator[Divisor]:
    """What each sum over n examples in the graph of a loss (times a scale) is divided by, as far as that is seen.

    >>> x = torch.ones(4, 2, requires_grad=True)
    >>> for loss in (x.exp().sum() / 3, x.exp().mean(), x.exp().mean(1).sum() * 0.5):
    ...     print([(found.number, found.mean) for found in divisors(loss.grad_fn, set(), 4)])
    [(3.0, False)]
    [(8.0, True)]
    [(4.0, False)]
    """
    todo = [(root, Divisor(factor=1 / scale))]
    while todo:
        node, found = todo.pop()
        name, more = _name(node), [child for child, _ in node.next_functions if child is not None]
        if node in ends or not more:
            below = None
        elif hasattr(node, "_saved_reduction"):
            found, below = _of_loss(node, found, n), None
        elif name in ("Mean", "Sum"):
            below = [(more[0], _reduced(node, name == "Mean", found, n, dim))]
        elif name in ("Mul", "Div"):
            below = _scaled(node, name == "Div", found, scale)
        elif name in PASSING and (not found.summed or len(more) == 1):  # later terms may be repeated to be added
            below = [(child, _term(node, child, found)) for child in more]
        else:
            below = None
        todo += below or []
        if below is None and found.summed:
            yield found


def _name(node: Node) -> str:
    """The operation that a node is the backward pass of."""
    return node.name().split("Backward")[0]


def _of_loss(node: Any, found: Divisor, n: int) -> Divisor:
    """The divisor of one of torch's own losses."""
    if node._saved_reduction == 0:
        return found
    if node._saved_reduction == 2:
        return replace(found, summed=True)
    if not hasattr(node, "_saved_total_weight"):
        size = node._saved_self.numel()
        return found.over(size, size % n == 0, mean=True)
    targets, weight = node._saved_target.numel(), float(node._saved_total_weight)
    weighed = node._saved_weight is not None or weight != targets
    return replace(found.over(targets, targets % n == 0, mean=True), weighed=weighed)


def _reduced(node: Any, mean: bool, found: Divisor, n: int, dim: int) -> Divisor:
    """A sum or a mean over all entries of a tensor, or over some of its dimensions."""
    sizes = node._saved_self_sym_sizes
    if not hasattr(node, "_saved_dim"):
        size = math.prod(sizes)
        return found.over(size, size % n == 0, mean)
    dims = {place if place < len(sizes) else place - (1 << 64) + len(sizes) for place in node._saved_dim}
    dims = dims or set(range(len(sizes)))
    examples = any(place in dims and sizes[place] % n == 0 for place in (0, dim) if place < len(sizes))
    return found.over(math.prod(sizes[place] for place in dims), examples, mean)


def _scaled(node: Any, divides: bool, found: Divisor, scale: float) -> list[tuple[Node, Divisor]] | None:
    """A product with a number, or a quotient by one; None for all others."""
    children = [child for child, _ in node.next_functions if child is not None]
    saved = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    numbers = [x for x in saved if x is not None]
    if len(children) != 1 or len(numbers) != 1 or (divides and saved[0] is None):
        return None
    if isinstance(numbers[0], Tensor) and numbers[0].numel() != 1:
        return None
    number = float(numbers[0])
    if not math.isfinite(number) or number == 0:
        return None
    if divides:
        number = 1 / number
    scaled = found.times(number)
    if number == scale != 1:  # as a GradScaler does
        scaled = replace(scaled, touched=found.touched)
    return [(children[0], scaled)]


def _term(node: Any, child: Node, found: Divisor) -> Divisor:
    """A term of a sum: the second one may have a factor."""
    places = [place for place, (other, _) in enumerate(node.next_functions) if other is child]
    if not hasattr(node, "_saved_alpha") or places != [1] or node._saved_alpha == 1:
        return found
    return found.times(float(node._saved_alpha))


def _above(roots: Iterable[Node], ends: Container[Node | None]) -> set[Node]:
    """The nodes of a graph down to some of its nodes, those included."""
    passed: set[Node] = set()
    todo = list(roots)
    while todo:
        node = todo.pop()
        if node not in passed:
            passed.add(node)
            todo += [] if node in ends else [child for child, _ in node.next_functions if child is not None]
    return passed


def _selects(node: Any, n: int, dim: int) -> bool:
    """Whether an operation chooses among the entries of different examples."""
    if node.name().rstrip("0123456789").removesuffix("Backward") not in SELECTING:
        return False
    whole = getattr(node, "_saved_self", None)
    sizes = tuple(getattr(node, "_saved_self_sym_sizes", () if whole is None else whole.shape))
    places = getattr(node, "_saved_dim", None)
    if places is None:
        return bool(sizes) and math.prod(sizes) % n == 0 and n in (sizes[0], math.prod(sizes))
    places = places if isinstance(places, (tuple, list)) else (places,)
    dims = {place if place < len(sizes) else place - (1 << 64) + len(sizes) for place in places} or range(len(sizes))
    return any(place in dims and sizes[place] == n for place in {0, dim} if place < len(sizes))


def _differentiable(passed: set[Node], ends: set[Node | None]) -> bool:
    """Whether a loss is made of torch's own operations alone, and no output of others."""
    inner = [node for node in passed if node not in ends]
    reached = [node for node in passed if node in ends]
    if any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in inner):
        return False
    if len(reached) == 1:
        return True
    below = _above([child for node in reached for child, _ in node.next_functions if child is not None], ())
    return below.isdisjoint(reached)


def _crosses(losses: list[Tensor], gradients: list[Tensor | None], outputs: list[tuple[Tensor, int]]) -> bool:
    """Whether the gradient for the outputs of half of the examples, drawn in secret, depends on the others'."""
    tensors, n = [x for x, _ in outputs], outputs[0][0].shape[outputs[0][1]]
    source = torch.Generator().manual_seed(secret.randbits(63))
    half = torch.randperm(n, generator=source)[: n // 2]
    try:
        first = torch.autograd.grad(losses, tensors, gradients, create_graph=True, allow_unused=True)
        pairs = [(g, cut) for g, (_, cut) in zip(first, outputs, strict=True) if g is not None and g.requires_grad]
        total: Any = sum(_pulled(g.index_select(cut, half.to(g.device)), source) for g, cut in pairs)
        if not pairs:
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


def _pulled(x: Tensor, source: torch.Generator) -> Tensor:
    """The sum of a tensor's numbers, each times a random one."""
    return (x * torch.randn(x.shape, generator=source).to(x.device, x.dtype)).sum()


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


def _listen(look: _Look) -> None:
    """Show every loss to `look`, before its backward pass."""
    with _lock:
        if look not in _looks:
            _looks.append(look)
        torch.autograd.backward = _looked_at


def _silence(look: _Look) -> None:
    """No longer; torch is as it was once nobody looks."""
    with _lock:
        if look in _looks:
            _looks.remove(look)
        if not _looks and torch.autograd.backward is _looked_at:
            torch.autograd.backward = _plain
