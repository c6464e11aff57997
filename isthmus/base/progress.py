"""Progress bars that work on a terminal and in a notebook, with widgets or without.

>>> with bar(2, visible=False, unit="round") as steps:
...     steps.update(1)
>>> steps.disable
True
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

with warnings.catch_warnings():  # without ipywidgets a notebook gets the bar as text, and needs no advice
    warnings.filterwarnings("ignore", message="IProgress not found")
    from tqdm.auto import tqdm


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output is no terminal and shows bars all the same."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def bar(total: int, visible: bool | None = None, **options: Any) -> Any:
    """A tqdm bar; `visible=None` shows it on a terminal and in a notebook, and nowhere else."""
    visible = True if visible is None and in_notebook() else visible
    return tqdm(total=total, disable=None if visible is None else not visible, **options)
