"""Recurrent layers made of `nn.Linear`, in place of torch's fused ones.

`RNN`, `LSTM` and `GRU` compute what `nn.RNN`, `nn.LSTM` and `nn.GRU` compute and have their arguments and their state
dict; but every product with a weight is the call of a linear layer, whose input and output gradient can be seen.  The
input is projected at all time steps by one call, the hidden state step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from isthmus.base import validate

State = tuple[Tensor, ...]


class _Recurrent(nn.Module):
    """What the three kinds have in common; a kind supplies `gates`, `states` and `cell`.

    Parameters are named as torch names them, in the state dict and as attributes: `weight_ih_l0`, `weight_hh_l0`,
    `bias_ih_l0`, `bias_hh_l0`, with `_reverse` at the end for the other direction.
    """

    gates = 1
    """How many times the hidden size a projection has."""
    states = 1
    """How many tensors the hidden state is."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        validate.positive_int(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        validate.check(proj_size == 0, "proj_size", proj_size, "add an nn.Linear after the layer instead")
        validate.check(0 <= dropout <= 1, "dropout", dropout, "give a number from 0 to 1")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, float(dropout), bidirectional
        self.proj_size = 0
        for layer in range(num_layers):
            width = input_size
            if layer > 0:
                width = hidden_size * (1 + bidirectional)
            for end in self._ends():
                for part, size in (("ih", width), ("hh", hidden_size)):
                    linear = nn.Linear(size, self.gates * hidden_size, bias, device=device, dtype=dtype)
                    linear.batch_dim = 1  # type: ignore[assignment]  # steps first, whatever `batch_first` says
                    self.add_module(f"{part}_l{layer}{end}", linear)
        self.reset_parameters()
        self.register_state_dict_post_hook(_torch_names)
        self.register_load_state_dict_pre_hook(_own_names)

    def reset_parameters(self) -> None:
        """Uniform on [-1/sqrt(hidden_size), 1/sqrt(hidden_size)], as torch draws them."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: there is no fused copy of the weights."""

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of every layer and direction, in torch's order."""
        kinds = ["weight"]
        if self.bias:
            kinds.append("bias")
        ends = [f"l{layer}{end}" for layer in range(self.num_layers) for end in self._ends()]
        pairs = [(self.get_submodule(f"ih_{end}"), self.get_submodule(f"hh_{end}")) for end in ends]
        return [[linear.get_parameter(kind) for kind in kinds for linear in pair] for pair in pairs]

    def cell(self, projected: Tensor, recurrent: nn.Module, state: State) -> State:
        """The next state from the projected input of a step and the state before it."""
        raise NotImplementedError

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | State | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor | State]:
        """Output and last state, as torch's layer of the same name returns them."""
        if isinstance(input, PackedSequence):  # steps first, in the caller's order of examples
            x, lengths = pad_packed_sequence(input)
            mask = torch.arange(len(x))[:, None, None] < lengths[:, None]  # where a sequence has an entry
            y, last = self._run(x, self._start(x, hx), mask.to(x.device, non_blocking=True))
            return _packed_like(y, lengths, input), last
        remedy = "give a batch of sequences (three dimensions), or a PackedSequence"
        validate.check(input.dim() == 3, "input.shape", tuple(input.shape), remedy)
        if not self.batch_first:
            return self._run(input, self._start(input, hx), None)
        x = input.transpose(0, 1)
        y, last = self._run(x, self._start(x, hx), None)
        return y.transpose(0, 1), last

    def _run(self, x: Tensor, start: State, mask: Tensor | None) -> tuple[Tensor, Tensor | State]:
        """All layers, one after the other, over (steps, examples, features)."""
        last: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for end in self._ends():
                state = tuple(piece[len(last)] for piece in start)
                y, state = self._direction(f"l{layer}{end}", x, state, mask, backwards=bool(end))
                outputs.append(y)
                last.append(state)
            x = torch.cat(outputs, -1)
            if self.dropout and self.training and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout)
        state = tuple(torch.stack(pieces) for pieces in zip(*last, strict=True))
        if self.states == 1:
            return x, state[0]
        return x, state

    def _direction(
        self, end: str, x: Tensor, state: State, mask: Tensor | None, backwards: bool
    ) -> tuple[Tensor, State]:
        """One layer in one direction; a sequence that has ended (or not begun) keeps its state."""
        projected, recurrent = self.get_submodule(f"ih_{end}")(x).unbind(0), self.get_submodule(f"hh_{end}")
        outputs: list[Tensor] = [x] * len(projected)
        for t in sorted(range(len(projected)), reverse=backwards):
            new = self.cell(projected[t], recurrent, state)
            if mask is None:
                state, outputs[t] = new, new[0]
            else:
                state = tuple(torch.where(mask[t], n, o) for n, o in zip(new, state, strict=True))
                outputs[t] = torch.where(mask[t], new[0], 0.0)
        return torch.stack(outputs), state

    def _start(self, x: Tensor, hx: Tensor | State | None) -> State:
        shape = (self.num_layers * (1 + self.bidirectional), x.shape[1], self.hidden_size)
        if hx is None:
            return (x.new_zeros(shape),) * self.states
        state = tuple(hx)
        if isinstance(hx, Tensor):
            state = (hx,)
        validate.check(len(state) == self.states, "hx", type(hx).__name__, f"give {self.states} tensors")
        for piece in state:
            validate.shape(shape, hx=piece)
        return state

    def _ends(self) -> tuple[str, ...]:
        if self.bidirectional:
            return "", "_reverse"
        return ("",)

    def __getattr__(self, name: str) -> Any:
        kind, _, part = name.partition("_")
        modules = self.__dict__.get("_modules", {})
        if kind in ("weight", "bias") and part in modules:
            return modules[part].get_parameter(kind)
        return super().__getattr__(name)


class RNN(_Recurrent):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh), or with relu: a drop-in for `nn.RNN`.

    >>> theirs = nn.RNN(3, 4, batch_first=True)
    >>> ours = RNN(3, 4, batch_first=True)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(2, 5, 3)
    >>> torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-6)
    True
    """

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **kwargs: Any) -> None:
        if len(args) > 3 and isinstance(args[3], str):  # torch's fourth argument
            nonlinearity, args = args[3], (*args[:3], *args[4:])
        validate.one_of(("tanh", "relu"), nonlinearity=nonlinearity)
        super().__init__(*args, **kwargs)
        self.nonlinearity = nonlinearity
        self._function: Callable[[Tensor], Tensor] = {"tanh": torch.tanh, "relu": torch.relu}[nonlinearity]

    def cell(self, projected: Tensor, recurrent: nn.Module, state: State) -> State:
        """One step."""
        return (self._function(projected + recurrent(state[0])),)


class LSTM(_Recurrent):
    """Gates i, f, g, o; c_t = f c_(t-1) + i g and h_t = o tanh(c_t): a drop-in for `nn.LSTM`.

    >>> sorted(LSTM(3, 4).state_dict())
    ['bias_hh_l0', 'bias_ih_l0', 'weight_hh_l0', 'weight_ih_l0']
    """

    gates, states = 4, 2

    def cell(self, projected: Tensor, recurrent: nn.Module, state: State) -> State:
        """One step."""
        i, f, g, o = (projected + recurrent(state[0])).chunk(4, -1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class GRU(_Recurrent):
    """Gates r, z; n_t = tanh(x_n + r h_n) and h_t = (1 - z) n_t + z h_(t-1): a drop-in for `nn.GRU`.

    >>> GRU(3, 4, bidirectional=True)(torch.zeros(5, 2, 3))[0].shape
    torch.Size([5, 2, 8])
    """

    gates = 3

    def cell(self, projected: Tensor, recurrent: nn.Module, state: State) -> State:
        """One step."""
        x_r, x_z, x_n = projected.chunk(3, -1)
        h_r, h_z, h_n = recurrent(state[0]).chunk(3, -1)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
        return ((1 - z) * n + z * state[0],)


def _packed_like(output: Tensor, lengths: Tensor, like: PackedSequence) -> PackedSequence:
    """Packed again, in the order of the input."""
    order = like.sorted_indices
    if order is not None:
        output, lengths = output.index_select(1, order), lengths[order.cpu()]
    data = pack_padded_sequence(output, lengths).data
    return PackedSequence(data, like.batch_sizes, order, like.unsorted_indices)


def _names(module: nn.Module, prefix: str) -> list[tuple[str, str]]:
    """Every parameter's own name, such as `ih_l0.weight`, and torch's, `weight_ih_l0`."""
    kinds = [(part, kind) for part in module._modules for kind in ("weight", "bias")]
    return [(f"{prefix}{part}.{kind}", f"{prefix}{kind}_{part}") for part, kind in kinds]


def _torch_names(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    """For those who read a state dict."""
    for own, name in _names(module, prefix):
        if own in state:
            state[name] = state.pop(own)


def _own_names(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """For a state dict that is loaded."""
    for own, name in _names(module, prefix):
        if name in state:
            state[own] = state.pop(name)
