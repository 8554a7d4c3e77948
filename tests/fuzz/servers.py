"""Whole servers, fed with damaged bytes over real sockets: they must live, answer, and stay small.

Not here: how each is fed (feeding.py, lighthouses.py, torchft_lighthouse.py, hosted.py), readers
(targets.py).
"""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.feeding import Server
from tests.fuzz.hosted import HOSTED, HostedBytes
from tests.fuzz.lighthouses import LighthouseBytes, LighthouseHttp, LighthouseMessages
from tests.fuzz.torchft_lighthouse import TorchftLighthouse


def servers(directory: Path) -> list[Server]:
    """All servers; files go below ``directory``."""
    return [
        *(LighthouseMessages(directory, known) for known in (True, False)),
        *(LighthouseBytes(directory, known) for known in (True, False)),
        *(LighthouseHttp(directory, known) for known in (True, False)),
        TorchftLighthouse(directory),
        *(HostedBytes(directory, kind, known) for kind in HOSTED for known in (True, False)),
    ]
