"""torchft's replica groups in words: one line for each room, one row for each replica.

Pure; the terminal and the screen lay them out (view.py, screen/torchft.py). Text from the network
is made plain here.
"""

from __future__ import annotations

from ftrun.core.torchft_quorum.status import TorchftReplicaStatus, TorchftRoomStatus
from ftrun.tools.status.words import age, counted, duration, plain

COLUMNS = ("replica", "state", "step", "ranks", "failed", "seen", "manager")
RIGHT = ("step", "ranks", "failed", "seen")
NAME_CHARS_MAX = 44


def room_words(room: TorchftRoomStatus) -> str:
    """The room's quorum, and what is waited for."""
    name = f"torchft, room {plain(room['room'])}: "
    if not room["members"]:
        found = f"{name}no quorum yet"
    else:
        when = "of an earlier lighthouse"
        if room["age_s"] is not None:
            when = f"asked for {duration(room['age_s'])} ago"
        found = f"{name}quorum {room['quorum_id']} of {counted(room['members'], 'replica')}, {when}"
    return f"{found}; the next one waits: {room['waiting']}" if room["waiting"] else found


def replica_state(replica: TorchftReplicaStatus) -> str:
    """Its state in one or two words."""
    if replica["silent_s"] is None:
        return "silent"
    if replica["is_waiting"]:
        return "joins"
    return "member" if replica["is_member"] else "lives"


def replica_cells(replica: TorchftReplicaStatus) -> tuple[str, ...]:
    """The row of a replica, in the order of ``COLUMNS``."""
    step, ranks, seen = replica["step"], replica["world_size"], replica["silent_s"]
    return (
        plain(replica["replica_id"], NAME_CHARS_MAX),
        replica_state(replica),
        "-" if step is None else f"{step:,}",
        "-" if ranks is None else str(ranks),
        str(replica["commit_failures"]),
        "-" if seen is None else age(seen),
        plain(replica["address"]) or "-",
    )


def left_out(room: TorchftRoomStatus) -> str:
    """Words for the replicas that are not shown; empty: there are none."""
    number = room["replicas_left_out"]
    return f"and {counted(number, 'replica')} more" if number else ""
