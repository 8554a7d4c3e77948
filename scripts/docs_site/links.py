"""The place of a file in the site, and links between files as links between pages.

Documents link to each other by their paths in the repository, so that they can be read there. The
site has all pages side by side: README.md is ``index.md``, the other documents of the root and of
.github/ keep their names, and an example is a page in ``examples/``. Not here: mkdocs (hooks.py).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRONT = ("README.md", "index.md")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|//)(?P<path>[^)\s#]*)(?P<anchor>#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^ *```")
HEADING = re.compile(r"^#+ +(.*)$")
COMMENT_LINE = re.compile(r"^<!--.*-->$")


def documents() -> list[str]:
    """Every document that people read, by its path in the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / ".github/CODE_OF_CONDUCT.md"]
    return sorted(str(path.relative_to(ROOT)) for path in found if path.is_file())


def examples() -> list[str]:
    """Every example, by its path in the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py"))


def page_of(path: str) -> str:
    """The place in the site of a file of the repository."""
    directory, _, name = path.rpartition("/")
    if path == FRONT[0]:
        return FRONT[1]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if directory == "examples":
        return f"examples/{name.removesuffix('.py')}.md"
    return name


def target_of(source: str, link: str) -> str:
    """The file of the repository to which ``source`` links; itself if the link is an anchor."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link)) if link else source


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is prose: not in a block of code."""
    in_code = False
    for line in text.splitlines():
        is_fence = bool(FENCE.match(line))
        yield line, not (in_code or is_fence)
        in_code ^= is_fence


def links(text: str) -> Iterator[tuple[str, str]]:
    """(path, anchor) of each relative link; either may be empty."""
    for line, is_prose in prose(text):
        if is_prose:
            for match in LINK.finditer(line):
                yield match["path"], (match["anchor"] or "").removeprefix("#")


def anchors(text: str) -> set[str]:
    """The anchor of each heading, as GitHub and the site derive it from the heading's words."""
    found: set[str] = set()
    for line, is_prose in prose(text):
        if is_prose and (match := HEADING.match(line)):
            words = re.sub(r"[^\w\- ]", "", match[1].strip().lower())
            found.add(words.replace(" ", "-"))
    return found


def rewrite(text: str, source: str) -> str:
    """A document with the site's links; a line that is a comment is set apart from a table."""
    here = posixpath.dirname(page_of(source))

    def moved(match: re.Match[str]) -> str:
        if not match["path"]:
            return match[0]
        page = page_of(target_of(source, match["path"]))
        return posixpath.relpath(page, here or ".") + (match["anchor"] or "")

    lines = []
    for line, is_prose in prose(text):
        lines.append(LINK.sub(moved, line) if is_prose else line)
        if is_prose and COMMENT_LINE.match(line):
            lines.append("")
    return "\n".join(lines) + "\n"
