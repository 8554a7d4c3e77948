#!/usr/bin/env python3
"""Fuzz one reader of outside bytes, guided by coverage, with atheris (extra `fuzz`).

    scripts/fuzz_coverage.py "codec" 60          for 60 seconds
    scripts/fuzz_coverage.py --list

It starts from inputs of scripts/fuzz.py and ends at the first finding, which it writes to a file.
A declared error is no finding.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

CORPUS = 300
BYTES_MAX = 4096


def main() -> int:
    """Import our code instrumented, and hand over to atheris, which ends the process."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install -e '.[fuzz]'", file=sys.stderr)
        return 2
    # Libraries are not instrumented: only our code is tested.
    with atheris.instrument_imports(include=["ftrun"]):
        from tests.fuzz.targets import targets

    directory = Path(tempfile.mkdtemp(prefix="ftrun-fuzz-"))
    known = {target.name: target for target in targets(directory)}
    if len(sys.argv) != 3 or sys.argv[1] not in known:
        print("\n".join(known))
        return 0 if sys.argv[1:] == ["--list"] else 2
    logging.disable(logging.CRITICAL)
    target = known[sys.argv[1]]
    corpus = directory / "corpus"
    corpus.mkdir()
    for number in range(CORPUS):
        data = target.make(Random(f"coverage/{number}"))
        (corpus / str(number)).write_bytes(data[:BYTES_MAX])

    def feed(data: bytes) -> None:
        target.feed(data)

    limits = [f"-max_total_time={int(sys.argv[2])}", f"-max_len={BYTES_MAX}", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", str(corpus)], feed)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
