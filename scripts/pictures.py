#!/usr/bin/env python
"""Draws docs/pictures/status-*.svg: the screen of ``ftrun status``, from Status documents.

    scripts/pictures.py [--out DIR] [--only NAME] [--size 120x36] [--light] [--press "j j enter"]

The documents are those of the tests, of a job of ten replicas on five nodes and of one of a
thousand; the screen that is drawn is the real one.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ftrun.base import clock
from ftrun.tools.status.screen.app import StatusApp
from ftrun.tools.status.source import Picture, State
from tests.unit.tools.status.documents import DOCUMENTS
from tests.unit.tools.status.still import Still

POLLS = 60


async def draw(name: str, size: tuple[int, int], *, is_light: bool = False, press: str = "") -> str:
    """The SVG of one picture."""
    make = DOCUMENTS[name]
    app = StatusApp(Still(), Picture(State.LIVE, make(0), clock.now()), is_light=is_light)
    async with app.run_test(size=size) as pilot:
        for poll in range(1, POLLS + 1):
            app.history.add(make(poll))
        picture = Picture(State.LIVE, make(POLLS), clock.now())
        if name == "waiting":
            now = clock.now()
            picture = Picture(State.GONE, make(POLLS), now - 14.0, "", now, 4.0)
        app.take(picture)
        await pilot.pause()
        if press:
            await pilot.press(*press.split())
            await pilot.pause()
        # Without the fonts that textual would have a reader download.
        found = app.export_screenshot(title="ftrun status")
        return re.sub(r"@font-face \{.*?\}\s*", "", found, flags=re.DOTALL)


def main() -> None:
    """Draw all, or one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--only", choices=sorted(DOCUMENTS))
    parser.add_argument("--size", default="120x36")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--press", default="", help="keys, for another page")
    options = parser.parse_args()
    columns, _, rows = options.size.partition("x")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in [options.only] if options.only else DOCUMENTS:
        size = int(columns), int(rows)
        found = asyncio.run(draw(name, size, is_light=options.light, press=options.press))
        path = options.out / f"status-{name}.svg"
        path.write_text(found, encoding="utf-8")
        print(f"{path}: {len(found) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
