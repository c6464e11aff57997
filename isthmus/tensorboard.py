"""Diagnostics to TensorBoard: scalars of public and released values, spectra of public gradients.

TensorBoard is an extra: pip install -e '.[tensorboard]' in a clone of Isthmus.  It is imported when a writer is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.base import validate
from isthmus.diagnostics import Spectrum


class TensorBoardWriter:
    """Writes event files into a folder; a sink for `isthmus.diagnostics.Tracker`, and a context manager.

        with TensorBoardWriter("runs/a") as writer:
            tracker = Tracker(sink=writer)

    Write what is public or was released only: event files carry no noise of their own.

    logdir  the folder, made when it is missing
    prefix  stands before every name, as in "diagnostics/noise_to_signal"

    Raises ImportError, which names the extra, when TensorBoard is not installed.
    """

    def __init__(self, logdir: str | Path, prefix: str = "diagnostics") -> None:
        self.logdir, self.prefix = Path(logdir), prefix
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(f"TensorBoardWriter needs TensorBoard; {validate.extra('tensorboard')}") from error
        self._writer: Any = SummaryWriter(log_dir=str(logdir))

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """One point on each curve; None (not measured), NaN and infinity are left out, for they draw nothing."""
        validate.non_negative_int(step=step)
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(f"{self.prefix}/{name}", value, step)

    def spectrum(self, step: int, spectrum: Spectrum, top: int = 10) -> None:
        """The first eigenvalues, their shares, and the effective and stable rank of a public spectrum."""
        validate.check(isinstance(spectrum, Spectrum), "spectrum", spectrum, "give what spectrum(public) returned")
        validate.positive_int(top=top)
        table = spectrum.table()
        named = {"effective_rank": spectrum.effective_rank, "stable_rank": spectrum.stable_rank}
        for k, value, share in list(zip(table["k"], table["eigenvalue"], table["share"], strict=True))[:top]:
            named |= {f"eigenvalue_{k:03d}": value, f"share_{k:03d}": share}
        self.scalars(step, {f"spectrum/{name}": value for name, value in named.items()})

    def flush(self) -> None:
        """Put everything on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and end the event file."""
        self._writer.close()

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
