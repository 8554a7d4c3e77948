#!/usr/bin/env python3
"""Fuzz a real lighthouse's HTTP routes by its OpenAPI document (schemathesis; extra `fuzz`).

    scripts/fuzz_http.py [--examples 100]        for each operation and phase

With the token: no server errors, only described answers. Without: only refusals. Exit code 1 if an
answer differs from the document, or the lighthouse has died.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ftrun.lighthouse.openapi import openapi
from ftrun.protocol.auth import bearer, new_token
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess


def main() -> int:
    """Start a lighthouse, run schemathesis, check that the lighthouse lives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftrun-") as directory:
        document = Path(directory) / "openapi.json"
        document.write_text(json.dumps(openapi("fuzzed")))
        with LighthouseProcess(Path(directory), new_token()) as lighthouse:
            config = Path(directory) / "schemathesis.toml"
            # In a file of mode 0600 and not on a command line (X4).
            config.touch(mode=0o600)
            config.write_text(f'[headers]\nAuthorization = "{bearer(lighthouse.token)}"\n')
            code = subprocess.run(
                [
                    str(Path(sys.executable).with_name("schemathesis")),
                    "--config-file", str(config), "run", str(document),
                    "--url", f"http://{lighthouse.http}", "--max-examples", str(options.examples),
                    # A stream ends after most of a minute: longer than a fuzzer waits.
                    "--no-color", "--exclude-path", "/events",
                ],
                cwd=directory, env={**os.environ, "PYTHONPATH": ""}, check=False,
            ).returncode  # fmt: skip
            alive = "lighthouse" in lighthouse.status()
            print(f"the lighthouse {'lives' if alive else 'does not answer'}")
    return 0 if code == 0 and alive else 1


if __name__ == "__main__":
    sys.exit(main())
