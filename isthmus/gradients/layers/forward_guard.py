"""What stands around every pass of private data through a module: secret randomness, nothing left behind.

**Random layers.**  Dropout draws by the position in the batch.  With a public seed one record more would shift the mask
of every record after it, and the clipped sum would move by much more than C.  So a private pass draws from generators
in a state that nobody knows: torch's on the CPU and on the module's devices, Python's and NumPy's are set from the
operating system's entropy when the pass begins, and are the user's own again when it ends.

Why a secret suffices.  Let D' be D and one record r.  The draws of a pass are independent of the data, alike for
every record and unknown to everyone; write M for those of the records of D (with what the whole batch shares) and m
for those of r.  A record's gradient depends on its own draws and the shared ones only, so for fixed (M, m) the
clipped sums of D and D' are S(M) and S(M) + c(r, m) with |c| <= C.  What is released about D has the law of S(M) +
noise with M at random, what is released about D' that of S(M) + c(r, m) + noise with the SAME law of M, whatever
places in the batch the records have.  For every (M, m) the two are as close as the accountant says, and a mixture of
pairs that close is that close (the divergences behind (epsilon, delta) and zCDP are jointly convex).  With draws that
someone knows the argument fails: the two sides are then compared for fixed draws by position, and these are shifted.
It also fails for draws that the records of one *physical* batch share (a layer left out of a whole pass): r moves the
borders of the physical batches after it, and with them which records share a draw.  Layers that are left out of some
physical batches of a logical one are refused; the statement names the rest as an assumption where batches are cut.

**Doors.**  Private records go through a module in a loop of the user's (the engine's driver puts hooks on it) or inside
`private_records`, which stands around everything that is computed from private records elsewhere: rounds, what is
bought before them, the answers of clients.  Objectives that are no modules draw from secrets there too.

**Raw gradients.**  No tensor of a private module may ask for a gradient of its own, but for the parameters that are
watched for one: backward would write an unprotected sum of the data into its `.grad`.

**Kept data.**  Tensors that a pass leaves in the module (buffers, attributes, new or assigned anew) are not protected.
"""

from __future__ import annotations

import random
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.base import secret as draws
from isthmus.base import validate
from isthmus.gradients.layers.rules import Args, Handle, Kwargs

if TYPE_CHECKING:
    from isthmus.gradients.layers.trial import LoopRecorder

_MARK = secrets.randbits(63)
"""Stands as the initial seed of hidden states, which it says nothing about: by it they are known."""
_NUMPY = np.random.MT19937()
"""The generator that NumPy's functions draw from meanwhile."""
_KEY = 4 * 624
"""The bytes of a key of the Mersenne twister."""
_WORDS = slice(24, 24 + 2 * _KEY)
"""The words of the Mersenne twister in the state of torch's generator on the CPU, one in every eight bytes."""


def generators_hidden() -> bool:
    """Whether torch's generator is in a hidden state, also where one is replayed (activation checkpointing)."""
    return torch.default_generator.initial_seed() == _MARK


def hide_generators(
    devices: Iterable[torch.device] = (), by_place: bool = True, wanted: bool = True
) -> Callable[[], None]:
    """Set every global generator to a state nobody knows; returns what brings the old states back.

    Nothing happens where it is not wanted, or they are hidden already.  `by_place` says that whatever is drawn
    meanwhile is drawn by the place in a batch, which a replay has to know.

    >>> _ = torch.manual_seed(0)
    >>> back = hide_generators()
    >>> generators_hidden()
    True
    >>> one = torch.rand(4)
    >>> back()
    >>> torch.initial_seed(), bool((torch.rand(4) == one).any())
    (0, False)
    """
    if not wanted or torch.default_generator.initial_seed() == _MARK:
        return lambda: None
    generators = [torch.default_generator]
    for device in set(devices):
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            generators.append(torch.cuda.default_generators[index])
    states = list(map(torch.Generator.get_state, generators))
    python, numpy = random.getstate(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    entropy = draws.token_bytes(2 * _KEY + 64)
    words = np.frombuffer(entropy, np.uint32, 2 * 624)
    state = torch.Generator().get_state()  # its words come from the kernel: a seed has 32 bits only
    assert state.shape == states[0].shape
    state.numpy()[:8].view(np.uint64)[:] = _MARK
    state.numpy()[_WORDS].view(np.uint64)[:] = words[:624]
    torch.default_generator.set_state(state)
    _NUMPY.state = {"bit_generator": "MT19937", "state": {"key": words[624:], "pos": 624}}
    np.random.set_bit_generator(_NUMPY)  # type: ignore[attr-defined]
    random.seed(entropy[2 * _KEY :])
    for generator in generators[1:]:
        generator.manual_seed(draws.randbits(64))

    here = draws.stand_in()
    begun = None if here is None else _host_draws()

    def back() -> None:
        if here is not None and by_place and _host_draws() != begun:
            here.drew_by_place()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_bit_generator(numpy)  # type: ignore[attr-defined]

    return back


@dataclass(frozen=True, eq=False)
class _PrivateRecords:
    """What is known while something is computed from private records.

    secret  whether random draws come from hidden generators (a run whose noise has a seed keeps the user's)
    cut     whether they go through in several physical batches
    idle    for each point, the layers that took no part in the first of these
    """

    secret: bool
    cut: bool = False
    idle: dict[int, list[str]] = field(default_factory=dict)


_PRESENT: ContextVar[_PrivateRecords | None] = ContextVar("private records", default=None)


def present() -> _PrivateRecords | None:
    """The private records that something is computed from now, if any.

    >>> present()
    >>> with private_records(secret=True):
    ...     present().secret, generators_hidden()
    (True, True)
    """
    return _PRESENT.get()


@contextmanager
def private_records(secret: bool, cut: bool = False) -> Iterator[None]:
    """Stands around whatever is computed from one batch of private records."""
    places = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    back = hide_generators([torch.device("cuda", place) for place in places], wanted=secret)
    token = _PRESENT.set(_PrivateRecords(secret, cut))
    try:
        yield
    finally:
        _PRESENT.reset(token)
        back()


_SEEDS = 1 << 32
"""Smaller seeds are somebody's choice: torch.seed() takes one of 53 bits from the operating system."""
_DEFAULT = torch.Generator().initial_seed()
"""The seed that torch's generator has in every process."""


def public_state() -> bytes:
    """The state of torch's generator on the host where its seed may be known; nothing while it is hidden.

    >>> back = hide_generators()
    >>> public_state()
    b''
    >>> back()
    """
    seed = torch.default_generator.initial_seed()
    if seed == _MARK or not (seed == _DEFAULT or seed < _SEEDS):
        return b""
    return torch.default_generator.get_state().numpy().tobytes()


def first_state() -> bytes:
    """The state that torch's generator had when it was given its seed: nothing has been drawn since."""
    return torch.Generator().manual_seed(torch.default_generator.initial_seed()).get_state().numpy().tobytes()


class RandomStates:
    """The global random generators of torch, numpy and Python: `rewind` makes them draw the same again.

    >>> with RandomStates(torch.device("cpu")) as dice:
    ...     a = torch.rand(1)
    ...     dice.rewind()
    ...     bool(torch.rand(1) == a), dice.drew()
    (True, True)
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._backend = device, None if device.type == "cpu" else torch.get_device_module(device)
        self._states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        self._own = torch.empty(0) if self._backend is None else self._backend.get_rng_state(device)
        self._drawn = _host_draws()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rewind()

    def rewind(self) -> None:
        """As they were when this was made."""
        of_torch, of_python, of_numpy = self._states
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if self._backend is not None:
            self._backend.set_rng_state(self._own, self._device)

    def drew(self) -> bool:
        """Whether anything was drawn since."""
        if self._backend is not None and not torch.equal(self._own, self._backend.get_rng_state(self._device)):
            return True
        return self._drawn != _host_draws()


def _host_draws() -> tuple[bytes, object, object]:
    """The states of the generators on the host, by which it is seen that something was drawn."""
    words = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (words["pos"], words["key"].tobytes())


# ---------------------------------------------------------------- what a module holds


_Snapshot = dict[str, tuple[Tensor, int, int, Tensor | None]]
"""Tensors by name: how often they had been changed in place, where their memory was, and perhaps their numbers."""
_LOOKS = 3
"""Passes whose buffers and attributes are compared number by number, since `.data` hides changes."""
_OWN = frozenset(vars(nn.Module()))
_PLAIN = frozenset((int, float, bool, str, type(None), torch.device, torch.dtype))
"""Types of attributes that hold no tensor: to ask of each whether it is a generator takes as long as a small layer."""
HeldTensors = dict[str, Tensor | torch.Generator]
"""Tensors and generators by name."""


def held_tensors(module: nn.Module) -> HeldTensors:
    """Every tensor and generator that a module and its children hold, in lists and dicts too, by name."""
    by_name: HeldTensors = {}
    for path, layer in module.named_modules():
        own, before = vars(layer), ""
        if path:
            before = f"{path}."
        for name, value in (*own["_parameters"].items(), *own["_buffers"].items(), *own.items()):
            if name in _OWN or type(value) in _PLAIN:
                continue
            if isinstance(value, (Tensor, torch.Generator)):
                by_name[before + name] = value
                continue
            items: Iterable[tuple[object, object]] = ()
            if isinstance(value, (list, tuple)):
                items = enumerate(value)
            elif isinstance(value, dict):
                items = value.items()
            for key, item in items:
                if isinstance(item, (Tensor, torch.Generator)):
                    by_name[f"{before}{name}[{key!r}]"] = item
    return by_name


def _equal(x: Tensor, y: Tensor) -> bool:
    """The same numbers, NaN included."""
    if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device:
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())


def _changed_names(present: HeldTensors, before: _Snapshot) -> list[str]:
    """The names of tensors that are not what they were: new, changed in place, or assigned with other numbers."""
    names = []
    for name, x in present.items():
        if not isinstance(x, Tensor):
            continue
        then, version, place, numbers = before.get(name, (None, 0, 0, None))
        if x is then and x.data_ptr() == place and (x.is_inference() or x._version == version):
            same = numbers is None or _equal(x, numbers)
        elif then is None or x is then:
            same = False
        else:  # computed again, of no data
            kept = then.is_inference() or then._version == version
            same = kept and _equal(x, then if numbers is None else numbers)
        if not same:
            names.append(name)
    return names


def check_public_draws(present: HeldTensors) -> None:
    """Refuse generators of a module's own: whoever knows their seed knows its masks."""
    own = [name for name, x in present.items() if isinstance(x, torch.Generator)]
    if own:
        raise validate.InvalidInput(
            f"the module draws from generators of its own ({own}), whose seeds may be known: one record more would "
            "shift the masks of all others; draw from torch's global generator, which is secret during a private pass"
        )


class Guard:
    """Stands around the outermost pass through a module or a part of it.

    secret   whether the pass draws from hidden generators (a run whose noise has a seed keeps the user's)
    watched  parameters that no raw gradient can reach (see `isthmus.gradients.layers`)
    """

    def __init__(self, module: nn.Module, secret: bool, watched: Iterable[Tensor] = ()) -> None:
        self.module, self.secret, self.watched = module, secret, frozenset(id(x) for x in watched)
        self.changed: dict[str, None] = {}
        """The names of tensors that private passes have changed."""
        self._outer: nn.Module | None = None
        self._depth, self._looks = 0, 0
        self._before: _Snapshot = {}
        self._back: Callable[[], None] = lambda: None

    def attach(self, private: Callable[[nn.Module], bool], between: LoopRecorder) -> list[Handle]:
        """Hooks on every child, for passes that do not begin at the module itself; `private` says which count."""
        handles: list[Handle] = []
        for name, layer in self.module.named_modules():
            if layer is not self.module and not isinstance(layer, torch.jit.ScriptModule):
                handles += self._watch_part(name, layer, private, between)
        return handles

    def _watch_part(
        self, name: str, mine: nn.Module, private: Callable[[nn.Module], bool], between: LoopRecorder
    ) -> list[Handle]:
        # a copy of the layer has its hooks too, and is none of ours
        def before(layer: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
            if layer is mine and self._outer is layer:
                self.enter(layer)
            elif layer is mine and self._outer is None and private(layer):
                args, kwargs = between.enter(name, args, kwargs)
                self.enter(layer)
                return args, kwargs
            return None

        def after(layer: nn.Module, args: Args, output: object) -> object:
            if layer is not mine or self._outer is not layer:
                return output
            self.leave(layer, output)
            return between.leave(output) if self._outer is None else output

        return [
            mine.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            mine.register_forward_hook(after, always_call=True),
        ]

    def check(self) -> HeldTensors:
        """What the module holds; refused where it would get raw gradients, or draw masks that others may know."""
        present, raw = held_tensors(self.module), []
        for name, x in present.items():
            if isinstance(x, torch.Generator):
                if self.secret:
                    check_public_draws(present)
            elif x.requires_grad and x.is_leaf and id(x) not in self.watched:
                raw.append(name)
        if raw:  # a watch on the others refuses it then
            raise validate.InvalidInput(
                f"the tensors {raw} of the private module ask for a gradient of their own: backward() would write "
                "unprotected sums of the data into .grad; set requires_grad_(False) on them (step() gives those that "
                "are trained what was released), or call engine.detach() and make the module private again"
            )
        return present

    @contextmanager
    def around(self, private: _PrivateRecords | None) -> Iterator[None]:
        """Stands around what a function does with the module, where the records are private."""
        if private is None:
            yield
            return
        self.secret, whole = private.secret, False
        self.enter(self.module)
        try:
            yield
            whole = True
        finally:
            self.leave(self.module, whole or None)

    def enter(self, layer: nn.Module, present: HeldTensors | None = None) -> None:
        """A pass begins: of the whole, or of a layer inside one that has begun; `present` is what `check` has found."""
        if self._outer is not None:
            self._depth += layer is self._outer
            return
        present = present or self.check()
        self._outer, self._depth, self._before = layer, 1, {}
        self._looks += 1
        devices = set()
        for name, x in present.items():
            if isinstance(x, Tensor):
                devices.add(x.device)
                numbers = None
                if self._looks <= _LOOKS and not isinstance(x, nn.Parameter):
                    numbers = x.detach().clone()
                version = 0
                if not x.is_inference():
                    version = x._version
                self._before[name] = x, version, x.data_ptr(), numbers
        self._back = hide_generators(devices, wanted=self.secret)

    def leave(self, layer: nn.Module, output: object) -> HeldTensors | None:
        """A pass ends; what it did to the module is looked at unless it has failed (with no output).

        Returns what the module holds, where that was looked at.
        """
        if layer is not self._outer:
            return None
        self._depth -= 1
        if self._depth:
            return None
        before, exposed = self._before, self.secret and not generators_hidden()
        self.reset()
        if output is None:
            return None
        if exposed:
            raise validate.InvalidInput(
                "the module seeds torch's generator inside its forward pass: whoever knows the seed knows its masks; "
                "leave the generator alone, it is secret during a private pass"
            )
        present = self.check()
        names = _changed_names(present, before)
        if names:
            self.changed |= dict.fromkeys(names)
            warnings.warn(
                f"the forward pass changed the buffers or attributes {names}: what they keep of the data is not "
                "protected, and buffers are part of state_dict()",
                stacklevel=3,
            )
        return present

    def reset(self) -> None:
        """No pass is going on, as after one that was interrupted: the generators are the user's again."""
        self._outer, self._depth, self._before = None, 0, {}
        back, self._back = self._back, lambda: None
        back()


def check_idle(now: list[str], before: list[str]) -> None:
    """Refuse layers that were left out of some physical batches of one batch and not of others."""
    some = sorted(set(now) ^ set(before))
    if some:
        raise validate.InvalidInput(
            f"the layers {some} took part in some physical batches of one logical batch and not in others: one "
            "record more would move the others to other physical batches, and change what they add; leave layers "
            "out example by example, or train with whole batches (no physical limit)"
        )


def clear_raw(parameter: Tensor) -> None:
    """Takes a gradient away that backward() has written, and says so: nobody has seen it."""
    parameter.grad = None
    raise validate.InvalidInput(
        "backward() wrote a gradient of its own to a parameter of the private module, which was taken away again: "
        "leave requires_grad False until engine.detach()"
    )


# ---------------------------------------------------------------- what it rests on, in words


MIXING = (
    "no code between the loader, the layers and the loss mixes the examples of a batch (first and random batches are "
    "looked at, which proves nothing), and the loss is a mean (or sum) over them"
)
RANDOM = (
    "random layers such as dropout, and random augmentation in the dataset, draw from secrets of the operating system, "
    "afresh in every pass and independently of the data; nothing random elsewhere in training follows a public seed"
)
MEAN = (
    "the last digits of a record's gradient do not depend on how many records its batch has, though the mean loss "
    "divides by that number: a loss that is a sum (loss_reduction='sum') needs no such assumption"
)
SHAPES = (
    "the last digits of a record's activations and gradients do not depend on the shape of its batch, which decides "
    "how the tensor library multiplies matrices; the same product of the same numbers gives the same bits twice"
)
PIECES = (
    "what a pass does to an example does not depend on the physical batch that it is in, whose borders one record more "
    "would move: random layers draw for every example apart (dropout does), and nothing counts the passes"
)
KEPT = "these buffers or attributes of the module were changed by private passes; what they keep is NOT protected"
