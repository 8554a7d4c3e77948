"""The documents hold together: links, anchors and the site's navigation. mkdocs is not needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from docs_site import links
from docs_site.links import ROOT

NAV = re.compile(r"^ +- .*: (\S+\.md)$", re.MULTILINE)
SECTION = re.compile(r"^  - (\w+):\n((?: {6}.*\n)+)", re.MULTILINE)
GENERATED = {"API.md", "CLI.md"}
README_WORDS_MAX, PAGE_WORDS_MAX = 900, 1_500
SHORT = ("TESTING.md", "BENCHMARKS.md")
"""Pages of other sections that answer one question, too."""


def problems(source: str, text: str) -> list[str]:
    """Each link of a document that leads to no file, or to no heading of it."""
    found = []
    for path, anchor in links.links(text):
        target = links.target_of(source, path)
        is_here = target == source
        if not is_here and not (ROOT / target).exists():
            found.append(f"{source}: no {target}")
        elif anchor and target.endswith(".md"):
            content = text if is_here else (ROOT / target).read_text()
            if anchor not in links.anchors(content):
                found.append(f"{source}: no #{anchor} in {target}")
    return found


def test_each_link_and_anchor_of_the_documents_is_there() -> None:
    found = [
        problem
        for source in links.documents()
        for problem in problems(source, (ROOT / source).read_text())
    ]
    assert not found, "\n".join(found)


def test_a_link_or_an_anchor_that_leads_nowhere_is_found() -> None:
    text = "# A `b`, c\n[x](NO.md) [y](#a-b-c) [z](#no)\n```\n[code](NO.md)\n```\n[w](https://a.b)"
    assert problems("docs/X.md", text) == [
        "docs/X.md: no docs/NO.md",
        "docs/X.md: no #no in docs/X.md",
    ]


def test_each_document_is_in_the_navigation_once() -> None:
    entries = sorted(NAV.findall((ROOT / "mkdocs.yml").read_text()))
    assert entries == sorted({*map(links.page_of, links.documents()), *GENERATED})


def test_a_page_that_answers_a_question_is_short() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnot_in_nav:")[0]
    sections = dict(SECTION.findall(nav))
    assert list(sections) == ["Start", "Guides", "Reference", "Inside"]
    limits = dict.fromkeys(
        (*NAV.findall(sections["Start"] + sections["Guides"]), *SHORT), PAGE_WORDS_MAX
    )
    files = {links.page_of(path): ROOT / path for path in links.documents()}
    words = {page: len(files[page].read_text().split()) for page in limits}
    limits |= {"index.md": README_WORDS_MAX}
    assert {page: count for page, count in words.items() if count > limits[page]} == {}


def test_links_become_the_sites() -> None:
    text = "[a](docs/DATA.md#x) ![p](docs/img/p.png) [s](https://a.b) [h](#here)\n"
    moved = "[a](DATA.md#x) ![p](img/p.png) [s](https://a.b) [h](#here)\n"
    assert links.rewrite(text, "README.md") == moved
    text = "[r](../README.md) [e](../examples/train_fsdp.py)\n```\n[c](../README.md)\n```\n"
    moved = "[r](index.md) [e](examples/train_fsdp.md)\n```\n[c](../README.md)\n```\n"
    assert links.rewrite(text, "docs/MANAGER.md") == moved
