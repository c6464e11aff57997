"""The second driver: a user's own torch loop through the same round as ours.

    for x, y in batches:                 # as many physical batches as memory asks
        loss(module(x), y).backward()
    driver.step()                        # one round: measure, close, advance, optimiser

The hooks open a round at the first forward pass, take the per-example rows layer by layer during the backward pass
and encode them there; `step` releases what was summed and gives the lifted direction to the optimiser as its gradient.

A loader that hands out *tickets* (`begin`) tells the driver which examples a pass may hold: then one record is
clipped once however often a batch goes through the module, batches of another size are refused, and several logical
batches before one optimiser step are rounds of their own, each with its own noise and its own charge.  A batch must be
used before the next one is read: a loop that reads ahead would carry a record into two sums of one round.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.utils._pytree import tree_map_only

from isthmus.base import storage, validate
from isthmus.base.randomness import key
from isthmus.base.recording import Replay, recording_now
from isthmus.core import pipeline
from isthmus.core.group import ALONE, Group
from isthmus.core.loop_checks import Losses, _MeanLossCorrection, mixed
from isthmus.core.parts import Delegate, Last, current
from isthmus.core.pipeline import Maps, Pipeline, Release, Round, Stage
from isthmus.core.wire import Keys, Message
from isthmus.gradients.computed import Computed, as_computed
from isthmus.gradients.layers import forward_guard
from isthmus.gradients.layers.rules import Args, Kwargs
from isthmus.gradients.layers.trial import LoopRecorder, look
from isthmus.gradients.rows import Rows, Stack, compact, regrouped, total
from isthmus.lifts import Lifted
from isthmus.objectives.module import Layers, captured, unused
from isthmus.privacy.clips import SPAN, Rounding, part_of_error
from isthmus.privacy.ledger import RunLedger
from isthmus.privacy.noise import Source
from isthmus.sketches.base import Sketch, without_memo
from isthmus.sketches.compose import IdentityMap

_MIN_FAST_BOUND = 1e-9
"""Where rows are clipped to less, their squares may leave the range of float32: then products are exact ones."""
_EVALUATES = (
    "a batch of the private loader was given to a module in eval mode, where nothing is trained: call module.train() "
    "first (from_pretrained returns a module in eval mode), or write torch.no_grad() around an evaluation"
)
_FOLLOWS = (
    "the loop drew random numbers for a private batch from torch's own generator, whose seed may be known, and one "
    "record more shifts what is drawn for the others: draw inside the module's forward, or call torch.seed() first"
)
_COUNTED = (
    "the settings of the optimiser (its learning rate, say) changed between two pieces of one batch, whose number "
    "nobody may see: step the scheduler once an epoch, or in a hook of optimizer.register_step_post_hook"
)
_GATHERED = (
    "a batch that the private loader cuts into pieces was read to its end, and no step was taken with its last piece: "
    "call step() for every piece (it waits for the last one), and make the batch larger in place of accumulating"
)
_MIXED = (
    "the module was given mixtures of the examples that the private loader handed out (mixup, cutmix), where a record "
    "counts more than once: leave the mixing out, or mix each example with public ones"
)
_ANOTHER_PASS = (
    "another pass over the private loader has begun since, and one record could count twice in a round: read one pass "
    "to its end, or give each its own make_private"
)
_ADRIFT = (
    "a batch of the private loader was read before the one before it was used, and one record could count twice in a "
    "round: use every batch before you read the next (no reading ahead, skipping or collecting), or begin a new pass"
)
_COMPILED = (
    "torch.compile cannot trace the training of a private module, whose layers keep what each example did: make "
    "the module itself private (in eval mode it may be compiled)"
)
_OTHER_SIZE = (
    "the module was given {given} examples where the private loader handed out {size}: pass whole batches of the "
    "loader through it, and call module.eval() for other data"
)
_UNUSED = (
    "a batch was drawn, and no step was taken with it: whether a step is taken must not depend on the data; call "
    "optimizer.step() for every batch, empty ones too"
)
_NOTHING = (
    "optimizer.step() was called, and no gradient of this batch arrived: call module.train(), then backward() on a "
    "loss of the module's output"
)
_EARLY = (
    "the gradient was changed between backward() and optimizer.step() ({what}), which does nothing: every example's "
    "gradient is clipped to max_grad_norm, and step() releases their sum. Leave clip_grad_norm_ out (trainers take "
    "gradient_clip_val=None), or change what was released in a hook of optimizer.register_step_pre_hook"
)
DRIVERS: weakref.WeakSet[TorchDriver] = weakref.WeakSet()
"""Those whose hooks are on a module."""
Directions = Sequence[Sequence[Lifted]]
"""The lifted values of several rounds."""
Place = tuple[str, Tensor, Tensor, int, int]
"""A leaf, a parameter of it, that parameter as a matrix in its own memory, and the columns it is."""


@dataclass(frozen=True, eq=False)
class Ticket:
    """A physical batch: how many examples it holds, whether its logical batch ends with it, its micro-batches.

    No size where no loader hands batches out: then every forward pass is a physical batch.

    `groups` has the micro-batch of every example, drawn independently of every other example.  Examples that do not
    count stand in for a batch that has none: they pass as any other, and their gradient is dropped.  `look` is shown
    the arguments that a batch became, and refuses those that depend on how records were put together.
    """

    size: int | None
    last: bool = True
    groups: Tensor | None = None
    counts: bool = True
    look: Callable[[Args, Kwargs], None] | None = None


class _PendingGradients:
    """The gradients of one physical batch, kept until the backward pass has ended.

    On a device the host is what a small step waits for.  So a tap does nothing inside backward but keep the gradient;
    when all of them have come, the rows are made, encoded, clipped and summed in one piece of work, which the device
    may have recorded (see `isthmus.base.recording`) and then runs by itself.
    """

    def __init__(self) -> None:
        self.items: list[tuple[str, Callable[[Tensor], None], Tensor, Sequence[Tensor]]] = []
        """The name of a layer, what makes its rows, the gradient of its output, and what else that reads."""
        self.replay = Replay(Message.fresh, Message.near)
        """Has a device run a sum again that it has computed before, of memory in the same places."""
        self._idle: dict[Hashable, list[str]] = {}
        self._maps: dict[str, list[Tensor]] = {}
        """Memory for the maps of the slots, which stays where it is."""

    def keep(self, name: str, push: Callable[[Tensor], None], gradient: Tensor, reads: Sequence[Tensor]) -> None:
        """A gradient, inside backward."""
        self.items.append((name, push, gradient, reads))

    def message(self, round: Round, key: Hashable, compute: Callable[[], Message]) -> Message:
        """What `compute` makes of the gradients at hand; `key` has whatever else that depends on."""
        inputs, sizes = [x for _, _, b, reads in self.items for x in (b, *reads)], []
        for slot, sketch in round.sketches.items():
            tensors = sketch.tensors()
            if tensors is None:
                return compute()
            inputs += tensors
            sizes.append((slot, sketch.m, sketch.norm))
        key = (key, self._layers(), tuple(sizes), tuple(sorted(round.bounds.items())))
        return self.replay(key, inputs, compute)

    def placed(self, slot: str, sketch: Sketch) -> Sketch:
        """A map on a device in memory that stays where it is: the one before it there is overwritten."""
        new, old = list(sketch.tensors() or ()), self._maps.get(slot, [])
        if not new or not all(x.is_cuda for x in new):
            return sketch
        if [(x.shape, x.dtype) for x in old] != [(x.shape, x.dtype) for x in new]:
            old = self._maps[slot] = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in new]
        torch._foreach_copy_(old, new)
        return sketch.placed(old)

    def idle(self, otherwise: list[str]) -> list[str]:
        """The leaves that took no part, as they were when the same layers told something before."""
        return self._idle.setdefault(self._layers(), otherwise)

    def _layers(self) -> Hashable:
        return tuple((layer, len(reads)) for layer, _, _, reads in self.items)


class _BackwardAccumulator:
    """What the backward pass of one physical batch tells: the rows of every leaf, until all of a record is known.

    A leaf's rows come from every use of its weight.  Where a release clips codes they are encoded at once, and only
    codes are kept.

    fast   whether rows are what the device computes, or sums of exact products
    """

    def __init__(self, stage: Stage, fast: bool) -> None:
        self.stage, self.fast = stage, fast
        self.watched: str | None = ""
        """The leaf whose two passes are compared in this round; all of them are (None) in what is recorded."""
        self.clear()

    def begin(self, round: Round) -> None:
        """A round has been opened: its maps say what is kept of the rows."""
        self.round = round
        self._coded: list[tuple[Release, str]] = []
        """Releases that need only the codes of rows, leaf by leaf."""
        for release, slot in self.stage.slots:
            sketch, clip = round.sketches[slot], release.clip
            if clip is not None and not clip.before and sketch.leafwise and not isinstance(sketch, IdentityMap):
                self._coded.append((release, slot))
        self._keeps_rows = len(self._coded) < len(self.stage.releases)

    def clear(self) -> None:
        """Forget everything."""
        self.n, self.told = 0, set[str]()
        """How many examples, and which leaves something has come of."""
        self.rows: dict[str, list[Rows]] = {}
        self.codes: dict[str, dict[str, list[Rows | None]]] = {}

    def take(self, name: str, rows: Rows) -> None:
        """One use's rows of a leaf, inside backward."""
        self.n = rows.n
        self.told.add(name)
        for release, slot in self._coded:
            code = self.round.sketches[slot].leaf(name, rows)
            self.codes.setdefault(release.name, {}).setdefault(name, []).append(code and self._smaller(code))
        if self._keeps_rows:
            self.rows.setdefault(name, []).append(rows if rows.one_term else self._smaller(rows))

    def message(self, names: Sequence[str], groups: Tensor | None, factor: float, rounding: Rounding) -> Message:
        """The sum of the batch, whose rows are scaled, and made micro-batches, before they are clipped."""
        round = self.round

        def whole(rows: Rows) -> Rows:  # when all of a record is known: what overflows anywhere counts as zero
            if factor != 1.0:
                rows = rows.scaled(factor)
            if groups is not None:
                rows = regrouped(rows, groups)
            return rows

        rows, codes = None, {}
        if self._keeps_rows:
            leaves: dict[str, Rows] = {}
            for name in names:
                leaf, *others = self.rows[name]
                if others or not leaf.one_term:
                    leaf = self._joined(name, [leaf, *others]) or leaf
                leaves[name] = leaf
            rows = whole(Stack([*leaves.items()]))
        for release, slot in self._coded:
            by_leaf, bounds = self.codes[release.name], release.clipped.each(round.bounds[slot])
            if not isinstance(bounds, Mapping):
                bounds = dict.fromkeys(names, bounds)
            found = {name: self._joined(name, by_leaf[name], bounds[name]) for name in names}
            codes[release.name] = whole(round.sketches[slot].join(found))
        return pipeline.fragment(round, self.stage, rows, codes, rounding)

    def _smaller(self, rows: Rows) -> Rows:
        """Products in place of their factors, where they take less room until the backward pass has ended."""
        smaller = as_computed(rows) if self.fast else compact(rows)
        return rows if isinstance(smaller, Computed) else smaller

    def _joined(self, name: str, pieces: Sequence[Rows | None], bound: float | None = None) -> Rows | None:
        """All that a leaf's rows are the sum of, as they are added up; weighted ones are within `bound`."""
        present = [piece for piece in pieces if piece is not None]
        if not present:  # a sketch may take nothing of a leaf
            return None
        rows = total(present)
        if not self.fast:
            return rows
        computed = as_computed(rows, bound)
        if isinstance(computed, Computed):
            computed.watched = self.watched in (None, name)
        return computed


# ---------------------------------------------------------------- what a round has lifted becomes a gradient


class _NotYet(Tensor):
    """Stands for a gradient between the backward pass and the step that releases it: zeros that nobody can write to.

    >>> weight = torch.nn.Parameter(torch.ones(2, 3))
    >>> weight.grad = _not_yet(weight)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = torch.nn.utils.clip_grad_norm_([weight], 1.0)
    >>> str(caught[0].message)[:60]
    'the gradient was changed between backward() and optimizer.st'
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        """Reads zeros; says that what would be written is not."""
        name, written = func.__name__, args[0] if args else None
        tensors = written if isinstance(written, (list, tuple)) else [written]
        writes = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"  # as torch names functions
        if writes and any(isinstance(x, _NotYet) for x in tensors):
            if name not in QUIET:
                warnings.warn(_EARLY.format(what=name), stacklevel=2)
            return written
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and isinstance(written, _NotYet) and result.data_ptr() == written.data_ptr():
                return result.as_subclass(_NotYet)
            return result


QUIET = ("zero_", "_foreach_zero_", "detach_", "requires_grad_", "_amp_foreach_non_finite_check_and_unscale_")
"""What `zero_grad` does, in silence; and a `GradScaler`, which the step looks for."""


def _not_yet(parameter: Tensor) -> Tensor:
    """What stands for the gradient of a parameter; it takes no memory."""
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape).as_subclass(_NotYet)


class _Awaiting:
    """The gradients of a batch until the step that releases them: whoever changes them is told that they are none."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._shown: list[Tensor] = []
        self._kinds: list[tuple[torch.device, torch.dtype]] = []
        self.on = False

    def begin(self) -> None:
        """The first gradient has come."""
        self.on = True
        kinds = [(parameter.device, parameter.dtype) for parameter in self._parameters]
        if kinds != self._kinds:
            self._kinds, self._shown = kinds, [_not_yet(parameter) for parameter in self._parameters]
        for parameter, shown in zip(self._parameters, self._shown, strict=True):
            parameter.grad = shown

    def end(self) -> None:
        """The step is taken: what was put in their place meanwhile is no gradient of this batch."""
        if not self.on:
            return
        self.on, strange = False, False
        for parameter, shown in zip(self._parameters, self._shown, strict=True):
            strange |= parameter.grad is not None and parameter.grad is not shown
            parameter.grad = None
        if strange:
            warnings.warn(_EARLY.format(what="assigned"), stacklevel=5)


class _GradientWriter:
    """Hands directions to an optimiser; on a device the steps of a sketch may be recorded ones."""

    def __init__(self, layers: Layers, optimizer: torch.optim.Optimizer) -> None:
        self.layers, self.optimizer = layers, optimizer
        self.replay: Replay[None] = Replay()
        self._sizes = [leaf.size for leaf in layers.space.leaves]
        self._room: Tensor | None = None

    def write(self, rounds: Directions) -> None:
        """The mean of the rounds' directions as gradients.

        Plain steps through a sketch that can add in place form no gradient at all.
        """
        lifted, *others = (lifted for each in rounds for lifted in each)
        if not others and isinstance(lifted.given, Tensor):  # one direction that is there as a whole
            pieces = zip(self.layers.space.leaves, lifted.given.split(self._sizes), strict=True)
            matrices = {leaf.name: piece.reshape(leaf.shape[0], -1) for leaf, piece in pieces}
            self.layers.set_gradients(lambda name, lo, hi: matrices[name][:, lo:hi])
            return
        rates = None if others else _plain_rates(self.optimizer)
        if rates is not None and lifted.code is not None:
            bindings = self.layers.bindings
            places = [(name, *place) for name, binding in bindings.items() for place in binding.places()]
            pairs = [(x.untyped_storage(), matrix.untyped_storage()) for _, x, matrix, _, _ in places]
            if all(own.data_ptr() == viewed.data_ptr() for own, viewed in pairs):  # no copies
                for _, parameter, _, _, _ in places:
                    parameter.grad = None
                self._move(*lifted.code, places, [-rates[id(parameter)] for _, parameter, _, _, _ in places])
                return

        def columns(name: str, lo: int, hi: int) -> Tensor:  # leaf by leaf: the whole vector is never built
            first, *rest = (each.columns(self.layers.space, name, lo, hi) for each in (lifted, *others))
            return sum(rest, first) / len(rounds)

        self.layers.set_gradients(columns)

    def _move(self, sketch: Sketch, y: Tensor, places: Sequence[Place], rates: Sequence[float]) -> None:
        """w += rate Phi^+ y, leaf by leaf: the direction itself is never formed."""
        tensors = sketch.tensors()
        if not y.is_cuda or tensors is None or len(set(rates)) > 1:
            for (name, _, matrix, lo, hi), rate in zip(places, rates, strict=True):
                sketch.add_pinv_columns(matrix, name, y, lo, hi, rate)
            return
        if self._room is None or self._room.shape != y.shape or self._room.dtype != y.dtype:
            self._room = torch.empty_like(y)
        room = torch.mul(y, rates[0], out=self._room)  # a rate that changes is none of what is recorded

        def move() -> None:
            bare = without_memo(sketch)
            for name, _, matrix, lo, hi in places:
                bare.add_pinv_columns(matrix, name, room, lo, hi, 1.0)

        inputs = [room, *tensors, *(matrix for _, _, matrix, _, _ in places)]
        self.replay((sketch.m, sketch.norm), inputs, move)
        torch.autograd.graph.increment_version([parameter for _, parameter, _, _, _ in places])


def _plain_rates(optimizer: torch.optim.Optimizer) -> dict[int, float] | None:
    """The learning rate of each parameter, where a step is w - lr g and nothing else; None for other optimisers."""
    if getattr(optimizer, "_plain", type(optimizer)) is not torch.optim.SGD:
        return None
    quiet = all(not group[key] for group in optimizer.param_groups for key in ("momentum", "weight_decay", "maximize"))
    if not quiet or any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
        return None
    return {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}


# ---------------------------------------------------------------- the driver


class TorchDriver:
    """Runs a one-stage pipeline from a user's loop; the optimiser is any of torch's.

    >>> from isthmus.parts import Shuffle
    >>> from isthmus.core.pipeline import Stage
    >>> module = nn.Linear(3, 1)
    >>> sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    >>> driver = TorchDriver(Pipeline([Stage(Shuffle(4))], step=lambda t: 0.1), module, sgd, n=4)
    >>> nn.functional.mse_loss(module(torch.ones(4, 3)), torch.zeros(4, 1)).backward()
    >>> driver.step()
    True
    >>> driver.state.t, driver.state.dims
    (1, 4)
    """

    def __init__(
        self,
        pipe: Pipeline,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        n: int,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        public: Any = None,
        reduction: str = "mean",
        seed: int = 0,
        noise: Source | None = None,
        ledger: RunLedger | None = None,
        layers: Layers | None = None,
        fast: bool = True,
        group: Group = ALONE,
    ) -> None:
        _check_drivable(pipe)
        validate.positive_int(n=n)
        validate.one_of(("mean", "sum"), reduction=reduction)
        self.layers = layers or Layers(module)
        self.module, self.optimizer, self.stage, self.private = module, optimizer, pipe.stages[0], pipe.private
        self.n, self.loss, self.public, self.reduction = n, loss, public, reduction
        self.keys, self.ledger, self.group = Keys(seed, noise), ledger, group
        self.loss_scale = 1.0
        """What the loss is multiplied by before its backward pass, as a `GradScaler` does: rows are divided by it."""
        self.observers: list[Callable[[Round], None]] = []
        """Called with every round when it is closed: they see what was released."""
        self.unmoved = False
        """Whether a batch was handed out, and no step was taken with it."""
        self._directions: list[Sequence[Lifted]] = []
        self.pipe = replace(pipe, update=Delegate(self._directions.append))
        self.state = pipeline.start(self.pipe, torch.empty(0), seed)
        self._move = optimizer.step
        self._parameters = list(self.layers.parameters())
        device = self._parameters[0].device
        self._device = None if device.type == "cpu" else device
        """Where the parameters are, if that is not the CPU."""
        self._names = [leaf.name for leaf in self.layers.space.leaves]
        self._trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        # the round in progress
        self._forget_round()
        self._kept: Maps = {}
        self._unused: set[str] = set()
        self._left_out: list[str] = []
        # the batch in progress
        self._ticket = Ticket(None)
        self._turn: object = None
        """The pass over the loader that batches are taken from."""
        self._batch = 0
        self._handed: object = None
        """The batch as the loader handed it out, until its examples are looked at."""
        self._busy = self._adrift = self._cut = self._looks = False
        """Public data passes on behalf of a sketch; a batch was not used; batches come in pieces; a loss is due."""
        self._settings = ""
        """What the optimiser was set to at the first piece of the present batch."""
        secret = self.private and noise is not None and not noise.seeded
        self._draws, self._followed = b"", not secret
        """The state of torch's generator when the batch was handed out; whether a loop that draws was told."""
        mine = frozenset(map(id, module.parameters()))
        self.losses = Losses(reduction, self.layers.batch_dim, mine if self.private else None)
        self.guard = forward_guard.Guard(module, secret, watched=self._parameters)
        self._between, self._correction = LoopRecorder(self.layers), _MeanLossCorrection()
        fast = fast and _least_bound(pipe) >= _MIN_FAST_BOUND
        self._accumulator = _BackwardAccumulator(self.stage, fast)
        self.pending = _PendingGradients()
        self._writer = _GradientWriter(self.layers, optimizer)
        self._awaiting = _Awaiting(self._parameters if self.private else [])
        if self.private:
            self._check_module()
        self._attach()

    def _forget_round(self) -> None:
        """No round is open: the sum of no physical batch yet, and how many were summed."""
        self._round: Round | None = None
        self._sum: Message | None = None
        self._parts = 0

    def _attach(self) -> None:
        """Put the hooks on; functions, so that a copy of the module leaves the driver alone."""
        module, layers = self.module, self.layers

        def before(layer: nn.Module, args: Args, kwargs: Kwargs) -> None:
            if layer is module and not self._busy:
                self._before_forward(args, kwargs)

        def after(layer: nn.Module, args: Args, output: object) -> object:
            if layer is module and not self._busy:
                output = self._after_forward(output)
            return output

        watched = [p for p in module.parameters() if self.private and p.requires_grad]
        self.handles: list[Any] = [p.register_post_accumulate_grad_hook(forward_guard.clear_raw) for p in watched]
        self.handles += layers.attach()
        # first of all: before a layer's own taps have silenced its weights
        self.handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        self.handles.append(module.register_forward_hook(after, always_call=True))
        self._listener = layers.now.listener = self._accumulator.take
        if self._device is not None and self._accumulator.fast:
            layers.now.later = self.pending.keep
        layers.now.arrived = self._arrived
        layers.now.reduced = lambda: self._correction.on or self.reduction == "sum" or not self.private
        if self.private:
            self.handles += self.guard.attach(self._takes_part, self._between)
        layers_of = (layer for layer in module.modules() if not isinstance(layer, torch.jit.ScriptModule))
        self.handles += [_PlainCopies(layer) for layer in layers_of]
        DRIVERS.add(self)

    # ------------------------------------------------------------ what a loop calls

    def begin(self, ticket: Ticket, turn: object = None, batch: object = None) -> None:
        """The next physical batch is about to be handed out, by the pass over the loader that `rest` began."""
        if turn is not None and turn is not self._turn:
            raise validate.InvalidInput(_ANOTHER_PASS)
        before = self._end_batch()
        self._adrift |= bool(before.size)  # nobody used it: what comes may be of it
        if before.last:
            if self._waits():  # several logical batches before one step: each is a round of its own
                validate.require(not (self._cut and self.private), _GATHERED)
                self._close()
            elif self.unmoved:
                warnings.warn(_UNUSED, stacklevel=3)
        self._ticket, self.unmoved, self._handed = ticket, True, batch
        self._cut |= not ticket.last
        if not self._followed:
            self._draws = forward_guard.public_state()
        self._new_physical_batch(ticket.size)

    def rest(self) -> object:
        """An epoch has ended: a whole logical batch becomes a round, one that was cut short is forgotten unreleased.

        Returns the token of the pass over the loader that begins now.
        """
        before = self._end_batch()
        if before.last and self._waits():
            self._close()
        self._drop()
        self._sum, self._parts, self.unmoved, self._settings = None, 0, False, ""
        if before.size is not None:
            self._ticket = Ticket(0)
            self._spend()
        self._turn, self._adrift = object(), False
        return self._turn

    def forget(self) -> None:
        """Drop what was gathered and not released: other parameters are about to be read in."""
        self._drop()
        self._forget_round()
        self.losses.reset()
        self._directions.clear()
        self.unmoved = False

    def detach(self) -> None:
        """Take the hooks off; the parameters ask for gradients again."""
        DRIVERS.discard(self)
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.losses.reset()
        self._awaiting.end()
        for parameter in self._parameters:
            parameter.requires_grad_(True)

    def step(self) -> bool:
        """Close the round and let the optimiser move; False where more of the logical batch is to come."""
        ticket = self._ticket
        try:
            self._finish_backward()
            self._awaiting.end()
            self._check_trained()
            if self.private and (self._settings or not ticket.last):
                groups = self.optimizer.param_groups  # all that they say but the parameters, in words
                now = repr([{name: value for name, value in group.items() if name != "params"} for group in groups])
                validate.require(self._settings in ("", now), _COUNTED)
                self._settings = now
                if ticket.last:
                    self._settings = ""
            if self._sum is None and ticket.last and ticket.size:  # before anything is charged
                raise RuntimeError(_NOTHING)
        except Exception as error:
            self.group.agree("meet", error=error)
        if not ticket.last:
            return False
        with self.group.alike():
            self._close()
            self._writer.write(self._directions)
            self._directions.clear()
            self.unmoved = False
            if self._ticket.size != 0:  # a second step is an empty one
                self._spend()
            self._move()
        return True

    def public_rows(self, data: Any = None) -> Stack:
        """Per-example gradients of public data at the present weights, taken without touching the round.

        `data` is (x, y), ((x, y), loss), or None for the engine's own.
        """
        pair, loss = data, self.loss
        if data is not None and len(data) == 2 and callable(data[1]):
            pair, loss = data
        if pair is None:
            pair = self.public
        validate.check(pair is not None, "public", None, "give this sketch data=(X, y), or the engine public=(X, y)")
        remedy = "give loss= to the sketch or to the driver, which a public subspace needs"
        validate.check(loss is not None, "loss", loss, remedy)
        x, y = tree_map_only(Tensor, lambda part: part.to(self._parameters[0].device), tuple(pair))
        self._busy = True  # the hooks look away
        try:
            return captured(self.layers, loss, x, y, self.reduction)
        finally:
            self._busy = False

    # ------------------------------------------------------------ the round

    def _open(self) -> Round:
        """The round in progress; the first pass or step opens it."""
        if self._round is not None:
            return self._round
        round = Round(
            self.pipe,
            self.state,
            self.layers.space,
            self.keys.seed,
            epoch=self.state.t // self.stage.sampler.rounds(self.n),
            read=self.layers.pack,
            public_rows=lambda w, data: self.public_rows(data),
            eta=self.optimizer.param_groups[0]["lr"],
            maps=self._kept,
            group=self.group,
            device=self._device,
            place=self._place,
        )
        pipeline.bind_stage(round, self.stage)
        self._accumulator.begin(round)
        self._round = round
        return round

    def _place(self, slot: str, sketch: Sketch) -> Sketch:
        """Memory that stays where it is, unless somebody keeps what was lifted through the map."""
        if self._directions or self.observers:
            return sketch
        return self.pending.placed(slot, sketch)

    def _close(self) -> None:
        """Release the logical batch; an empty one still takes its round."""
        round, empty, t = self._round or self._open(), self._sum is None, self.state.t
        values, dims, size = {}, 0, 0
        for name, bounded in (self._sum or self._no_records()).values.items():
            values[name] = replace(bounded, spare=True)  # to be used up
            dims, size = dims + bounded.value.numel(), size + bounded.size
        message = Message(values, self.stage.sampler.divisor(self.n, t), dims, size, fixed=True)
        if self.group.size > 1:  # with those of all other ranks
            own, checksum = len(range(self.group.rank, self.n, self.group.size)), 0
            if t % 100 == 0:  # the weights of all ranks are compared once in 100 rounds
                checksum = key(*map(storage.checksum, self._parameters))
            mine = message
            message = self.group.add(round, self.stage, lambda: mine, checksum, own, self.n, empty)
        pipeline.close_stage(round, self.stage, message, self.keys, self.ledger)
        if self.group.rank and self.ledger is not None and self.private:
            self.ledger.charge(self.stage.name, t)  # a copy of what was charged where the noise is
        self.state = pipeline.advance(round, self.state, [message])
        self._forget_round()
        for observe in self.observers:
            observe(round)

    def _no_records(self) -> Message:
        """The message of a batch with no records."""
        rounding = Rounding(self.stage.sampler.divisor(self.n, self.state.t))
        return pipeline.fragment(self._open(), self.stage, self.layers.no_rows(), rounding=rounding)

    def _waits(self) -> bool:
        """Whether a whole logical batch, here or on another rank, has not become a round yet."""
        waits = self._sum is not None
        if self.unmoved and self._turn is not None:
            return any(header[0] for header in self.group.agree("batch", [int(waits)]))
        return waits

    # ------------------------------------------------------------ one pass through the module

    def _before_forward(self, args: Args, kwargs: Kwargs) -> None:
        if not self.module.training:
            self.layers.now.listener = None  # for this pass: the backward pass of an earlier one may be still to come
            handed = self.unmoved and self._ticket.size
            if handed and torch.is_grad_enabled() and handed in self._sizes(args, kwargs):
                warnings.warn(_EVALUATES, stacklevel=2)
            return
        things = None
        if torch.is_grad_enabled():
            if self.layers.now.listener is not None:
                self._check_trained()
            self._check_ready()
            self._open()
            sizes = self._sizes(args, kwargs)
            if self._ticket.size is None:
                self._finish_backward()
                self._new_physical_batch(next(iter(sizes), None))
            elif sizes and self._ticket.size not in sizes:  # a mask or a table may stand beside the examples
                raise validate.InvalidInput(_OTHER_SIZE.format(given=sizes[0], size=self._ticket.size))
            if self.private:
                things = self._look(args, kwargs)
        else:
            validate.require(not callable(get_eval_frame_callback()), _COMPILED)
        if self.private:
            self._between.enter("", args, kwargs)
            self.guard.enter(self.module, things)

    def _sizes(self, args: Args, kwargs: Kwargs) -> list[int]:
        """How many examples a module may be given: the sizes of its tensors where their examples would be."""
        dim = self.layers.batch_dim
        return [x.shape[dim] for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim > dim]

    def _new_physical_batch(self, size: int | None) -> None:
        """Gradients that come from now on are of other examples, so many where that is known."""
        self._correction.reset()
        self.layers.begin(size)
        if size is not None:
            self._batch = size

    def _look(self, args: Args, kwargs: Kwargs) -> forward_guard.HeldTensors:
        """Refuse private batches that no guarantee holds for; what the module holds."""
        things = self.guard.check()
        self._looks = self.losses.due()
        if self._looks and mixed((args, kwargs), self._handed, self._batch, self.layers.batch_dim):
            warnings.warn(_MIXED, stacklevel=7)
        self._handed = None
        # examples that meet are found before their gradients are used
        self.layers.now.pieces = look(self.layers, args, kwargs, self.layers.now.batch)
        if self._ticket.look is not None:
            self._ticket.look(args, kwargs)
        return things

    def _after_forward(self, output: object) -> object:
        """Listen again after a pass in eval mode; look at what a private pass has left behind."""
        self.layers.now.listener = self._listener
        things = self.guard.leave(self.module, output)
        if self.module.training and torch.is_grad_enabled():
            if self.reduction == "mean":
                low = torch.is_autocast_enabled(self._parameters[0].device.type)
                for parameter in self.module.parameters():
                    low |= parameter.dtype.itemsize < 4
                output = self._correction.outputs(output, self.layers.anchor, self._batch, low)
                if self._correction.on:
                    self._correction.check_kept(things or forward_guard.held_tensors(self.module))
            if self._looks:
                self.losses.expect(output, self._batch, self.loss_scale)
                self._looks = False
        if self.private:
            output = self._between.leave(output)
        return output

    def _takes_part(self, layer: nn.Module) -> bool:
        """Whether a layer that is called by itself may see private data; refused where the module would be."""
        takes = layer.training and self.layers.listens() and not self._busy
        if takes:
            self._check_ready()
            self._open()
        return takes

    # ------------------------------------------------------------ the backward pass

    def _arrived(self) -> None:
        """A gradient has come to a layer."""
        if self._draws:
            before, self._draws = self._draws, b""
            if forward_guard.public_state() not in (b"", before, forward_guard.first_state()):
                self._followed = True
                warnings.warn(_FOLLOWS, stacklevel=3)
        if self._correction.on:
            self._correction.check()
        if not self._awaiting.on:
            self._awaiting.begin()

    def _scale(self) -> tuple[float, Rounding]:
        """What makes rows those of the examples' own losses, and how exactly the physical batch is added up.

        A mean has divided them by the size of the batch, a scaler has multiplied them.
        """
        factor = 1.0
        if self.reduction == "mean" and not self._correction.on:
            factor = float(self._batch)
        last = self._ticket.size is not None and self._ticket.last
        share = part_of_error(self._parts + 1, last) / self.group.size
        return factor / self.loss_scale, Rounding(self.stage.sampler.divisor(self.n, self.state.t), share)

    def _finish_backward(self) -> None:
        """Add the physical batch whose backward pass has ended to the round's sum."""
        if self._round is None or not (self._accumulator.told or self.pending.items):
            return
        try:
            self._between.look()
            with torch.no_grad():
                if not self._ticket.counts:
                    message = self._no_records()
                elif self.pending.items and not self._accumulator.told and self._ticket.groups is None:
                    # on a device, perhaps by what it has recorded
                    depends = (*self._scale(), self._batch, self._parts > 0, tuple(self._left_out))
                    message = self.pending.message(self._round, depends, partial(self._message, self._round))
                    self._left_out = self.pending.idle(self._left_out)
                    if not self.pending.replay.on:
                        self.layers.now.later = None
                else:
                    message = self._message(self._round)
        finally:
            self._drop()
        self._parts += 1
        self._sum = message if self._sum is None else self._sum + message
        self._spend()

    def _message(self, round: Round) -> Message:
        """Make the rows that are still to be made, zeros for layers that took no part, and add all up."""
        plain, accumulator = dict(round.sketches), self._accumulator
        accumulator.watched = self._names[round.t % len(self._names)]
        if self.pending.items:
            accumulator.clear()
            if recording_now():  # what a map remembers is no input, and what it learns now is computed later only
                round.sketches.update({slot: without_memo(sketch) for slot, sketch in plain.items()})
                accumulator.watched = None
        try:
            for _, push, b, _ in self.pending.items:
                push(b)
            idle = [name for name in self._names if name not in accumulator.told]
            if self._parts and self.private:
                forward_guard.check_idle(idle, self._left_out)
            self._left_out = idle
            if idle:  # sums and noise keep all their coordinates
                for name, rows in unused(self.layers, idle, accumulator.n or self._batch, self._unused):
                    accumulator.take(name, rows)
            return accumulator.message(self._names, self._ticket.groups, *self._scale())
        finally:
            round.sketches.update(plain)

    def _drop(self) -> None:
        self._accumulator.clear()
        self.pending.items = []

    def _spend(self) -> None:
        """The examples of the ticket have been summed: no other pass may add them again."""
        if self._ticket.size is not None:
            self._ticket = replace(self._ticket, size=0)
            self._batch = self.layers.now.batch = 0
        self.layers.begin(self.layers.now.batch)
        self._between.forget()
        self.losses.reset()

    def _end_batch(self) -> Ticket:
        """Nothing more comes of the present physical batch; returns its ticket."""
        self.guard.reset()
        self._finish_backward()
        self.losses.reset()
        return self._ticket

    # ------------------------------------------------------------ what is refused

    def _check_module(self) -> None:
        """Refuse, before any data is seen, tensors that would get raw gradients and masks that others may know."""
        mine = set(map(id, self._parameters))
        stray = [name for name, p in self._trained if id(p) not in mine]
        remedy = "freeze these parameters, or take off what computes a weight from them (remove_weight_norm)"
        validate.check(not stray, "module", stray, f"{remedy}: no layer that has per-example gradients trains them")
        for each in self.module.modules():
            compiled = "_orig_mod" in each._modules or each._compiled_call_impl is not None
            validate.check(not compiled, "module", type(each).__name__, _COMPILED)
        if self.guard.secret:
            forward_guard.check_public_draws(forward_guard.held_tensors(self.module))

    def _check_ready(self) -> None:
        """Refuse a pass of private records, of the module or a part of it, that no guarantee holds for."""
        if callable(get_eval_frame_callback()):
            raise validate.InvalidInput(_COMPILED)
        self.layers.check_apart()
        if self._adrift:
            raise validate.InvalidInput(_ADRIFT)

    def _check_trained(self) -> None:
        """Refuse to move what has been frozen since: the number of coordinates of a round was fixed with its noise."""
        frozen = [name for name, parameter in self._trained if not parameter.requires_grad]
        if frozen and self.private:
            raise validate.InvalidInput(
                f"the parameters {frozen} were frozen (requires_grad_(False)) after training was made private, and "
                "would be moved all the same: call engine.detach(), freeze them, and make training private again"
            )


def _check_drivable(pipe: Pipeline) -> None:
    """What a user's loop cannot hold is refused when the driver is made."""
    stage = pipe.stages[0]
    remedy = "use `minimize`, which alone runs several stages, variance reduction, codecs and error feedback"
    simple = len(pipe.stages) == 1 and stage.every == 1 and stage.source is current
    validate.check(simple, "pipe.stages", [s.name for s in pipe.stages], remedy)
    validate.check(not pipe.wire.remembers and pipe.wire.codec is None, "pipe.wire", pipe.wire, remedy)
    validate.check(pipe.stop is None, "pipe.stop", pipe.stop, remedy)
    validate.check(not pipe.before, "pipe.before", [item.name for item in pipe.before], remedy)
    validate.check(isinstance(pipe.average, Last), "pipe.average", pipe.average, "average the module's own weights")


def _least_bound(pipe: Pipeline) -> float:
    """The least bound that rows of a pipeline may be clipped to."""
    clips = [release.clip for release in pipe.stages[0].releases if release.clip is not None]
    bounds = [math.inf]
    for clip in clips:
        each = clip.each(clip.init())
        bounds += each.values() if isinstance(each, Mapping) else [each]
    return min(bounds) / (SPAN if any(clip.moves for clip in clips) else 1)


# ---------------------------------------------------------------- copies and pickles of the module

# `copy.deepcopy`, `pickle` and `torch.save` ask a module for its state.  While a driver is attached every layer answers
# for itself (`__reduce_ex__` in its own dictionary): what it gives away is its state without the hooks of this package.
# What was gathered of private batches and not released is in the driver, and never in a copy.


class _PlainCopies:
    """The handle of one layer's answer: `remove` takes it away.

    >>> import copy
    >>> module = nn.Linear(2, 2)
    >>> handle = _PlainCopies(module)
    >>> sorted(vars(copy.deepcopy(module)).keys() ^ vars(module).keys())
    ['__reduce_ex__']
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

        def reduce(protocol: int) -> object:
            return _cleaned(type(layer).__reduce_ex__(layer, protocol))

        layer.__dict__["__reduce_ex__"] = reduce

    def remove(self) -> None:
        """Copies are made as before."""
        self.layer.__dict__.pop("__reduce_ex__", None)


def _cleaned(part: object) -> object:
    """What a layer gives away of itself, in its state or among the arguments that it is made anew with."""
    if isinstance(part, tuple):
        return tuple(map(_cleaned, part))
    if not isinstance(part, dict) or "_modules" not in part:
        return part
    state = {name: value for name, value in part.items() if name != "__reduce_ex__" and not _ours(value)}
    tables = {name: table for name, table in state.items() if "_hooks" in name and isinstance(table, dict)}
    hooks = {
        key for name, table in tables.items() if name.endswith("_hooks") for key, hook in table.items() if _ours(hook)
    }
    for name, table in tables.items():  # those with the marks of hooks too, which have the same keys
        state[name] = type(table)((key, hook) for key, hook in table.items() if key not in hooks)
    return state


def _ours(value: object) -> bool:
    """Whether a function was defined inside one of this package: those of its users' models are not."""
    function = value.__func__ if isinstance(value, MethodType) else value
    local = isinstance(function, FunctionType) and "<locals>" in function.__qualname__
    return local and str(function.__module__).split(".")[0] == __name__.split(".")[0]
