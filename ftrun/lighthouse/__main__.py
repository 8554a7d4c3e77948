"""The lighthouse that an agent starts for itself (own_process.py).

People use ``ftrun lighthouse``.
"""

from __future__ import annotations

import os
import sys

from ftrun.base import linux
from ftrun.lighthouse.embedded import take_embedding, tie_to_parent
from ftrun.protocol.embedding import PARENT_PID


def main() -> int:
    """Tie this process to its agent first, then load everything else."""
    if PARENT_PID not in os.environ:
        print("This is started by ftrun itself. Run: ftrun lighthouse --help", file=sys.stderr)
        return 2
    linux.title_process("ftrun lighthouse")
    tie_to_parent(int(os.environ[PARENT_PID]))
    embedding, stop_fd = take_embedding(os.environ)

    from ftrun.lighthouse.main import run_embedded

    return run_embedded(embedding, stop_fd)


if __name__ == "__main__":
    sys.exit(main())
