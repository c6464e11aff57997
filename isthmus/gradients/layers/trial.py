"""Whether examples meet: a copy of a module is run on examples beside others, and beside what no example should be.

A record's gradient is its own only if nothing of it comes from other records.  Layers with rules and layers of one's
own keep examples apart by construction; the code between them, functions without parameters and hooks may not, and no
reading of them tells.  So they are tried out, on a few examples of a batch that is about to be used:

  * half of the examples (drawn from the operating system's generator) are replaced, in the arguments and in the output
    of every trained layer, by NaN, by huge values of either sign, and by other examples: the other half must give the
    outputs and the gradients it gave before, layer by layer;
  * examples among copies of themselves must give the output and, by plain autograd, the gradient that the rows of the
    batch say.

This is a test, not a proof: code that waits for a value that no trial contains is not found.  The copy leaves the
module's buffers, attributes and hooks, the state of every global random generator and all accounting as they were.

**Between the parts.**  What a loop does between the parts of a module that it calls by themselves is kept until it has
been tried out:

    h = module.body(x)
    h = h - h.mean(0)          # code of the loop, in which examples may meet
    loss = F.cross_entropy(module.head(h), y)

A module whose own `forward` is called is tried out as a whole.  A part that is called by itself returns tensors that
know where they come from: what is done with them is written down, operation by operation, until another part is given
what came of it.  The whole way, parts and operations, is then one function of the examples that came in, and
`look` tries it out as any module, before the gradients of the batch are used.

What leaves torch (a number that Python reads) is taken as it was.  A tensor that comes from the module by a way that
cannot be followed (`torch.func`, scripted functions, code between the module's own `forward` and a part) is refused.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Hashable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from types import MethodType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from isthmus.base import secret, validate
from isthmus.gradients.layers.forward_guard import RandomStates
from isthmus.gradients.layers.layers import Layers, tap
from isthmus.gradients.layers.operations import Leaves, _near_enough
from isthmus.gradients.layers.rules import AnyRule, Args, Kwargs, _pieces_of, shapes_of_one
from isthmus.gradients.rows import Rows

EXAMPLES = 6
"""Examples of a first trial, at most."""
LATER = 16
"""Examples of a later trial, at most."""
FEW = 3
"""Examples of any trial of a large module, whose passes take much memory."""
AGAIN = 128
"""One batch in this many, at random, is tried out again."""
_SELDOM = 1024
"""The same for a large module, of which a trial takes as long as ten steps."""
_NUMBERS = 1 << 20
"""Numbers of a gradient that are compared in a trial: of some layers, drawn anew, where a module has more."""
SHAPES = 4
"""So many shapes of arguments are tried out when they are first seen; the others wait for chance."""

Values = tuple[float | None, ...]
"""What examples are replaced by: NaN, huge numbers of either sign, or (None) other examples."""
_OTHERS: Values = (None,)
_EXTREMES: Values = (float("nan"), 1.0, -1.0, None)

Run = Callable[[nn.Module, Args, Kwargs], Any]
"""What is run: the module on its arguments, and the loss of that where it is known."""
Pieces = Set[tuple[str, int]] | None
"""Layers that may see several pieces of every example, and how many (None: any)."""


def _call(module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    return module(*args, **kwargs)


def look(
    layers: Layers, args: Args, kwargs: Kwargs, n: int | None, run: Run = _call, way: tuple[str, ...] = ()
) -> Pieces:
    """Refuse a module (or a loss) in which the n examples of a batch meet; nothing else is changed or kept.

    `way` names the steps of a loop that calls parts of the module by themselves, which `run` does again.  Returns the
    pieces of examples that layers were seen to take, which the pass that comes is held to.

    >>> class Centred(nn.Module):
    ...     def forward(self, x):
    ...         return x - x.mean(0)
    >>> layers = Layers(nn.Sequential(Centred(), nn.Linear(3, 1)))
    >>> look(layers, (torch.randn(8, 3),), {}, 8)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: examples meet in the module: with other examples beside it, ...
    """
    known, large = layers.known, layers.large
    if n is None:
        return None
    batch = _Batch.of(args, kwargs, n, layers.batch_dim)
    if n < 2:  # nobody to meet: two copies of a first example show all the same what is read outside its layer
        if n and not known.trusted:
            # where it cannot be run so, it may as it is in use, and else says itself what is wrong
            with RandomStates(layers.anchor.device) as dice, torch.enable_grad(), suppress(Exception):
                _Trial(layers, run, dice).prepare(batch.take(torch.tensor([0, 0])))
        return None
    shape = way, shapes_of_one(batch.leaves, batch.cuts)
    first, before = False, known.trusted.get(shape, frozenset())
    if shape not in known.trusted:
        # pieces of examples are seen where they were seen in a trial of the same shapes only
        first = bool(known.pieces) or sum(bool(way) == bool(other) for other, _ in known.trusted) < SHAPES
    if not first and not _drawn_again(layers):
        return before
    known.pieces.clear()
    most = EXAMPLES if first else LATER
    count = min(most, FEW) if large else most
    if not first:
        count = secret.randbelow(min(count, n) - 1) + 2
    with RandomStates(layers.anchor.device) as dice, torch.enable_grad():
        done = _try_out(_Trial(layers, run, dice), batch, count, thorough=first)
    if way and not done:
        raise validate.InvalidInput(
            "the loop calls parts of the module by themselves, and what it does between them cannot be done again with "
            "other examples, to see whether examples meet there: move this code into the module's forward"
        )
    gc.collect()  # copies and their taps hold each other: their memory is for the pass that comes
    known.trusted[shape] = before | known.pieces
    return known.trusted[shape]


def due(layers: Layers, shape: Hashable, before: set[Hashable]) -> bool:
    """Whether a shape of arguments is to be tried out: the first few when they are new, later ones by chance."""
    first = shape not in before and len(before) < SHAPES
    if first:
        before.add(shape)
    return first or _drawn_again(layers)


def _drawn_again(layers: Layers) -> bool:
    """Whether chance has a batch tried out that need not be."""
    return not secret.randbelow(_SELDOM if layers.large else AGAIN)


def depends(layers: Layers, together: tuple[Args, Kwargs], own: tuple[Args, Kwargs], n: int, place: int) -> bool:
    """Whether the module gives an example another output where its arguments were made beside those of others.

    `together` are the arguments of n examples, `own` those of copies of the one at `place`.  A longer output must begin
    or end with the shorter one; examples may have changed places.
    """
    given = []
    with RandomStates(layers.anchor.device) as dice, torch.no_grad():
        for args, kwargs in (together, own):
            module = _twin_of(layers.module, set())
            _quiet(module)
            args, kwargs = tree_map_only(Tensor, Tensor.clone, (args, kwargs))
            if not layers.large:
                args, kwargs = tree_map_only(Tensor, lambda x: x.double() if _floats(x) else x, (args, kwargs))
                module = module.double()
            dice.rewind()
            given.append(tree_flatten(module(*args, **kwargs))[0])
            if dice.drew():  # other lengths draw other numbers: it cannot be told
                return False
    for x, y in zip(*given, strict=True):
        cut = returned_examples(x, n, layers.batch_dim)
        if _floats(x) and _floats(y) and cut is not None and x.ndim == y.ndim:
            rows, row = x.movedim(cut, 0), y.select(cut, 0)
            if not any(_holds(rows[i], row) for i in (place, *range(n))):
                return True
    return False


def _holds(x: Tensor, part: Tensor) -> bool:
    """Whether a tensor begins or ends with another (True where that is longer, and nothing can be told)."""
    pairs = list(zip(x.shape, part.shape, strict=True))
    if any(size < short for size, short in pairs):
        return True
    slack = {torch.float64: 1e-5, torch.float32: 1e-3}.get(x.dtype, 3e-2)
    begins, ends = x[tuple(slice(short) for _, short in pairs)], x[tuple(slice(a - b, a) for a, b in pairs)]
    return _near(begins, part, slack) or _near(ends, part, slack)


def _try_out(trial: _Trial, batch: _Batch, count: int, thorough: bool) -> bool:
    """Few examples where the module takes them, else all; on an accelerator extremes only in a copy on the host.

    Whether it could be tried out at all.

    There an index that NaN made would stop the device for good.  A large module costs too much on the host for more
    than two examples and one extreme: the rest of its trial is on the device.
    """
    large = trial.layers.large
    if trial.device.type == "cpu":
        return _try_part(trial, batch, count, _EXTREMES)
    if thorough:
        on_host = trial.of(_twin_of(trial.module, trial.trained).cpu())
        if large:
            _try_part(on_host, batch, 2, _EXTREMES[:1], alone=False)
        elif _try_part(on_host, batch, count, _EXTREMES):
            return True
    return _try_part(trial, batch, count, _OTHERS)


def _try_part(trial: _Trial, batch: _Batch, count: int, values: Values, alone: bool = True) -> bool:
    """Whether the module could be tried out on some of a batch's examples, or on all."""
    whole = replace(batch, only_first=True)
    parts = [whole.to(trial.device)]
    if batch.n >= 4:
        parts.insert(0, batch.take(_drawn(batch.n)[: min(count, batch.n - 1)].sort().values).to(trial.device))
    for part in parts:
        try:
            trial.told_apart(part, partial(trial.prepare, part))
        except Exception as error:
            if isinstance(error, validate.InvalidInput) and part is parts[-1]:
                raise
            continue  # it cannot be run so: as it is in use it may, and else says itself what is wrong
        trial.told_apart(part, partial(trial.examine, part, values, alone))
        return True
    return False


def _some(leaves: list[tuple[str, int]]) -> list[str]:
    """The names of leaves that hold some `_NUMBERS` together, at least one, in their order; drawn in secret."""
    chosen: set[str] = set()
    total = 0
    for place in _drawn(len(leaves)).tolist():
        name, size = leaves[place]
        if not chosen or total + size <= _NUMBERS:
            chosen.add(name)
            total += size
    return [name for name, _ in leaves if name in chosen]


def _drawn(n: int) -> Tensor:
    """A secret order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(secret.randbits(63)))


@dataclass(frozen=True, eq=False)
class _Batch:
    """The arguments of a module, and where each tensor among them keeps its examples."""

    leaves: Leaves
    spec: TreeSpec
    cuts: list[int | None]
    n: int
    only_first: bool = False
    """Whether only the first tensor with examples is altered: another may have n entries by chance."""

    @classmethod
    def of(cls, args: Args, kwargs: Kwargs, n: int, dim: int) -> _Batch:
        """Tensors with n entries where the module keeps its examples, or in front."""
        leaves, spec = tree_flatten((args, kwargs))
        leaves = tree_map_only(Tensor, Tensor.detach, leaves)
        return cls(leaves, spec, [examples_of(leaf, n, dim) for leaf in leaves], n)

    def arguments(self) -> tuple[Args, Kwargs]:
        """As the module takes them; copies, which it may change in place."""
        args, kwargs = tree_unflatten(tree_map_only(Tensor, Tensor.clone, self.leaves), self.spec)
        return args, kwargs

    def take(self, index: Tensor) -> _Batch:
        """Some of the examples."""
        pairs = zip(self.leaves, self.cuts, strict=True)
        leaves = [x if cut is None else x.index_select(cut, index.to(x.device)) for x, cut in pairs]
        return replace(self, leaves=leaves, n=len(index))

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> _Batch:
        """On another device, or in another precision."""

        def moved(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None)

        return replace(self, leaves=tree_map_only(Tensor, moved, self.leaves))

    def exchanged(self, rows: Tensor, value: float | None) -> _Batch:
        """Floats of some examples set to a value; None: those examples replaced by others of the batch."""
        # an integer beside tensors that are not cut may say where in those an example begins
        whole = all(cut is not None for x, cut in zip(self.leaves, self.cuts, strict=True) if isinstance(x, Tensor))
        leaves = list(self.leaves)
        places = [(place, cut) for place, cut in enumerate(self.cuts) if cut is not None]
        for place, cut in places[:1] if self.only_first else places:
            x = leaves[place]
            if x.is_floating_point() or (value is None and whole):
                leaves[place] = _altered(x, cut, rows, value)
        return replace(self, leaves=leaves)


def examples_of(x: object, n: int, dim: int) -> int | None:
    """The dimension in which a tensor has one entry for each of n examples, if it has one."""
    if not isinstance(x, Tensor) or not x.ndim:
        return None
    for place in (dim, 0):
        if x.ndim > place and x.shape[place] == n:
            return place
    return None


def returned_examples(x: object, n: int, dim: int) -> int | None:
    """The same of an output, which may keep its examples in front whatever the inputs do; None where two would do.

    >>> returned_examples(torch.ones(3, 2), 3, 1), returned_examples(torch.ones(3, 3), 3, 1)
    (0, None)
    """
    if isinstance(x, Tensor) and x.ndim > dim > 0 and x.shape[0] == x.shape[dim] == n:
        return None
    return examples_of(x, n, dim)


class _Trial:
    """A module on trial: every pass runs in a fresh copy, from the same state of all random generators."""

    def __init__(self, layers: Layers, run: Run, dice: RandomStates, module: nn.Module | None = None) -> None:
        self.layers, self.run, self.dice, self.module = layers, run, dice, module or layers.module
        self.trained = {name for name, _ in layers.named()}
        first = next(self.module.parameters())
        self.device, self.dtype = first.device, first.dtype
        self.key = secret.randbits(63)
        """From it follows which examples are exchanged, and what gradients outputs are told."""
        self.names = _some([(leaf.name, leaf.size) for leaf in layers.space.leaves])
        """The leaves whose gradients are compared."""
        self._base = _PassRecord()

    def of(self, module: nn.Module) -> _Trial:
        """The same of a copy on another device or in another precision, with the same examples exchanged."""
        trial = _Trial(self.layers, self.run, self.dice, module)
        trial.key, trial.names = self.key, self.names
        return trial

    def prepare(self, batch: _Batch) -> None:
        """The pass that all others must equal; the first of all finds parameters that are read outside their layers."""
        for last in (False, False, True):
            before = self._learnt()
            self._base = self._pass(batch, learning=not last)
            if before == self._learnt():
                return

    def examine(self, batch: _Batch, values: Values, alone: bool) -> None:
        """Refuse examples that meet when others are exchanged or, if `alone`, that give something else alone."""
        what = self._found(batch, values, alone, 1e-3 if self.device.type == "cpu" else 1e-2)
        if what is not None and self.dtype != torch.float64:
            try:  # where much cancels, float32 has few digits left to compare: what is wrong is wrong in float64 too
                wide, part = self.of(_twin_of(self.module, self.trained).double()), batch.to(self.device, torch.float64)
                wide.prepare(part)
                what = wide._found(part, values, alone, 1e-6)
            except Exception:  # it cannot be run so
                what = self._found(batch, values, alone, 3e-2)
        if what is None:
            return
        where = self._base.differs(self._pass(batch), torch.arange(batch.n))
        if where is not None:
            raise validate.InvalidInput(
                "the module gives another result at every pass, with the same examples and the same state of "
                f"all random generators ({where}), so that it cannot be seen whether examples meet in it: draw "
                "random numbers from torch's own generators, and keep no state from pass to pass"
            )
        raise validate.InvalidInput(
            f"examples meet in the module: {what}, so that no record's gradient is its own. Take statistics of single "
            "examples (GroupNorm, LayerNorm), compare no example with another, read weights only by calling their "
            "layers, and keep tensors that all examples share in buffers, not among the arguments"
        )

    def _found(self, batch: _Batch, values: Values, alone: bool, slack: float) -> str | None:
        """How examples meet, if they do."""
        where = self._exchanged(batch, values)
        if where is not None:
            return f"with other examples beside it, {where} changes for an example that stays"
        wrong = self._wrong(batch, slack) if alone else None
        return wrong and f"{wrong} of an example among copies of itself is another than in the batch"

    def told_apart(self, batch: _Batch, look: Callable[[], None]) -> None:
        """A look at a batch; where it refuses, another once a batch of another size has told what holds no examples.

        A table that all examples share may have as many rows as there are examples: of one fewer it has not.
        """
        try:
            look()
        except validate.InvalidInput:
            before = self._learnt()
            try:
                self._pass(batch.take(torch.arange(batch.n - 1)), learning=True)
            except Exception:  # so many cannot be run
                before = self._learnt()
            if before == self._learnt():
                raise
            self.prepare(batch)
            look()

    def _learnt(self) -> tuple[int, int]:
        """How much is known of the module's own code."""
        return len(self.layers.known.read), len(self.layers.known.shared_places)

    def _exchanged(self, batch: _Batch, values: Values) -> str | None:
        """Half of the examples replaced, then the other half: where whatever stays does not give what it gave."""
        drawn, half = torch.Generator().manual_seed(self.key), batch.n // 2
        for value in values:
            order = torch.randperm(batch.n, generator=drawn)
            for gone, stays in ((order[:half], order[half:]), (order[half:], order[:half])):
                try:
                    record = self._pass(batch.exchanged(gone, value), gone, value)
                except Exception:  # values that the module itself refuses
                    continue
                where = self._base.differs(record, stays)
                if where is not None:
                    return where
        return None

    def _pass(
        self, batch: _Batch, rows: Tensor | None = None, value: float | None = None, learning: bool = False
    ) -> _PassRecord:
        """Forward and backward once, with some examples exchanged."""
        probe, passed = self._probe(), _PassRecord()
        probe.learning, probe.shown = learning, partial(_recorded, probe, passed, rows, value)
        with probe.listening(lambda *_: None, batch.n):
            outputs = self._run(probe, batch)
            cuts = [returned_examples(x, batch.n, self.layers.batch_dim) for x in outputs]
            pairs = [(x, cut) for x, cut in zip(outputs, cuts, strict=True) if _moves(x)]
            if pairs:
                pulls = [self._cotangent(x, cut, rows, value) for x, cut in pairs]
                torch.autograd.backward([x for x, _ in pairs], pulls)
        for x, cut in zip(outputs, cuts, strict=True):
            kept = x.detach().movedim(cut, 0) if _floats(x) and cut is not None else None
            passed.given.append(("the module's output", kept))
        return passed

    def _wrong(self, batch: _Batch, slack: float) -> str | None:
        """What, output or gradient, is not that of the example alone; None where one of two examples is right."""
        answer, wrong = self._rows(batch), None
        if answer is None:
            return None
        outputs, cuts, rows = answer
        for i in (0, 1):
            try:
                alone, gradient = self._plain(batch, i, cuts)
            except RuntimeError:  # so few examples cannot be run
                return None
            pairs = [(x.select(cut, i), y.select(cut, 0)) for x, y, cut in zip(outputs, alone, cuts, strict=True)]
            if any(x.shape != y.shape for x, y in pairs):
                return None
            if not all(_near(x, y, slack) for x, y in pairs):
                wrong = "the output"
            elif not _near(rows[i], gradient, slack):
                wrong = "the gradient"
            else:
                return None
        return wrong

    def _rows(self, batch: _Batch) -> tuple[list[Tensor], list[int], Tensor] | None:
        """Outputs of a batch and the rows of its first two examples; None where there are draws, or no such outputs."""
        probe = self._probe()
        _quiet(probe.module)
        like, before = next(probe.parameters()).detach(), _generator_states(probe.module)
        total = {name: like.new_zeros(2, probe.space[name].size) for name in self.names}

        def keep(name: str, rows: Rows) -> None:
            if name in total:
                total[name] = total[name] + rows.part(0, 2).dense()

        with probe.listening(keep, batch.n):
            outputs = [x for x in self._run(probe, batch) if _moves(x)]
            found = [returned_examples(x, batch.n, self.layers.batch_dim) for x in outputs]
            cuts = [cut for cut in found if cut is not None]
            drew = self.dice.drew() or before != _generator_states(probe.module)
            if drew or not outputs or len(cuts) < len(outputs):
                return None
            torch.autograd.backward(outputs, [self._cotangent(x, cut) for x, cut in zip(outputs, cuts, strict=True)])
        return [x.detach() for x in outputs], cuts, torch.cat([*total.values()], 1)

    def _plain(self, batch: _Batch, i: int, cuts: list[int]) -> tuple[list[Tensor], Tensor]:
        """Outputs and gradient of one example beside copies of itself (not as many as the batch has), without taps."""
        probe = self._probe(tapped=False)
        _quiet(probe.module)
        bindings = [probe.bindings[name] for name in self.names]
        parameters = list({id(p): p for binding in bindings for p in binding.parameters}.values())
        among = torch.full((3 if batch.n == 2 else 2,), i)
        outputs, pulls = [x for x in self._run(probe, batch.take(among)) if _moves(x)], []
        for x, cut in zip(outputs, cuts, strict=True):
            size = [*x.shape[:cut], batch.n, *x.shape[cut + 1 :]]
            pull = torch.zeros_like(x)
            pull.select(cut, 0).copy_(self._drawn_like(x, size).select(cut, i))
            pulls.append(pull)
        _parameter_rows = torch.autograd.grad(outputs, parameters, pulls, allow_unused=True, materialize_grads=True)
        gradients = dict(zip(map(id, parameters), _parameter_rows, strict=True))
        return [x.detach() for x in outputs], torch.cat([binding.packed(gradients) for binding in bindings])

    def _probe(self, tapped: bool = True) -> Layers:
        """A copy of the module, with taps or without."""
        twin = _twin_of(self.module, self.trained)
        probe = Layers(twin, batch_first=self.layers.batch_dim == 0, known=self.layers.known)
        if tapped:
            probe.attach()
        return probe

    def _run(self, probe: Layers, batch: _Batch) -> Leaves:
        """What a copy of the module gives."""
        self.dice.rewind()
        return tree_flatten(self.run(probe.module, *batch.arguments()))[0]

    def _cotangent(self, x: Tensor, cut: int | None, rows: Tensor | None = None, value: float | None = None) -> Tensor:
        """The gradient that an output is told: the same at every pass, for examples that stay."""
        if cut is None:
            return torch.ones_like(x)
        pull = self._drawn_like(x, x.shape)
        if rows is None:
            return pull
        rows = rows.to(x.device)
        changed = pull.index_select(cut, rows) * (7.0 if value is None else value)
        return pull.index_copy(cut, rows, changed)

    def _drawn_like(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        source = torch.Generator(x.device).manual_seed(self.key)
        return torch.randn(tuple(shape), generator=source, dtype=torch.float32, device=x.device).to(x.dtype)


def _altered(x: Tensor, dim: int, rows: Tensor, value: float | None) -> Tensor:
    """A tensor with some examples set to a value; None: replaced by those that follow them."""
    rows = rows.to(x.device)
    if value is None:
        return x.index_copy(dim, rows, x.index_select(dim, (rows + 1) % x.shape[dim]))
    big = torch.finfo(x.dtype).max ** 0.5
    return x.index_fill(dim, rows, value * big if abs(value) == 1 else value)


@dataclass(eq=False)
class _PassRecord:
    """One pass: what each layer gave and what the module returned, then what came back, examples in front."""

    given: list[tuple[str, Tensor | None]] = field(default_factory=list)
    got: list[tuple[str, Tensor | None]] = field(default_factory=list)

    def differs(self, other: _PassRecord, rows: Tensor) -> str | None:
        """Where two passes differ on some examples."""
        ours, theirs = self.given + self.got, other.given + other.got
        if [where for where, _ in ours] != [where for where, _ in theirs]:
            return "which layers are called"
        for (where, x), (_, y) in zip(ours, theirs, strict=True):
            # lengths that follow the longest example say nothing by themselves
            if x is None or y is None or x.shape != y.shape:
                continue
            slack = 1e-3  # the rounding of sums of another length
            if x.dtype == torch.float64:
                slack = 1e-12
            elif x.element_size() < 4:
                slack = 4 * torch.finfo(x.dtype).eps
            elif x.device.type == "cpu":
                slack = 1e-5
            places = rows.to(x.device)
            if not _near_enough(x.index_select(0, places), y.index_select(0, places), slack):
                return where
        return None


def _recorded(
    layers: Layers, seen: _PassRecord, rows: Tensor | None, value: float | None, rule: AnyRule, output: Tensor, dim: int
) -> Tensor:
    """An output with a tap that records what passes, with some examples exchanged for a value."""
    place, k = len(seen.got), 0
    if output.ndim > dim and output.is_floating_point():
        k = _pieces_of(output.shape[dim], layers.now.batch)
    divided = k == 1 or (k > 1 and dim == 0)

    def examples(x: Tensor) -> Tensor | None:
        if not divided:
            return None
        x = x.detach().movedim(dim, 0)
        pieces: Tensor = x.unflatten(0, (len(x) // k, k))
        return pieces.clone()

    if k > 1:
        layers.note_pieces(rule, k)
    if divided and rows is not None and value is not None:
        output = _altered(output, dim, (rows[:, None] * k + torch.arange(k)).flatten(), value)
    where = f"the gradient at layer {rule.name!r}"
    seen.given.append((f"the output of layer {rule.name!r}", examples(output)))
    seen.got.append((where, None))

    def push(b: Tensor) -> None:
        seen.got[place] = where, examples(b)

    return tap(output, layers.anchor, push)


def _near(x: Tensor, y: Tensor, slack: float) -> bool:
    """Equal but for a part of their size; what is not finite, or vanishes, tells nothing."""
    x, y = x.double().reshape(-1), y.double().reshape(-1).to(x.device)
    size, gap = float(torch.maximum(x.norm(), y.norm())), float((x - y).norm())
    return not size < float("inf") or gap <= slack * size + 1e-30


def _floats(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.is_floating_point()


def _moves(x: object) -> TypeGuard[Tensor]:
    return _floats(x) and x.requires_grad


def _quiet(module: nn.Module) -> None:
    """No random draws of torch's own layers."""
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd):
            child.p = 0.0
        elif isinstance(child, (nn.MultiheadAttention, nn.RNNBase)):
            child.dropout = 0.0
        elif isinstance(child, nn.RReLU):
            child.eval()


# ------------------------------------------------------------ a copy to try things on

_PLAIN = (nn.Module, dict, list, tuple, set, frozenset, str, bytes, int, float, complex, bool, type(None), type)


def _twin_of(module: nn.Module, trained: Set[str]) -> nn.Module:
    """A copy that shares the memory of the parameters and nothing else that a pass may change, free of our taps.

    The parameters named in `trained` ask for gradients, the others do not.  Objects that are neither tensors nor
    modules nor Python's containers (a tokenizer, a logger) are shared.

    >>> module = nn.Linear(2, 2)
    >>> twin = _twin_of(module, {"weight"})
    >>> twin.weight.data_ptr() == module.weight.data_ptr(), twin.weight.requires_grad, twin.bias.requires_grad
    (True, True, False)
    """
    memo: dict[int, object] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=name in trained)
    for layer in module.modules():
        for value in vars(layer).values():
            if isinstance(value, Tensor):
                memo.setdefault(id(value), value.detach().clone())  # what a pass has left behind has a history
            elif isinstance(value, torch.Generator):
                memo[id(value)] = value.clone_state()
            elif isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
                continue  # bound to the copy
            elif not isinstance(value, _PLAIN):
                memo[id(value)] = value
    try:
        twin = copy.deepcopy(module, memo)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise validate.InvalidInput(
            f"module={type(module).__name__!r} is not allowed: keep out of it what copy.deepcopy cannot copy "
            f"({reason}); a copy of the module has to be tried out before it is trusted with private examples"
        ) from error
    for layer in twin.modules():
        if getattr(vars(layer).get("forward"), "tapped", False):
            del layer.forward
    return twin


def _generator_states(module: nn.Module) -> list[bytes]:
    """The states of the generators that a module's layers hold themselves."""
    attributes = [value for layer in module.modules() for value in vars(layer).values()]
    return [bytes(x.get_state().tolist()) for x in attributes if isinstance(x, torch.Generator)]


# ------------------------------------------------------------ between the parts that a loop calls by themselves

_CHANGES = ("__setitem__", "__set__", "register_hook")
"""Operations that return no tensor and matter all the same."""


class _Place(int):
    """Stands for a tensor, of an earlier step or from elsewhere, in what is written down."""


@dataclass(eq=False)
class _Step:
    """A part that was called (by its name; "" is the module), or an operation of the loop."""

    what: str | Callable[..., Any]
    leaves: list[object]
    spec: TreeSpec
    results: list[int] = field(default_factory=list)
    """The places of the tensors that it returned."""
    dice: RandomStates | None = None
    """The random generators as they were before, where it has drawn from them."""


class _Followed(Tensor):
    """A tensor that a part has returned, or that was computed from one."""

    way: LoopRecorder
    token: object
    """The pass that it belongs to: it is a plain tensor once that is over."""
    place: int

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation on such tensors."""
        kwargs = kwargs or {}
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, _Followed) and x.token is x.way.token:
                return x.way.follow(func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


class LoopRecorder:
    """Follows a loop from part to part, for `look`."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self._places = itertools.count(1)
        self._call: _Step | None = None
        self.forget()

    def forget(self) -> None:
        """Another batch, or none: tensors that are still around become plain ones at their next use."""
        self.token: object = object()
        """Whose pass it is that is followed."""
        self.parted = False
        """Whether a part was called by itself."""
        self.steps: list[_Step] = []
        self.given: dict[int, Tensor] = {}
        """What came from elsewhere, examples or what they share, by place."""
        self.returned = WeakIdKeyDictionary()
        """What the module itself returned, which is handed to the loop as it is."""

    def enter(self, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """A part (or "", the module) is called by the loop: its arguments, plain."""
        self._call = None
        if torch._C._current_graph_task_id() != -1:  # a checkpoint computes again what was followed
            called = [step.what for step in self.steps if isinstance(step.what, str)]
            known = any(not other or f"{name}.".startswith(f"{other}.") for other in called)
            if self.layers.listens() and not known:
                raise validate.InvalidInput(
                    f"the part {name!r} of the module computes its gradients inside the backward pass only, where "
                    "examples could meet unseen: give torch.utils.checkpoint use_reentrant=False"
                )
            return args, kwargs
        leaves, spec = tree_flatten((args, kwargs))
        now = self.layers.now
        if now.batch and self.layers.listens():
            if self.token is not now.token:
                self.forget()
                self.token = now.token
            put = tree_map_only(Tensor, self._place, leaves)
            self._call = _Step(name, put, spec)
            if name and any(x in self.given and self._of_module(self.given[x]) for x in put if isinstance(x, _Place)):
                raise validate.InvalidInput(
                    f"the part {name!r} of the module is given a tensor that was computed from what the module "
                    "returned, by code of the loop that cannot be followed (functions of torch.func, scripted "
                    "functions, or code after the module's own forward): examples could meet there unseen; move "
                    "this code into the module's forward"
                )
        args, kwargs = tree_map_only(_Followed, _plain, (args, kwargs))
        return args, kwargs

    def leave(self, output: Any) -> Any:
        """It has returned: what comes of a part is followed from now on."""
        call, self._call = self._call, None
        if call is None or output is None:
            return output
        self.steps.append(call)
        if not call.what:
            return mapped(partial(self.keep, call), output)
        self.parted = True
        self.layers.now.pieces = None  # those of a part are compared with nothing
        return mapped(partial(self.mark, call), output)

    def look(self) -> None:
        """Refuse a loop (or a part) in which examples have met; called before the gradients of the batch are used."""
        if not self.parted or self.token is not self.layers.now.token:
            return
        calls = [place for place, step in enumerate(self.steps) if isinstance(step.what, str)]
        self.steps = self.steps[: calls[-1] + 1]  # what comes after the last part is the loss
        given = tree_map_only(_Followed, _plain, tuple(self.given.values()))
        names = tuple(step.what if isinstance(step.what, str) else step.what.__name__ for step in self.steps)
        self.token = object()  # what is done again is not written down
        try:
            look(self.layers, given, {}, self.layers.now.batch, lambda module, args, _: self.again(module, args), names)
        finally:
            self.layers.now.pieces = None
            self.forget()

    def _followed(self, x: Tensor) -> TypeGuard[_Followed]:
        return isinstance(x, _Followed) and x.way is self and x.token is self.token

    def _place(self, x: Tensor) -> _Place:
        if self._followed(x):
            return _Place(x.place)
        if x in self.returned:
            return _Place(self.returned[x])
        for place, other in self.given.items():
            if other is x:
                return _Place(place)
        place = next(self._places)
        self.given[place] = x
        return _Place(place)

    def follow(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Do an operation and write it down."""
        leaves, spec = tree_flatten((args, kwargs))
        references: list[object] = tree_map_only(Tensor, self._place, leaves)
        with torch._C.DisableTorchFunctionSubclass():
            dice = RandomStates(next(x for x in leaves if isinstance(x, _Followed)).device)
            result = func(*args, **kwargs)
            step = _Step(func, references, spec)
            if dice.drew():
                step.dice = dice
        if not isinstance(result, torch.Size):
            result = tree_map_only(Tensor, partial(self.mark, step), result)
        if step.results or func.__name__ in _CHANGES:
            self.steps.append(step)
        return result

    def mark(self, step: _Step, x: Tensor) -> _Followed:
        """A result of a step, as a tensor that knows its place."""
        if not self._followed(x):  # what is changed in place keeps its place
            with torch._C.DisableTorchFunctionSubclass():
                followed: _Followed = x.as_subclass(_Followed)
            followed.way, followed.token, followed.place = self, self.token, next(self._places)
            x = followed
        step.results.append(x.place)
        return x

    def keep(self, step: _Step, x: Tensor) -> Tensor:
        """A result of the module itself, as it is."""
        step.results.append(next(self._places))
        self.returned[x] = step.results[-1]
        return x

    def again(self, module: nn.Module, given: Args) -> list[Tensor]:
        """What the parts return that no later step uses, of other examples; `module` may be a copy."""
        known: dict[int, Tensor] = {}
        answer: list[Tensor] = []
        used = {x for step in self.steps for x in step.leaves if isinstance(x, _Place)}
        for (place, before), x in zip(self.given.items(), given, strict=True):
            known[place] = x.requires_grad_(before.requires_grad and before.is_leaf)
        for step in self.steps:
            leaves = [known[x] if isinstance(x, _Place) else x for x in step.leaves]
            args, kwargs = tree_unflatten(leaves, step.spec)
            found: list[Tensor] = []
            if isinstance(step.what, str):
                mapped(found.append, module.get_submodule(step.what)(*args, **kwargs))
                answer += [x for x, place in zip(found, step.results, strict=True) if place not in used]
            else:
                if step.dice is not None:
                    step.dice.rewind()
                found += [x for x in tree_leaves(step.what(*args, **kwargs)) if isinstance(x, Tensor)]
            known |= dict(zip(step.results, found, strict=True))
        return answer

    def _of_module(self, x: Tensor) -> bool:
        """Whether a tensor has one of our taps in its history."""
        with torch._C.DisableTorchFunctionSubclass():
            waiting, seen = [x.grad_fn], set()
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if getattr(node, "variable", None) is self.layers.anchor:
                return True
            waiting += [below for below, _ in node.next_functions]
        return False


def mapped(change: Callable[[Tensor], Any], output: Any) -> Any:
    """The same lists, dicts, dataclasses, ... with every tensor changed."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        if not is_dataclass(leaf) or isinstance(leaf, type):
            return leaf
        twin = copy.copy(leaf)
        for item in fields(leaf):
            if hasattr(leaf, item.name):
                object.__setattr__(twin, item.name, mapped(change, getattr(leaf, item.name)))
        return twin

    return tree_map(changed, output)


def _plain(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(Tensor)
