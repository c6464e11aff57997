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

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.base import storage, validate
from isthmus.base.randomness import key
from isthmus.base.recording import recording_now
from isthmus.core import compiles
from isthmus.core.arrivals import Arrivals
from isthmus.core.copies import plain_copies
from isthmus.core.directions import Awaiting, Taking
from isthmus.core.drivable import Ticket, batches_of, check_drivable, counted, least_bound, mixed
from isthmus.core.gather import Gathering
from isthmus.core.group import ALONE, Group
from isthmus.core.losses import Losses
from isthmus.core.means import Undo, reduced
from isthmus.core.measuring import fragment
from isthmus.core.parts import Delegate
from isthmus.core.pipeline import Maps, Pipeline, Round, advance, bind_stage, close_stage, open_round, start, take_stage
from isthmus.core.wire import Keys, Message
from isthmus.gradients.base import Rows
from isthmus.gradients.layers import passes
from isthmus.gradients.layers.apart import look
from isthmus.gradients.layers.between import Between
from isthmus.gradients.layers.rules import Args, Kwargs
from isthmus.gradients.stack import Stack
from isthmus.lifts import Lifted
from isthmus.objectives.module import Layers, captured, unused
from isthmus.privacy.clips import Rounding, part_of_error
from isthmus.privacy.ledger import Chargeable
from isthmus.privacy.noise import Noise
from isthmus.sketches.base import without_memo

__all__ = ["Ticket", "TorchDriver"]

LEAST = 1e-9
"""Where rows are clipped to less, their squares may leave the range of float32: then products are exact ones."""
_EVALUATES = (
    "a batch of the private loader was given to a module in eval mode, where nothing is trained: call module.train() "
    "before the training loop (from_pretrained returns a module in eval mode), or write torch.no_grad() around an "
    "evaluation"
)
_FOLLOWS = (
    "the loop drew random numbers for a private batch from torch's own generator, which follows a seed that may be "
    "known (it is the same in every process until torch.manual_seed or torch.seed is called): one record more "
    "shifts what is drawn for the others, and its bound does not hold; draw inside the module's forward, where the "
    "generator is secret, or call torch.seed() before training"
)
_COUNTED = (
    "the settings of the optimiser (its learning rate, say) changed between two pieces of one batch: how many there "
    "are depends on who was drawn, which nobody may see, so a schedule must not count them; let the scheduler follow "
    "what is released: optimizer.register_step_post_hook(lambda *_: scheduler.step()), or step it once an epoch"
)
_GATHERED = (
    "a batch of the private loader, which cuts batches into pieces, was read to its end, and no step was taken with "
    "its last piece: how many pieces it has depends on who was drawn, which nobody may see, so steps must not follow a "
    "count of them; call step() for every piece (it waits for the last one), and make the loader's batch larger in "
    "place of accumulating"
)
_MIXED = (
    "the module was given mixtures of the examples that the private loader handed out (mixup, cutmix): a record is "
    "then in several examples, each of which is clipped by itself, and moves the sum by more than epsilon accounts "
    "for; leave the mixing out, or mix each example with public ones"
)


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
        noise: Noise | None = None,
        ledger: Chargeable | None = None,
        layers: Layers | None = None,
        fast: bool = True,
        group: Group = ALONE,
    ) -> None:
        check_drivable(pipe)
        validate.positive_int(n=n)
        validate.one_of(("mean", "sum"), reduction=reduction)
        self.layers = Layers(module) if layers is None else layers
        self.module, self.optimizer, self.stage = module, optimizer, pipe.stages[0]
        self.n, self.loss, self.public, self.reduction = n, loss, public, reduction
        self.keys, self.ledger = Keys(seed, noise), ledger
        self.group = group
        self.pipe = replace(pipe, update=Delegate(self._collect))
        self.state = start(self.pipe, torch.empty(0), seed)
        self.observers: list[Callable[[Round], None]] = []
        """Called with every round when it is closed: they see what was released."""
        where = next(self.layers.parameters()).device
        self._trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._device = None if where.type == "cpu" else where
        self._move = optimizer.step
        self._round: Round | None = None
        self._sum: Message | None = None
        self._ticket: Ticket | None = None
        self._batch, self._parts, self._busy, self._idle, self._adrift = 0, 0, False, False, False
        secret = pipe.private and not getattr(noise, "seeded", True)
        self._draws, self._followed = b"", not secret
        """The state of torch's generator when the batch was handed out; whether a loop that draws was told."""
        self._cut, self._settings = False, ""
        """Whether batches come in pieces; what the optimiser was set to at the first piece of the present one."""
        self._handed: Any = None
        """The batch as the loader handed it out, until its examples are looked at."""
        self._turn: object = None
        """The pass over the loader that batches are taken from."""
        self.guard = passes.Guard(module, secret, watched=self.layers.parameters())
        self._between = Between(self.layers)
        self._undo = Undo()
        mine = frozenset(id(p) for p in module.parameters()) if pipe.private else None
        self.losses = Losses(reduction, self.layers.batch_dim, mine)
        self._looks = False
        """Whether the pass in progress is one whose loss is looked at."""
        self.loss_scale = 1.0
        """What the loss is multiplied by before its backward pass, as a `GradScaler` does: rows are divided by it."""
        self._unused: set[str] = set()
        self._left_out: list[str] = []
        self._directions: list[Sequence[Lifted]] = []
        self._kept: Maps = {}
        self._gathered = Gathering(self.stage, fast and least_bound(pipe) >= LEAST)
        self.arrivals, self._take = Arrivals(), Taking(self.layers, optimizer)
        self._awaiting = Awaiting(self.layers.parameters() if pipe.private else ())
        first, before, after = _hooks_of(self)
        if pipe.private:
            self._check_module()
        self.handles = [
            *self._watch_gradients(),
            *self.layers.attach(),
            module.register_forward_pre_hook(before, with_kwargs=True),
        ]
        self.handles.append(module.register_forward_pre_hook(first, prepend=True))
        self.handles.append(module.register_forward_hook(after, always_call=True))
        self.layers.listener = self._push
        self.layers.later = self.arrivals.keep if self._device is not None and self._gathered.fast else None
        self.layers.arrived = self._arrived
        self.layers.reduced = lambda: self._undo.on or reduction == "sum" or not pipe.private
        self.handles += self.guard.attach(self._takes_part, self._between) if pipe.private else []
        self.handles += plain_copies(module)

    # ------------------------------------------------------------ what a loop calls

    def begin(self, ticket: Ticket, turn: object = None, batch: Any = None) -> None:
        """The next physical batch is about to be handed out, by the pass over the loader that `rest` began."""
        if turn is not None and turn is not self._turn:
            raise validate.InvalidInput(
                "another pass over the private loader has begun since: only the latest one hands out batches, or one "
                "record could count twice in a round; read one pass to its end, or give each its own make_private"
            )
        self.guard.reset()
        self._finish_backward()
        self.losses.reset()
        self._adrift |= self._ticket is not None and self._ticket.size > 0  # nobody used it: what comes may be of it
        if self._ticket is not None and self._ticket.last:
            if self._waits():  # several logical batches before one step: each is a round of its own
                validate.require(not (self._cut and self.pipe.private), _GATHERED)
                self._close()
            elif self._idle:
                warnings.warn(
                    "a batch was drawn, and no step was taken with it: whether a step is taken must not depend "
                    "on the data; call optimizer.step() for every batch, empty ones too",
                    stacklevel=3,
                )
        self._ticket, self._idle, self._handed = ticket, True, batch
        self._cut |= not ticket.last
        self._draws = b"" if self._followed else passes.public_state()
        self._undo.reset()
        self.layers.batch, self.layers.token = ticket.size, object()
        self.layers.uses.clear()
        self._batch = ticket.size

    def rest(self) -> object:
        """An epoch has ended: a whole logical batch becomes a round, one that was cut short is forgotten unreleased.

        Returns the token of the pass over the loader that begins now.
        """
        self.guard.reset()
        self._finish_backward()
        self.losses.reset()
        if self._ticket is not None and self._ticket.last and self._waits():
            self._close()
        self._drop()
        self._sum, self._parts, self._idle, self._settings = None, 0, False, ""
        if self._ticket is not None:
            self._ticket = Ticket(0)
            self._spend()
        self._turn, self._adrift = object(), False
        return self._turn

    def forget(self) -> None:
        """Drop what was gathered and not released: other parameters are about to be read in."""
        self._drop()
        self.losses.reset()
        self._sum, self._round, self._directions = None, None, []
        self._parts, self._idle = 0, False

    def detach(self) -> None:
        """Take the hooks off; the parameters ask for gradients again."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.losses.reset()
        self._awaiting.end()
        for parameter in self.layers.parameters():
            parameter.requires_grad_(True)

    def step(self) -> bool:
        """Close the round and let the optimiser move; False where more of the logical batch is to come."""
        try:
            self._finish_backward()
            self._awaiting.end()
            self._check_trained()
            self._check_steady()
            if self._ticket is not None and self._ticket.last:
                self._check_seen(self._ticket)
        except Exception as error:
            self.group.agree("meet", error=error)
        if self._ticket is not None and not self._ticket.last:
            return False
        with self.group.alike():
            self._close()
            self._take(self._directions)
            self._directions, self._idle = [], False
            self._spend()  # a second step is an empty one
            self._move()
        return True

    # ------------------------------------------------------------ the round

    def _close(self) -> None:
        """Release the logical batch; an empty one still takes its round."""
        round = self._open()
        message = self._sum if self._sum is not None else self._nothing(round)
        divisor = self.stage.sampler.divisor(self.n, round.t)
        mine = replace(counted(message), divisor=divisor, fixed=True)
        own, empty = len(range(self.group.rank, self.n, self.group.size)), self._sum is None
        message = self.group.add(round, self.stage, lambda: mine, lambda: self._weights_of(round.t), own, self.n, empty)
        released = self.group.on_leader(
            lambda: close_stage(round, self.stage, message, self.keys, self.ledger), met=True
        )
        if self.stage.name not in round.released:
            where = next(iter(message.values.values())).value.device
            take_stage(round, self.stage, {name: value.to(where) for name, value in released.items()})
        if self.group.rank and self.ledger is not None and self.stage.private:
            self.ledger.charge(self.stage, round.t)  # a copy of what was charged where the noise is
        self.state = advance(round, self.state, [message])
        self._round, self._sum, self._parts = None, None, 0
        for observe in self.observers:
            observe(round)

    def _weights_of(self, t: int) -> int:
        """What the weights of all ranks are compared by, once in 100 rounds."""
        return key(*map(storage.checksum, self.layers.parameters())) if t % 100 == 0 else 0

    def _waits(self) -> bool:
        """Whether a whole logical batch, here or on another rank, has not become a round yet."""
        return (
            any(header[0] for header in self.group.agree("batch", [int(self._sum is not None)]))
            if self._idle and self._turn is not None
            else self._sum is not None
        )

    def _open(self) -> Round:
        if self._round is None:
            self._busy = True
            try:
                self._round = open_round(
                    self.pipe,
                    self.state,
                    space=self.layers.space,
                    seed=self.keys.seed,
                    epoch=self.state.t // self.stage.sampler.rounds(self.n),
                    read=self.layers.pack,
                    public_rows=self._public_rows,
                    eta=self.optimizer.param_groups[0]["lr"],
                    maps=self._kept,
                    device=self._device,
                    place=None if self._directions or self.observers else self.arrivals.placed,
                    group=self.group,
                )
                bind_stage(self._round, self.stage)
            finally:
                self._busy = False
        return self._round

    def _before_forward(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if self._busy:  # public data, on behalf of a sketch
            return None
        if not module.training:
            self._warn_of_eval(args, kwargs)
            self.layers.listener = None  # for this pass: the backward pass of an earlier one may be still to come
            return None
        validate.require(not compiles.under_way(), compiles.REMEDY)
        things = self._admit(args, kwargs) if torch.is_grad_enabled() else None
        if not self.pipe.private:
            return None
        args, kwargs = self._between.enter("", args, kwargs)
        self.guard.enter(module, things)
        return args, kwargs

    def _warn_of_eval(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A batch of the private loader in eval mode, where nothing is trained: backward() would find no gradient."""
        handed = self._ticket is not None and self._idle and self._ticket.size
        if handed and torch.is_grad_enabled() and handed in batches_of(args, kwargs, self.layers.batch_dim):
            warnings.warn(_EVALUATES, stacklevel=2)

    def _check_ready(self) -> None:
        """Refuse a pass of private records, of the module or a part of it, that no guarantee holds for."""
        validate.require(not compiles.under_way(), compiles.REMEDY)
        self.layers.check_apart()
        if self._adrift:
            raise validate.InvalidInput(
                "a batch of the private loader was read before the one before it was used: batches may be out of step, "
                "and one record could count twice in a round; use every batch before you read the next (no reading "
                "ahead, skipping or collecting), or begin a new pass over the loader"
            )

    def _admit(self, args: Args, kwargs: Kwargs) -> passes.Things | None:
        """Let a private batch in, or refuse it; what the module holds, where that was looked at."""
        self._check_ready()
        self._open()
        sizes = batches_of(args, kwargs, self.layers.batch_dim)
        if self._ticket is None:  # no loader tells batches apart: every forward pass is a physical batch
            self._finish_backward()
            self._undo.reset()
            self.layers.uses.clear()
            self._batch, self.layers.token = (sizes[0] if sizes else self._batch), object()
            self.layers.batch = sizes[0] if sizes else None
        elif sizes and self._ticket.size not in sizes:  # a mask or a table may stand beside the examples
            raise validate.InvalidInput(
                f"the module was given {sizes[0]} examples where the private loader handed out {self._ticket.size}: "
                "pass whole batches of the loader through it (max_physical_batch_size= makes them smaller); call "
                "module.eval() for other data"
            )
        if not self.pipe.private:
            return None
        things = self.guard.check()
        self._looks = self.losses.due()
        if self._looks and mixed((args, kwargs), self._handed, self._batch, self.layers.batch_dim):
            warnings.warn(_MIXED, stacklevel=7)
        self._handed = None
        look(self.layers, args, kwargs, self.layers.batch)  # examples that meet are found before their gradients are
        if self._ticket is not None and self._ticket.look is not None:
            self._ticket.look(args, kwargs)
        return things

    def _after_forward(self, module: nn.Module, output: Any) -> Any:
        """Listen again after a pass in eval mode; look at what a private pass has left behind."""
        self.layers.listener = self._push
        things = self.guard.leave(module, output)
        if module.training and torch.is_grad_enabled():
            if self.reduction == "mean":
                first = next(self.layers.parameters())
                output = self._undo.outputs(output, self.layers.anchor, self._batch, reduced(module, first.device))
                if self._undo.on:
                    self._undo.check_kept(passes.things(module) if things is None else things)
            if self._looks:
                self.losses.expect(output, self._batch, self.loss_scale)
                self._looks = False
        if self.pipe.private:
            output = self._between.leave(output)
        return output

    def _takes_part(self, layer: nn.Module) -> bool:
        """Whether a layer that is called by itself may see private data; refused where the module would be."""
        takes = layer.training and self.layers.listens() and not self._busy
        if takes:
            self._check_ready()
        return takes

    def _check_module(self) -> None:
        """Refuse, before any data is seen, tensors that would get raw gradients and masks that others may know."""
        mine = {id(parameter) for parameter in self.layers.parameters()}
        stray = [name for name, p in self.module.named_parameters() if p.requires_grad and id(p) not in mine]
        validate.check(
            not stray,
            "module",
            stray,
            "freeze these parameters (requires_grad_(False)), or take off what computes a weight from them "
            "(remove_weight_norm): they are trained by no layer that has per-example gradients",
        )
        compiles.check(self.module)
        if self.guard.secret:
            passes.check_public_draws(passes.things(self.module))

    def _watch_gradients(self) -> list[Any]:
        """Hooks that take a raw gradient away the moment it is written."""
        parameters = [
            parameter for parameter in self.module.parameters() if self.pipe.private and parameter.requires_grad
        ]
        return [parameter.register_post_accumulate_grad_hook(passes.clear_raw) for parameter in parameters]

    def _check_trained(self) -> None:
        """Refuse to move what has been frozen since: the number of coordinates of a round was fixed with its noise."""
        frozen = [name for name, p in self._trained if not p.requires_grad]
        if frozen and self.pipe.private:
            raise validate.InvalidInput(
                f"the parameters {frozen} were frozen (requires_grad_(False)) after training was made private, and "
                "would be moved all the same: call engine.detach(), freeze them, and make training private again with "
                "an optimiser of the others"
            )

    def _check_steady(self) -> None:
        """Refuse schedules that move between the pieces of a batch, whose number is private."""
        if self._ticket is None or not (self._settings or not self._ticket.last) or not self.pipe.private:
            return
        before, self._settings = self._settings, "" if self._ticket.last else settings_of(self.optimizer)
        now = self._settings or settings_of(self.optimizer)
        validate.require(before in ("", now), _COUNTED)

    @property
    def unmoved(self) -> bool:
        """Whether a batch was handed out, and no step was taken with it."""
        return self._idle

    def _arrived(self) -> None:
        """A gradient has come to a layer."""
        self._check_loop()
        self._undo.check()
        self._awaiting.begin()

    def _check_loop(self) -> None:
        """Warn of a loop that draws for a batch what somebody can know."""
        before, self._draws = self._draws, b""
        if before and passes.public_state() not in (b"", before, passes.first_state()):
            self._followed = True
            warnings.warn(_FOLLOWS, stacklevel=4)

    def _push(self, name: str, rows: Rows) -> None:
        """One layer's rows, inside backward: encoded at once where a release clips codes, else kept."""
        round = self._open()
        self._gathered.take(round, name, rows, self.layers.uses[name], self._factor, self._rounding(round))

    @property
    def _factor(self) -> float:
        """What makes the rows those of the examples' own losses: a mean has divided them, a scaler multiplied them."""
        return (float(self._batch) if self.reduction == "mean" and not self._undo.on else 1.0) / self.loss_scale

    def _rounding(self, round: Round) -> Rounding:
        """How exactly the physical batch at hand is added up."""
        last = self._ticket is not None and self._ticket.last
        return Rounding(
            self.stage.sampler.divisor(self.n, round.t), part_of_error(self._parts + 1, last) / self.group.size
        )

    def _drop(self) -> None:
        self._gathered.clear()
        self.arrivals.items = []

    def _finish_backward(self) -> None:
        """Add the physical batch whose backward pass has ended to the round's sum."""
        if self._round is None or not (self._gathered or self.arrivals):
            return
        try:
            self._between.look()
            with torch.no_grad():
                counts = self._ticket is None or self._ticket.counts
                message = self._summed(self._round) if counts else self._nothing(self._round)
        finally:
            self._drop()
        self._parts += 1
        self._sum = message if self._sum is None else self._sum + message
        self._spend()

    def _summed(self, round: Round) -> Message:
        """The message of the physical batch; on a device perhaps by what it has recorded."""
        groups = None if self._ticket is None else self._ticket.groups
        if not self.arrivals or self._gathered or groups is not None:
            return self._message(round, groups)
        depends = (self._rounding(round), self._factor, self._batch, self._parts > 0, tuple(self._left_out))
        message = self.arrivals.message(round, depends, lambda: self._message(round, None))
        self._left_out = self.arrivals.idle(self._left_out)
        self.layers.later = self.arrivals.keep if self.arrivals.replay.on else None
        return message

    def _message(self, round: Round, groups: Tensor | None) -> Message:
        """Make the rows that are still to be made, and add all up."""
        names, plain = [leaf.name for leaf in self.layers.space.leaves], dict(round.sketches)
        if recording_now():  # what a map remembers is no input, and what it learns now is computed later only
            round.sketches.update({slot: without_memo(sketch) for slot, sketch in plain.items()})
        try:
            if self.arrivals:
                self._gathered.clear()
            self.arrivals.tell()
            self._fill(round, names)
            return self._gathered.message(round, names, self._rounding(round), self._factor, groups)
        finally:
            round.sketches.update(plain)

    def _fill(self, round: Round, names: Sequence[str]) -> None:
        """Rows of zeros for layers that took no part in the pass: sums and noise keep all their coordinates."""
        idle = self._gathered.missing(names)
        if self._parts and self.pipe.private:
            passes.check_idle(idle, self._left_out)
        self._left_out = idle
        size = self._gathered.size(self._batch)
        for name, rows in unused(self.layers, idle, size, self._unused):
            self._gathered.take(round, name, rows, 0, self._factor, self._rounding(round))

    def _spend(self) -> None:
        """The examples of the ticket have been summed: no other pass may add them again."""
        if self._ticket is not None:
            self._ticket = replace(self._ticket, size=0)
            self.layers.batch, self._batch = 0, 0
        self.layers.token = object()
        self._between.forget()
        self.losses.reset()

    def _nothing(self, round: Round) -> Message:
        """The message of a batch with no records."""
        rounding = Rounding(self.stage.sampler.divisor(self.n, round.t))
        return fragment(round, self.stage, self.layers.no_rows(), rounding=rounding)

    def _check_seen(self, ticket: Ticket) -> None:
        """A batch with records that left no gradient is a mistake, found before anything is charged."""
        if ticket.size and self._sum is None:
            raise RuntimeError(
                "optimizer.step() was called, and no gradient of this batch arrived: call module.train(), then "
                "backward() on a loss of the module's output"
            )

    def public_rows(self, data: Any = None) -> Stack:
        """Per-example gradients of public data at the present weights, taken without touching the round."""
        self._busy = True
        try:
            return self._public_rows(torch.empty(0), data)
        finally:
            self._busy = False

    def _public_rows(self, w: Tensor, data: Any) -> Stack:
        """Per-example gradients on public data; `data` is (x, y), ((x, y), loss), or None for the engine's own."""
        pair, loss = data if data is not None and len(data) == 2 and callable(data[1]) else (data, None)
        pair, loss = self.public if pair is None else pair, self.loss if loss is None else loss
        validate.check(pair is not None, "public", None, "give this sketch data=(X, y), or the engine public=(X, y)")
        validate.check(
            loss is not None, "loss", loss, "give loss= to the sketch or to the driver, which a public subspace needs"
        )
        device = next(self.layers.parameters()).device
        x, y = (part.to(device) if isinstance(part, Tensor) else part for part in pair)
        return captured(self.layers, loss, x, y, self.reduction)

    # ------------------------------------------------------------ the optimiser

    def _collect(self, lifted: Sequence[Lifted]) -> None:
        self._directions.append(lifted)


def settings_of(optimizer: torch.optim.Optimizer) -> str:
    """What an optimiser is set to, in words: its learning rates and all else but the parameters."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return repr(groups)


def _hooks_of(driver: TorchDriver) -> tuple[Any, Any, Any]:
    """What runs first, before and after the module: functions, so that a copy of the module leaves the driver alone."""

    def first(module: nn.Module, args: Any) -> None:
        if module is driver.module and driver._takes_part(module):
            driver._check_trained()  # before a layer's own taps have silenced its weights

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is driver.module:
            driver._before_forward(module, args, kwargs)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return driver._after_forward(module, output) if module is driver.module and not driver._busy else output

    before.driver = driver  # type: ignore[attr-defined]
    return first, before, after
