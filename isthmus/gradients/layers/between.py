"""What a loop does between the parts of a module that it calls by themselves, kept until it has been tried out.

    h = module.body(x)
    h = h - h.mean(0)          # code of the loop, in which examples may meet
    loss = F.cross_entropy(module.head(h), y)

A module whose own `forward` is called is tried out as a whole.  A part that is called by itself returns tensors that
know where they come from: what is done with them is written down, operation by operation, until another part is given
what came of it.  The whole way, parts and operations, is then one function of the examples that came in, and
`isthmus.gradients.layers.apart` looks at it as at any module, before the gradients of the batch are used.

What leaves torch (a number that Python reads) is taken as it was.  A tensor that comes from the module by a way that
cannot be followed (`torch.func`, scripted functions, code between the module's own `forward` and a part) is refused.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from isthmus.base import validate
from isthmus.gradients.layers.apart import look
from isthmus.gradients.layers.layers import Layers
from isthmus.gradients.layers.rules import Args, Kwargs
from isthmus.gradients.layers.twin import Dice

_CHANGES = ("__setitem__", "__set__", "register_hook")
"""Operations that return no tensor and matter all the same."""


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor, of an earlier step or from elsewhere, in what is written down."""

    number: int


@dataclass(eq=False)
class _Step:
    """A part that was called (by its name; "" is the module), or an operation of the loop."""

    what: str | Callable[..., Any]
    leaves: list[object]
    spec: TreeSpec
    results: list[int] = field(default_factory=list)
    """The places of the tensors that it returned."""
    dice: Dice | None = None
    """The random generators as they were before, where it has drawn from them."""

    @property
    def name(self) -> str:
        """The part or the operation."""
        if isinstance(self.what, str):
            return self.what
        return str(self.what.__name__)


class _Followed(Tensor):
    """A tensor that a part has returned, or that was computed from one."""

    way: Between
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


class Between:
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
        self.returned: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        """What the module itself returned, which is handed to the loop as it is."""

    def enter(self, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """A part (or "", the module) is called by the loop: its arguments, plain."""
        self._call = None
        if torch._C._current_graph_task_id() != -1:  # a checkpoint computes again what was followed
            self._check_again(name)
            return args, kwargs
        leaves, spec = tree_flatten((args, kwargs))
        now = self.layers.now
        if now.batch and self.layers.listens():
            if self.token is not now.token:
                self.forget()
                self.token = now.token
            self._call = _Step(name, self.references(leaves), spec)
            if name:
                self._check_followed(self._call)
        if _Followed not in map(type, leaves):
            return args, kwargs
        plain: tuple[Args, Kwargs] = tree_map_only(_Followed, _plain, (args, kwargs))
        return plain

    def _check_followed(self, part: _Step) -> None:
        """Refuse a part that is given what came of the module by a way that is not written down."""
        given = [x.number for x in part.leaves if isinstance(x, _Place) and x.number in self.given]
        if any(self._of_module(self.given[number]) for number in given):
            raise validate.InvalidInput(
                f"the part {part.what!r} of the module is given a tensor that was computed from what the module "
                "returned, by code of the loop that cannot be followed (functions of torch.func, scripted "
                "functions, or code after the module's own forward): examples could meet there unseen; move "
                "this code into the module's forward"
            )

    def _check_again(self, name: str) -> None:
        """Refuse a part that computes inside a backward pass and was not called by the loop before."""
        called = [step.what for step in self.steps if isinstance(step.what, str)]
        known = any(not other or f"{name}.".startswith(f"{other}.") for other in called)
        if self.layers.listens() and not known:
            raise validate.InvalidInput(
                f"the part {name!r} of the module computes its gradients inside the backward pass only (activation "
                "checkpointing with use_reentrant=True), where it cannot be seen whether examples meet: give "
                "torch.utils.checkpoint use_reentrant=False"
            )

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
        given = tree_map_only(_Followed, _plain, tuple(self.given.values()))
        names = tuple(step.name for step in self.tried())
        self.token = object()  # what is done again is not written down
        try:
            look(self.layers, given, {}, self.layers.batch, lambda module, args, _: self.again(module, args), names)
        finally:
            self.layers.now.pieces = None
            self.forget()

    def references(self, leaves: list[object]) -> list[object]:
        """Arguments as they are written down."""
        references: list[object] = tree_map_only(Tensor, self._place, leaves)
        return references

    def _followed(self, x: Tensor) -> TypeGuard[_Followed]:
        return isinstance(x, _Followed) and x.way is self and x.token is self.token

    def _place(self, x: Tensor) -> _Place:
        if self._followed(x):
            return _Place(x.place)
        known = self.returned.get(id(x))
        if known is not None and known[0]() is x:
            return _Place(known[1])
        for place, other in self.given.items():
            if other is x:
                return _Place(place)
        place = next(self._places)
        self.given[place] = x
        return _Place(place)

    def follow(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Do an operation and write it down."""
        leaves, spec = tree_flatten((args, kwargs))
        references = self.references(leaves)
        with torch._C.DisableTorchFunctionSubclass():
            dice = Dice(next(x for x in leaves if isinstance(x, _Followed)).device)
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
        self.returned[id(x)] = weakref.ref(x), step.results[-1]
        return x

    def tried(self) -> list[_Step]:
        """The steps up to the last part that was called."""
        calls = [place for place, step in enumerate(self.steps) if isinstance(step.what, str)]
        return self.steps[: calls[-1] + 1]

    def again(self, module: nn.Module, given: Args) -> list[Tensor]:
        """What the parts return that no later step uses, of other examples; `module` may be a copy."""
        known: dict[int, Tensor] = {}
        answer: list[Tensor] = []
        used = {x.number for step in self.tried() for x in step.leaves if isinstance(x, _Place)}
        for (place, before), x in zip(self.given.items(), given, strict=True):
            known[place] = x.requires_grad_(before.requires_grad and before.is_leaf)
        for step in self.tried():
            leaves = [known[x.number] if isinstance(x, _Place) else x for x in step.leaves]
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
        twin = copy(leaf)
        for item in fields(leaf):
            if hasattr(leaf, item.name):
                object.__setattr__(twin, item.name, mapped(change, getattr(leaf, item.name)))
        return twin

    return tree_map(changed, output)


def _plain(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(Tensor)
