"""Docstrings as they are written here, made into Markdown for the reference pages.

They have three habits: lines of `name   what it is` for arguments, doctests without a heading, and formulas in plain
text. Arguments become a list, doctests become blocks of code, and the rest stays as it is.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\*{0,2}[A-Za-z_][\w.,=*| ]*?) {2,}(\S.*)$")


def markdown(text: str) -> str:
    """A docstring as Markdown."""
    paragraphs: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        lines = paragraph.split("\n")
        if lines[0].startswith(">>>"):
            paragraphs.append("```pycon\n" + paragraph + "\n```")
        elif ARGUMENT.match(lines[0]):
            paragraphs.append("\n".join(_arguments(lines)))
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _arguments(lines: list[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        match = ARGUMENT.match(line)
        if match:
            items.append(f"- `{match[1]}`: {match[2]}")
        elif items:
            items[-1] += " " + line.strip()
        else:
            items.append(line)
    return items


class PlainDocstrings(griffe.Extension):
    """Rewrites every docstring while it is loaded."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for every module, class, function and attribute that is read."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
