"""What the documentation site does beyond MkDocs: source pages, the changelog, formulas without scripts.

* A mention of a file of the repository (`tests/...py` in backticks, or a link out of docs/) leads to a page with it.
* CHANGELOG.md becomes a page; result pages are in the menu once they are generated.
* `<!-- api: isthmus.privacy -->` on a reference page stands for the public names of that module, or those that follow;
  `api+inherited` shows what a class has from its bases too.
* Formulas are written as MathML while the site is built, so that a browser needs no script and no network for them.
"""

from __future__ import annotations

import ast
import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDERS = "tests|lab|examples|isthmus|tools"
MENTION = re.compile(rf"(?<![\[`\w/])`((?:{FOLDERS})/[\w./-]+\.\w+)`(?!\])")
LINK = re.compile(r"\]\(((?:\.\./)+[\w./-]+)(#[\w-]+)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".jsonl": "json", ".json": "json"}
CONSTANTS = {"OPERATIONS", "CONSTANTS", "RULES"}
"""Public tables that a page of the reference does not print."""
API = re.compile(r"^<!-- api(\+inherited)?: ([\w.]+)((?: \w+)*) -->$", re.M)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)


def mentioned(text: str, folder: str) -> set[str]:
    """The files outside docs/ that a page of docs/`folder` names, relative to the repository."""
    prose = FENCE.sub("", text)
    named = {match[1] for match in MENTION.finditer(prose)}
    linked = {posixpath.normpath(posixpath.join("docs", folder, match[1])) for match in LINK.finditer(prose)}
    outside = {path for path in linked if not path.startswith(("docs/", ".."))}
    return {path for path in named | outside if (ROOT / path).is_file()}


def source_page(path: str) -> str:
    """The page that shows a file of the repository."""
    text = (ROOT / path).read_text(encoding="utf-8")
    fence = "````````"
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# `{path}`\n\n"
    return f"{head}{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n{fence}\n"


def on_config(config: Any) -> Any:
    """Leave pages that are generated, or come with a release, out of the menu where they are not there."""
    missing = {
        name for name in ("reproduction.md", "benchmarks.md", "release.md") if not (ROOT / "docs" / name).exists()
    }
    config.nav = without(config.nav, missing)
    return config


def without(entries: list[Any], missing: set[str]) -> list[Any]:
    """A menu without some pages."""
    collected = []
    for entry in entries:
        for title, inside in entry.items():
            if isinstance(inside, list):
                collected.append({title: without(inside, missing)})
            elif inside not in missing:
                collected.append({title: inside})
    return collected


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog and a page for every file that some page names."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    changelog = re.sub(r"\]\(docs/", "](", changelog)
    files.append(File.generated(config, "changelog.md", content=changelog))
    names: set[str] = set()
    for file in files.documentation_pages():
        names |= mentioned(file.content_string, posixpath.dirname(file.src_uri))
    for name in sorted(names):
        files.append(File.generated(config, f"source/{name}.md", content=source_page(name)))
    return files


def public_names(module: str) -> list[str]:
    """`__all__` of a module, read without importing it; without one, what it defines and has no underscore.

    Names that a module only loads when they are asked for have their place elsewhere, and are left out.
    """
    folder = ROOT / Path(*module.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    values = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    imported = [alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    listed = list[str]()
    for node in body:  # `__all__ = [...]`, and groups that are added to it
        if isinstance(node, ast.Assign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "__all__" and isinstance(node.value, ast.List):
                listed += ast.literal_eval(node.value)
    if listed:
        return [name for name in listed if name in values + imported and name not in CONSTANTS]
    return [name for name in values if not name.startswith("_")]


def directives(match: re.Match[str]) -> str:
    """The directives of mkdocstrings that an `api` comment stands for."""
    names = match[3].split() or public_names(match[2])
    options = "    options:\n      inherited_members: true\n" if match[1] else ""
    return "\n".join(f"::: {match[2]}.{name}\n{options}" for name in names)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead mentions of files, and links out of docs/, to the pages with their text."""
    here = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri.startswith("source/"):
        return markdown

    def to(path: str) -> str:
        return posixpath.relpath(f"source/{path}.md", here or ".")

    def mention(match: re.Match[str]) -> str:
        return f"[`{match[1]}`]({to(match[1])})" if (ROOT / match[1]).is_file() else match[0]

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", here, match[1]))
        outside = not path.startswith(("docs/", "..")) and (ROOT / path).is_file()
        return f"]({to(path)})" if outside else match[0]

    markdown = API.sub(directives, markdown)
    pieces, at = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [LINK.sub(link, MENTION.sub(mention, markdown[at : fence.start()])), fence[0]]
        at = fence.end()
    return "".join([*pieces, LINK.sub(link, MENTION.sub(mention, markdown[at:]))])


def formula(match: re.Match[str]) -> str:
    """MathML of one formula that arithmatex has marked."""
    tex = html.unescape(match[2])
    mathml = convert(tex, display="block" if match[1] == "div" else "inline")
    if "\\" in mathml:
        raise PluginError(f"a command in this formula is not known: {tex}")
    return f'<{match[1]} class="formula">{mathml}</{match[1]}>'


def on_page_content(html_text: str, page: Any, config: Any, files: Files) -> str:
    """Formulas as MathML, and every table in a box that scrolls by itself on a narrow screen."""
    marked = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
    return marked.sub(formula, html_text)


def on_post_build(config: Any) -> None:
    """The index of the search as a script too: a page that is opened from the disk cannot read a JSON file."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    if index.exists():
        text = index.read_text(encoding="utf-8")
        index.with_suffix(".js").write_text(f"var __index = {text}", encoding="utf-8")
