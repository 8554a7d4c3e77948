"""Defaults and limits that several packages use, each defined here once.

The default of an option that only ``ftrun run`` uses is in the table of options
(config/options.py). Not here: waits and limits that no option sets (each is defined where it is
used).
"""

from __future__ import annotations

JOIN_TIMEOUT_S = 60.0
HEARTBEAT_TIMEOUT_S = 5.0
ISOLATION_LIMIT_S = 60.0
LIGHTHOUSE_TIMEOUT_S = 1800.0
HANG_TIMEOUT_S = 60.0
GRACE_S = 10.0

LIGHTHOUSE_PORT = 29510
"""For agents; the web server has the next port."""
BIND = f"127.0.0.1:{LIGHTHOUSE_PORT}"

REPLICAS_MAX = 4096

SNAPSHOT_EVERY_S = 300.0
SNAPSHOTS_KEPT = 3
MEMORY_SNAPSHOTS = "auto"
"""The default of --memory-snapshots."""
AS_WRITTEN = "as-written"
"""The default of --data: the script chooses the samples."""
