"""One pass of a module on trial: taps that record what passes through them, and how two records are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.gradients.layers.folding import pieces_of
from isthmus.gradients.layers.layers import Layers
from isthmus.gradients.layers.rules import Found, Site
from isthmus.gradients.layers.tap import tap


def altered(x: Tensor, dim: int, rows: Tensor, value: float | None) -> Tensor:
    """A tensor with some examples set to a value; None: replaced by those that follow them."""
    rows = rows.to(x.device)
    if value is None:
        return x.index_copy(dim, rows, x.index_select(dim, (rows + 1) % x.shape[dim]))
    big = torch.finfo(x.dtype).max ** 0.5
    return x.index_fill(dim, rows, value * big if abs(value) == 1 else value)


@dataclass(eq=False)
class Seen:
    """One pass: what each layer gave and got back, examples in front, and what the module returned."""

    names: list[str] = field(default_factory=list)
    given: list[Tensor | None] = field(default_factory=list)
    got: list[Tensor | None] = field(default_factory=list)
    outputs: list[Tensor | None] = field(default_factory=list)

    def differs(self, other: Seen, rows: Tensor) -> str | None:
        """Where two passes differ on some examples."""
        if self.names != other.names:
            return "which layers are called"
        pairs = [
            *(
                (f"the output of layer {s!r}", x, y)
                for s, x, y in zip(self.names, self.given, other.given, strict=True)
            ),
            *(("the module's output", x, y) for x, y in zip(self.outputs, other.outputs, strict=True)),
            *((f"the gradient at layer {s!r}", x, y) for s, x, y in zip(self.names, self.got, other.got, strict=True)),
        ]
        for where, x, y in pairs:
            # lengths that follow the longest example say nothing by themselves
            if x is not None and y is not None and x.shape == y.shape and not _same(x, y, rows):
                return where
        return None


def _same(x: Tensor, y: Tensor, rows: Tensor) -> bool:
    """Equal on some examples, up to the rounding of sums of another length."""
    rows = rows.to(x.device)
    x, y = x.index_select(0, rows), y.index_select(0, rows)
    size = float(x.abs().nan_to_num(0.0, 0.0, 0.0).max()) if x.numel() else 0.0
    return torch.allclose(x, y, rtol=0.0, atol=_rounding(x) * size, equal_nan=True)


def _rounding(x: Tensor) -> float:
    if x.dtype == torch.float64:
        return 1e-12
    if x.element_size() < 4:
        return 4 * torch.finfo(x.dtype).eps
    return 1e-5 if x.device.type == "cpu" else 1e-3


class RecordingLayers(Layers):
    """Taps that record what passes through them, with some examples exchanged for a value."""

    record: Seen | None = None
    rows: Tensor | None = None
    value: float | None = None

    def tap(
        self,
        site: Site,
        output: Tensor,
        dim: int,
        inputs: Sequence[Tensor],
        rows_of: Found,
        feeds: Iterable[str] | None = None,
    ) -> Tensor:
        """The output with a tap that records."""
        if self.record is None:
            return super().tap(site, output, dim, inputs, rows_of, feeds)
        record, place = self.record, len(self.record.given)
        k = pieces_of(output.shape[dim], self.batch) if output.ndim > dim and output.is_floating_point() else 0
        divided = k == 1 or (k > 1 and dim == 0)

        def examples(x: Tensor) -> Tensor:
            x = x.detach().movedim(dim, 0)
            return (x.unflatten(0, (len(x) // k, k)) if k > 1 else x).clone()

        if k > 1:
            self.note_pieces(site, k)
        if divided and self.rows is not None and self.value is not None:
            rows = self.rows if k == 1 else (self.rows[:, None] * k + torch.arange(k)).flatten()
            output = altered(output, dim, rows, self.value)
        record.names.append(site.name)
        record.given.append(examples(output) if divided else None)
        record.got.append(None)

        def push(b: Tensor) -> None:
            record.got[place] = examples(b) if divided else None

        return tap(output, self.anchor, push)


def near(x: Tensor, y: Tensor, slack: float) -> bool:
    """Equal but for a part of their size; what is not finite, or vanishes, tells nothing."""
    x, y = x.double().reshape(-1), y.double().reshape(-1).to(x.device)
    size, gap = float(torch.maximum(x.norm(), y.norm())), float((x - y).norm())
    return not size < float("inf") or gap <= slack * size + 1e-30
