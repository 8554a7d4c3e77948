"""Arguments of the Manager that exist so that torchft's scripts run, but that the launcher decides.

An argument that contradicts the launcher is refused. For one without effect a warning is shown
once, because its author expects an effect. Not here: the arguments that the Manager uses
(manager.py).
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta

from ftrun.base.errors import UserError
from ftrun.training.context import WorkerContext
from ftrun.training.seats import Seat

log = logging.getLogger(__name__)

TIMEOUT_SEC_ENV = "TORCHFT_TIMEOUT_SEC"
QUORUM_TIMEOUT_SEC_ENV = "TORCHFT_QUORUM_TIMEOUT_SEC"
CONNECT_TIMEOUT_SEC_ENV = "TORCHFT_CONNECT_TIMEOUT_SEC"
QUORUM_RETRIES_ENV = "TORCHFT_QUORUM_RETRIES"
MANAGER_PORT_ENV = "TORCHFT_MANAGER_PORT"
NEVER_READ = {
    "TORCHFT_USE_OTEL": "ftrun attaches no OpenTelemetry exporter to the loggers torchft_quorums, "
    "torchft_commits and torchft_errors; add a handler to them, or read docs/METRICS.md",
    "TORCHFT_OTEL_RESOURCE_ATTRIBUTES_JSON": "its attributes are on no record",
    "TORCHFT_TRIGGER_FR_ON_ABORT": "an abort asks NCCL for no trace",
    "TORCH_FR_DUMP_TEMP_FILE": "it is left as it is, and not set anew for each quorum",
}
"""Variables that torchft reads and ftrun does not, and what that means."""
FALSE = ("", "0", "false")
USED_IN_THREADS = frozenset({"store_addr", "store_port", "lighthouse_addr"})


def seconds_of(variable: str, given: timedelta) -> float:
    """A timeout of the Manager in seconds. ``variable`` overrides ``given`` if it is set.

    Raises:
        UserError: the variable holds no whole number of seconds.
    """
    text = os.environ.get(variable)
    if text is None:
        return given.total_seconds()
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"{variable}={text!r}: give whole seconds, 1 or more, or unset it")
    return float(int(text))


def stated_seconds(variable: str, given: timedelta | None) -> float | None:
    """As ``seconds_of``; None: neither the script nor the variable states a timeout."""
    if given is None and variable not in os.environ:
        return None
    return seconds_of(variable, given or timedelta())


def refuse_contradictions(context: WorkerContext, rank: int | None, world_size: int | None) -> None:
    """Refuse a rank or world size that is not the launcher's.

    Raises:
        UserError: ``rank`` or ``world_size`` differs from the launcher's.
    """
    places = (
        ("rank", rank, context.group_rank),
        ("world_size", world_size, context.workers_per_replica),
    )
    for name, given, own in places:
        if given is not None and given != own:
            raise UserError(
                f"Manager({name}={given}): this worker's is {own}, because a replica group looks "
                f"like a whole job to its script. Leave {name} out, or give "
                f"int(os.environ[{name.upper()!r}])."
            )


def show_unused(seat: Seat, **given: object) -> None:
    """Warn of given arguments that have no effect. ``None`` and 0 mean not given."""
    used = USED_IN_THREADS if seat.is_thread else frozenset()
    unused = {name: value for name, value in given.items() if name not in used}
    names = [name for name, value in unused.items() if value is not None and value != 0]
    names += [v for v in (QUORUM_RETRIES_ENV, MANAGER_PORT_ENV) if os.environ.get(v, "0") != "0"]
    if names and seat.context.group_rank == 0:
        log.warning(
            "Manager: %s: no effect under ftrun, because its agent decides about addresses, "
            "heartbeats and how often a quorum is asked for.",
            ", ".join(names),
        )


def show_unread(seat: Seat) -> None:
    """Warn in one line of torchft's variables that are set and have no effect."""
    found = [name for name in NEVER_READ if os.environ.get(name, "").lower() not in FALSE]
    if found and seat.context.group_rank == 0:
        reasons = [NEVER_READ[name] for name in found]
        log.warning("%s: no effect under ftrun: %s", ", ".join(found), "; ".join(reasons))
