"""``ftrun status --web``: a one-time link to the lighthouse's page, valid for a minute.

The link is printed and no browser is started, because its command line would show the code to
everybody on the machine. Not here: the page (lighthouse/page/), what a code permits
(lighthouse/sessions.py).
"""

from __future__ import annotations

from typing import TextIO

from ftrun.base.errors import ExitCode
from ftrun.protocol.tls import PLAINTEXT
from ftrun.tools.status.client import answer_of, request
from ftrun.tools.status.once import StatusQuery, find_lighthouse


def show_link(query: StatusQuery, out: TextIO | None = None) -> int:
    """Print the link; returns the exit code. Raises as ``show_json``."""
    address, token, tls = find_lighthouse(query)
    name, code, body = request(address, token, "POST", "/links", {}, tls=tls)
    found = answer_of(name, code, body, "code")
    scheme = "http" if tls == PLAINTEXT else "https"
    print(f"{scheme}://{name}/#code={found['code']}", file=out)
    print(f"The link works once, within {found['expires_s']:.0f} s.", file=out)
    return ExitCode.OK
