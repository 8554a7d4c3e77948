"""The reasons why a lost worker cannot be replaced alone, so that all workers are restarted.

Each reason is also a number, which a worker writes into its word of the board (snapshots/board.py).
"""

from __future__ import annotations

from enum import IntEnum

GROUPS_MAX = 32
"""The limit for one rank: process groups that have several ranks."""


class Fall(IntEnum):
    """A reason; 0 is none. ``words``: the end of "… cannot be replaced alone: "."""

    NO_GENERATION = 1
    LOG_FULL = 2
    TOO_NEW = 3
    INPUT = 4
    PEER_LOG = 5
    OTHER_CALL = 6
    CALL = 7
    DIES_AGAIN = 8
    LATE = 9
    NO_MEMORY = 10
    SCRIPT = 11
    DEVICE = 12
    GROUPS = 13
    LATE_GROUP = 14
    DEEPSPEED = 15
    MEGATRON = 16
    PIPELINE = 17
    IN_FLIGHT = 18
    NODES = 20
    OTHER_INPUT = 22
    NO_MODEL = 23
    STAYS = 24
    SLOW = 25
    STEP_LOST = 26
    QUORUM = 27
    MANAGER = 28
    APART = 29
    UNLIKE = 30
    EXPLICIT = 31
    SAME_STEP = 32
    CORRUPTED = 33

    @property
    def words(self) -> str:
        """What has happened, and what the user can do."""
        return _WORDS[self]

    def because(self, why: str) -> str:
        """``words`` with a detail that a worker has found; "": there is no detail."""
        if not why:
            return self.words
        return f"{_UNKNOWN}: {why}" if self is Fall.SCRIPT else f"{self.words} ({why})"


_UNKNOWN = "ftrun cannot follow this script"

_WORDS = {
    Fall.NO_GENERATION: "it had no complete snapshot in memory yet",
    Fall.LOG_FULL: "the results of its step's collectives did not fit into its log in memory",
    Fall.INPUT: "another worker no longer has the input of a collective that must be repeated",
    Fall.PEER_LOG: "another worker's log no longer has its part of a collective",
    Fall.OTHER_CALL: (
        "the repeated step made another collective than before; such a script is not deterministic"
    ),
    Fall.OTHER_INPUT: (
        "the repeated step computed other values than before; such a script is not deterministic, "
        "or trains with something that ftrun does not know"
    ),
    Fall.NO_MODEL: (
        "the script trains without DistributedDataParallel, fully_shard and parallelize_module, so "
        "ftrun does not know its steps"
    ),
    Fall.CALL: (
        "the script makes a call that cannot be repeated (send, recv, or with sparse tensors)"
    ),
    Fall.DIES_AGAIN: "its replacements died before they had caught up",
    Fall.CORRUPTED: "its gradients since then are in the others' averages",
    Fall.SAME_STEP: "its replacement has died in the same step",
    Fall.LATE: "the others have waited for its replacement for too long",
    Fall.STAYS: "another worker has not left its broken process group for too long",
    Fall.APART: "since it was replaced the workers of a group wait in calls that cannot meet",
    Fall.NO_MEMORY: "there is too little memory for a snapshot of each worker",
    Fall.SCRIPT: f"{_UNKNOWN}; a line of a worker says why",
    Fall.TOO_NEW: (
        "another worker was behind its newest snapshot, and its log no longer leads there from the "
        "one before"
    ),
    Fall.DEVICE: ("memory snapshots are for process groups of Gloo on CPUs, and of NCCL on GPUs"),
    Fall.GROUPS: f"a worker is in more than {GROUPS_MAX} process groups",
    Fall.LATE_GROUP: "the script has made a process group after its first step",
    Fall.DEEPSPEED: (
        "ftrun does not know where DeepSpeed's engine and ZeRO keep their parts of the state"
    ),
    Fall.MEGATRON: (
        "ftrun does not know Megatron's gradient buffers, random states and sends between stages"
    ),
    Fall.IN_FLIGHT: (
        "the script waits for an asynchronous collective only after the place at which a step may "
        "begin again"
    ),
    Fall.PIPELINE: (
        "a pipeline schedule (torch.distributed.pipelining) sends from stage to stage, and ftrun "
        "cannot repeat a send or a receive"
    ),
    Fall.NODES: "its node is lost, and its log with it",
    Fall.SLOW: (
        "the others would train on without its replica before a replacement is ready, judging by "
        "the time that its script's set-up or an earlier replacement took"
    ),
    Fall.STEP_LOST: "its replica has just lost a step, and its snapshot is older",
    Fall.QUORUM: "a replica has just joined or left, and its snapshot is older",
    Fall.EXPLICIT: (
        "the script makes a Manager, and ftrun knows that in time only with --inject explicit"
    ),
    Fall.UNLIKE: "its replica's parameters are not those of the others",
    Fall.MANAGER: "ftrun cannot repeat what the script does with its Manager; a line says what",
}
