"""The README as a package index shows it: links that are relative in the repository would lead nowhere there.

With a `Source` address among the project's addresses they become absolute; without one only their words are kept.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")


def for_an_index(text: str, source: str | None) -> str:
    """The text with links that work away from the repository."""
    if source is None:
        return LINK.sub(r"\1", text)
    return LINK.sub(rf"[\1]({source.rstrip('/')}/blob/main/\2)", text)


class ReadmeHook(MetadataHookInterface):
    """Called when the metadata of a wheel or an sdist is made."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the rewritten README in."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = (metadata.get("urls") or {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_an_index(text, source)}
