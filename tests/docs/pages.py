"""The pages of the documentation, and what stands in them: code blocks, headings, links."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")]
TEXTS = {path: path.read_text(encoding="utf-8") for path in [*FIRST, *sorted((ROOT / "docs").rglob("*.md"))]}
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.M | re.S)
NOTE = re.compile(r"<!-- (slow|needs): ?([^>]*?) ?-->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: where it stands, and the note in the comment before it (`slow`, `needs: packages`)."""

    page: str
    line: int
    language: str
    code: str
    slow: bool
    needs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> Iterator[Block]:
    """All blocks in one language, page by page."""
    for path, text in TEXTS.items():
        for match in FENCE.finditer(text):
            if match["language"] == language:
                line = text.count("\n", 0, match.start()) + 1
                code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.M)
                note = NOTE.search(text, 0, match.start())
                kind, said = (note[1], note[2]) if note else ("", "")
                needs = tuple(said.replace(",", " ").split()) if kind == "needs" else ()
                yield Block(str(path.relative_to(ROOT)), line, language, code, kind == "slow", needs)


def prose(text: str) -> str:
    """A page without its blocks and its inline code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the site and code hosts make them."""
    distinct: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", FENCE.sub("", text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode("ascii")
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        count = sum(re.fullmatch(rf"{re.escape(slug)}(_\d+)?", each) is not None for each in distinct)
        distinct.add(f"{slug}_{count}" if count else slug)
    return distinct | set(re.findall(r'id="([\w-]+)"', text)) | set(re.findall(r"\{ ?#([\w-]+) ?\}", text))
