"""docs/STATUS.md names every field of the status, and no other; docs/ACCOUNT.md every use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

from ftrun.core.books.uses import LOST, NOT_COUNTED, Use
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.status import SCHEMA, Status

DOCS = Path(__file__).parents[3] / "docs"


def types_of(kind: Any) -> dict[str, set[str]]:
    """Each TypedDict that a status consists of, by its name on the page, with its fields."""
    found: dict[str, set[str]] = {}
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        found[kind.__name__.removesuffix("Status") or "Status"] = set(hints)
        for hint in hints.values():
            found |= types_of(hint)
    for inner in get_args(kind):
        found |= types_of(inner)
    return found


def test_the_page_and_the_types_have_the_same_fields() -> None:
    page = (DOCS / "STATUS.md").read_text()
    written = {}
    for section in page.split("\n## ")[1:]:
        name, _, rest = section.partition("\n")
        written[name] = set(re.findall(r"^\| `(\w+)` \|", rest, re.MULTILINE))
    assert written == types_of(Status)
    assert f"`{SCHEMA}`" in page
    assert all(f"`{phase.value}`" in page for phase in Phase)


def test_the_uses_are_those_of_the_account() -> None:
    page = (DOCS / "ACCOUNT.md").read_text()
    rows = dict(re.findall(r"^\| `([\w ]+)` \|.*\| ?([\w ]*?) ?\|$", page, re.MULTILINE))
    words = {use.value: "yes" if use in LOST else "" for use in Use}
    words |= {use.value: "not counted" for use in NOT_COUNTED}
    assert rows == words
