#!/usr/bin/env python3
"""Take pictures of a running job's page in a headless Chromium.

    scripts/page_pictures.py JOB OUT.png [--size 1280x1500] [--dark] [--phone] [--wait TEXT]

--wait: take it when the table of replicas shows this text.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ftrun.tools.status.once import StatusQuery
from ftrun.tools.status.weblink import show_link
from tests.web.browser import Browser

SETTLE_S = 2.5


async def _take(options: argparse.Namespace) -> None:
    link = io.StringIO()
    show_link(StatusQuery(job_id=options.job), link)
    width, height = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory(prefix="ftrun-") as directory:
        async with Browser(Path(directory)) as browser:
            await browser.look(width, height, "dark" if options.dark else "light", options.phone)
            await browser.open(link.getvalue().split()[0])
            await browser.until("document.getElementById('picture')?.hidden === false")
            if options.wait:
                words = json.dumps(options.wait)
                await browser.until(
                    f"document.getElementById('rows').innerText.includes({words})", 300.0
                )
            else:
                await asyncio.sleep(SETTLE_S)  # Until two more events have been drawn.
            await browser.picture(options.out)
            print(f"{options.out}: {options.out.stat().st_size} bytes", *browser.problems)


def main() -> None:
    """Read the command line, take the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="1280x1500")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true")
    parser.add_argument("--wait")
    asyncio.run(_take(parser.parse_args()))


if __name__ == "__main__":
    main()
