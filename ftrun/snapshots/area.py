"""A worker's area of the agent's memory: the state from which its replacement resumes.

Theory of operation. An area holds generations (copies of the worker's state at a step boundary) and
three logs (the result of each collective since then). Log n uses the header words n % 3. All logs
share one memory. A log begins in a free part of it; if it grows into another log, it continues in a
second part. A generation is written to a slot that holds neither of the two newest generations and
that no process holds. Its bytes begin with three words for each process group: the group's name,
the number of calls before the state was copied, and the number of calls before the generation's
place (the begin of its step).

| order of the writes    | so that                                                              |
|------------------------|----------------------------------------------------------------------|
| slot = -1, bytes, slot | a worker that dies during a copy leaves the previous generation      |
| bytes, entry, count    | each entry that the count covers is complete                         |

A process that reads a generation while the worker keeps training *holds* its slot. The hold is a
file lock, which ends with the process. The worker locks the slot that it writes.

Not here: the memory of a group (group_memory.py), which calls are issued again (core/replay/), the
content of generations and logs (inject/zero_edit/world/), decrees (core/agent/). torch is imported
late.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from ftrun.base.errors import PeerError, UserError
from ftrun.core.replay.falls import GROUPS_MAX
from ftrun.core.replay.log_rules import free_parts, needed, roomy
from ftrun.core.replay.settling import Counts, Generation, Logged, Mark
from ftrun.snapshots.memory import ALIGNMENT, SharedMemory, offsets_of

if TYPE_CHECKING:
    import torch

    from ftrun.checkpoint.leaves import Leaf

LOGS = 3
KEPT = 2
"""Whole generations that are kept, so that all ranks have one of the same step."""
HOLDERS = 2
"""Processes that may hold a generation: one that writes to a disk, one that sends to another
node."""
CALLS_MAX = 16384
"""The most calls in one log."""
LARGE_BYTES = 64 << 10
"""The log is searched for a copy of a result of this size or larger before it is copied there."""
_WORD = 8
_ENTRY_WORDS = 6
_HEADER_BYTES = 4096
_INDEX_BYTES = CALLS_MAX * _ENTRY_WORDS * _WORD
_DATA_AT = _HEADER_BYTES + LOGS * _INDEX_BYTES
# The area's header: 8 words of the area, then 8 for each slot, then 8 for each log.
_SLOT_BYTES, _LOG_BYTES = range(2)
_SLOTS = range(KEPT + 1 + HOLDERS)
_SLOT_AT, _LOG_AT = 8, 8 + 8 * len(_SLOTS)
_NUMBER, _HEAD, _STATE, _STEP, _MATES, _PARAMETERS, _SETTINGS = range(7)
_COUNTS = struct.Struct(f"{3 * GROUPS_MAX}q")
_FIRST, _COUNT = range(1, 3)
_PARTS = 4
"""Index, among a log's words, of the begin and end of its first part, then of its second part."""
TRIES = 100
NONE = -1
"""Replaces a generation's number while there is none or it is being written."""

_Word = ctypes.c_int64
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class AreaFull(UserError):
    """A generation or a step's log does not fit into the memory that the agent has set aside."""


@dataclass(frozen=True, slots=True)
class State:
    """A worker's state at a step boundary.

    Attributes:
        head: what the writer needs to read ``state`` back.
        state: a view of the agent's memory.
        step: the step that begins at this boundary.
        before: by process group, the calls that the worker had made before this boundary. It may
            have made more calls between the boundary and the copy of its state.
    """

    number: int
    head: bytes
    state: torch.Tensor
    step: int
    before: Counts


@dataclass(frozen=True, slots=True)
class Entry:
    """One call in a log.

    Attributes:
        data: a view, in which tensors lie as ``offsets_of`` says.
        mark: a checksum of the worker's inputs to the call; 0: there is none.
    """

    kind: int
    data: torch.Tensor
    mark: int


class Torn(PeerError):
    """The bytes of a generation differ from those that were sent."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The description of a generation that is sent with its bytes.

    Attributes:
        nbytes: the size of the slot's content.
        digest: the hash of these bytes; "": the receiver need not check them.
    """

    number: int
    step: int
    head_bytes: int
    nbytes: int
    digest: str


class Held:
    """A whole generation that its worker does not overwrite until ``release`` or the process's end.

    Attributes:
        data: calls, head and state, as they lie in the slot. Do not use it, or a view of it, after
            ``release``.
        mark: see ``Generation``.
    """

    def __init__(self, area: Area, slot: int, fd: int) -> None:
        self._fd = fd
        words = area.words_of(slot)
        self.number, self._head, state, self.step = words
        self.mark = area.mark_of(slot)
        self._state_at = _state_at(self._head)
        self.data = area.memory.buffer(area.slot_at(slot), self._state_at + state)

    @property
    def head(self) -> bytes:
        """See ``State.head``."""
        return bytes(self.data[_COUNTS.size : _COUNTS.size + self._head])

    @property
    def front(self) -> memoryview:
        """The part of ``data`` before the state."""
        return self.data[: self._state_at]

    @property
    def state(self) -> memoryview:
        """See ``State.state``."""
        return self.data[self._state_at :]

    def copy(self, *, is_hashed: bool = True) -> Copy:
        """The description for a receiver. Hashing reads all of ``data``."""
        digest = xxhash.xxh3_128_hexdigest(self.data) if is_hashed else ""
        return Copy(self.number, self.step, self._head, len(self.data), digest)

    def release(self) -> None:
        """Let the worker reuse the slot. Idempotent."""
        self.data = self.data[:0]
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Area:
    """One worker's generations and logs. Only this worker, or its replacement, writes.

    Attributes:
        kept: the number of whole generations that stay while a further one is written.
        touched_s: CPU time that the newest copy spent on making new memory resident.
    """

    def __init__(self, memory: SharedMemory, nbytes: int, kept: int = KEPT) -> None:
        self.memory = memory
        self.nbytes, self._kept = nbytes, kept
        self._header, self._address = memory.words(0, _HEADER_BYTES // _WORD), memory.address
        self._places: list[tuple[list[int], dict[tuple[int, int], int]]] = [([], {})] * LOGS
        self._known: list[dict[tuple[int, ...], int]] = [{} for _ in range(LOGS)]
        self._free_until = [0] * LOGS  # where each log's current part must end
        self.touched_s = 0.0
        self._indexes = [
            memory.words(_HEADER_BYTES + slot * _INDEX_BYTES, CALLS_MAX * _ENTRY_WORDS)
            for slot in range(LOGS)
        ]

    def clear(self) -> None:
        """Mark the area as empty. The agent does so before any worker starts."""
        for words in range(_SLOT_AT, _LOG_AT + 8 * LOGS, 8):
            self._header[words] = NONE

    def divide(self) -> None:
        """Lay the area out with twice as much room for each state as for each log, because AdamW's
        state is three times the size of the gradients."""
        share = (self.nbytes - _DATA_AT) // (2 * (KEPT + 1) + LOGS) // 4096 * 4096
        self.lay_out(2 * share, share)

    def lay_out(self, state_bytes: int, log_bytes: int) -> None:
        """Set the size of each slot and each log, before the first generation.

        Further slots for held generations lie beyond the end of the area. They are used only while
        all slots together hold no more than is set aside. Only the first call for a rank has an
        effect.

        Raises:
            AreaFull: the agent has set aside less than this needs.
        """
        if self._header[_SLOT_BYTES]:
            return
        slot, log = (-(-nbytes // 4096) * 4096 for nbytes in (state_bytes, log_bytes))
        needed = _DATA_AT + (self._kept + 1) * slot + LOGS * log
        if needed > self.nbytes:
            raise AreaFull(f"{needed} bytes are needed, and {self.nbytes} are set aside")
        self._header[_SLOT_BYTES], self._header[_LOG_BYTES] = slot, log

    @property
    def log_room(self) -> int:
        """The bytes of all logs together; 0 before ``lay_out``."""
        return LOGS * int(self._header[_LOG_BYTES])

    def lay_out_logs(self) -> None:
        """Use all of the area for logs."""
        self.lay_out(1, (self.nbytes - _DATA_AT - 4096 * (self._kept + 1)) // LOGS // 4096 * 4096)

    def lay_out_states(self) -> None:
        """Use all of the area for generations."""
        self.lay_out((self.nbytes - _DATA_AT) // (self._kept + 1) // 4096 * 4096, 0)

    @property
    def newest(self) -> int:
        """The number of the newest whole generation, or ``NONE``."""
        return max((known.number for known in self.generations()), default=NONE)

    # ------------------------------------------------------------ generations

    def write(
        self,
        number: int,
        head: bytes,
        leaves: Sequence[Leaf],
        step: int,
        calls: Counts,
        before: Counts,
        threads: int = 1,
        *,
        is_whole: Callable[[], bool] = lambda: True,
        has_room: Callable[[int], bool] = lambda more: True,
        mark: Callable[[], Mark | None] = lambda: None,
    ) -> bool:
        """Copy a generation. May run in another thread if nothing changes the leaves meanwhile.

        Args:
            calls: by process group, the calls made before the state was copied.
            before: see ``State.before``.
            is_whole: checked after the copy; False discards it.
            has_room: whether this many bytes more than the slot has used before may be taken.
            mark: gives the generation's mark, before ``is_whole`` is checked.

        Returns:
            Whether the generation is stored. It is not if ``is_whole`` returned False, or if other
            processes hold all slots.

        Raises:
            AreaFull: the state has outgrown ``lay_out``, or memory has become scarce.
        """
        offsets, state = offsets_of([leaf.spec.nbytes for leaf in leaves])
        begin = _state_at(len(head))
        if begin + state > self._header[_SLOT_BYTES]:
            room = self._header[_SLOT_BYTES]
            raise AreaFull(f"a state of {begin + state} bytes, where there is room for {room}")
        began, self.touched_s = time.thread_time(), 0.0
        slot = self._claim(number, begin + state)
        if slot is None:
            return False
        at, words = self.slot_at(slot), _SLOT_AT + 8 * slot
        more = begin + state - _state_at(self._header[words + _HEAD]) - self._header[words + _STATE]
        if more > 0 and not has_room(more):
            self._let_go(slot)
            raise AreaFull(f"{more} bytes more would leave too little for the script")
        if more > 0:
            self.memory.touch(at + begin + state - more, more)
            self.touched_s = time.thread_time() - began
        known = _packed(calls, before) + head
        self.memory.buffer(at, len(known))[:] = known
        self.memory.fill(leaves, [at + begin + offset for offset in offsets], threads)
        self._header[words + _HEAD], self._header[words + _STATE] = len(head), state
        self._header[words + _STEP] = step
        self._mark(words, mark())
        if is_whole():
            self._header[words + _NUMBER] = number
        self._let_go(slot)
        return bool(self._header[words + _NUMBER] == number)

    def receive(
        self, copy: Copy, fill: Callable[[memoryview], None], mark: Mark | None = None
    ) -> None:
        """Store a generation of another area. ``fill`` copies the bytes of its ``Held.data``.

        No process of the rank may run. The area may be new.

        Raises:
            AreaFull: less is set aside here.
            Torn: the bytes differ from those of the copy.
        """
        self.divide()
        slot = self._claim(copy.number, copy.nbytes)
        if slot is None or copy.nbytes > self._header[_SLOT_BYTES]:
            raise AreaFull(f"no room for a generation of {copy.nbytes} bytes")
        data, words = self.memory.buffer(self.slot_at(slot), copy.nbytes), _SLOT_AT + 8 * slot
        fill(data)
        is_whole = not copy.digest or xxhash.xxh3_128_hexdigest(data) == copy.digest
        if is_whole:
            state = copy.nbytes - _state_at(copy.head_bytes)
            self._header[words + _HEAD], self._header[words + _STATE] = copy.head_bytes, state
            self._header[words + _STEP] = copy.step
            self._mark(words, mark)
            self._header[words + _NUMBER] = copy.number
        self._let_go(slot)
        if not is_whole:
            raise Torn(f"generation {copy.number} is not what was sent: its hash differs")

    def _mark(self, words: int, mark: Mark | None) -> None:
        numbers = (0, 0, 0) if mark is None else (mark.mates, mark.parameters, mark.settings)
        for word, number in enumerate(numbers, words + _MATES):
            self._header[word] = number

    def _claim(self, number: int, nbytes: int) -> int | None:
        """Choose and lock a slot for this generation; None: other processes hold all slots."""
        room = self.nbytes - _DATA_AT - self.log_room
        slots = range(min(len(_SLOTS), max(self._kept + 1, room // max(1, nbytes))))
        known = {slot: self.words_of(slot)[_NUMBER] for slot in slots}
        newest = sorted(x for x in known.values() if x < number)[-self._kept :]
        # If holds leave no other slot, the second newest generation is overwritten.
        for slot in sorted(known, key=lambda slot: (known[slot] in newest, known[slot] != number)):
            if known[slot] != NONE and newest and known[slot] == newest[-1]:
                continue
            try:
                fcntl.lockf(self.memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                continue
            for other in slots:
                if other == slot or known[other] == number:
                    self._header[_SLOT_AT + 8 * other + _NUMBER] = NONE
            return slot
        return None

    def _let_go(self, slot: int) -> None:
        fcntl.lockf(self.memory.fd, fcntl.LOCK_UN, 1, slot)

    def drop(self, but: int = NONE) -> None:
        """Drop all generations and logs, and free their memory. Keeps the newest generation of step
        ``but``, and generations that are held. Call it in the worker, or after it has ended."""
        kept = max((x.number for x in self.generations() if x.step == but), default=None)
        for slot in _SLOTS:
            if self.words_of(slot)[_NUMBER] == kept:
                continue
            begin, size = self.slot_at(slot), int(self._header[_SLOT_BYTES])
            with contextlib.suppress(OSError):
                fcntl.lockf(self.memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
                self._header[_SLOT_AT + 8 * slot + _NUMBER] = NONE
                self.memory.give_back(begin, size)
                self._let_go(slot)
        self.drop_logs(self.newest_log)
        self.memory.give_back(_DATA_AT, self.log_room)

    def hold(self, step: int | None = None) -> Held | None:
        """Hold the newest whole generation (of ``step``, if given); None: there is none.

        For any process but the worker. There is no limit on how long it may be held.
        """
        for _ in range(TRIES):
            known = {slot: self.words_of(slot) for slot in _SLOTS}
            fit = [
                slot
                for slot, words in known.items()
                if words[_NUMBER] != NONE and step in (None, words[_STEP])
            ]
            if not fit:
                return None
            slot = max(fit, key=lambda slot: known[slot][_NUMBER])
            # A separate file description: other locks of this process do not affect it.
            fd = os.open(f"/proc/self/fd/{self.memory.fd}", os.O_RDWR | os.O_CLOEXEC)
            lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, slot, 1, 0)
            with contextlib.suppress(OSError):  # the worker has begun to write there
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
                if self.words_of(slot) == known[slot]:
                    return Held(self, slot, fd)
            os.close(fd)
        return None

    def read(self, number: int) -> State | None:
        """The generation of this number; None: it is not there, or not whole."""
        found = [x for x in _SLOTS if self.words_of(x)[_NUMBER] == number != NONE]
        if not found:
            return None
        _, head, state, step = self.words_of(found[0])
        at = self.slot_at(found[0])
        data = bytes(self.memory.buffer(at + _COUNTS.size, head))
        view = self.memory.view(at + _state_at(head), state)
        return State(number, data, view, step, self._counts(found[0], 2))

    def generations(self) -> list[Generation]:
        """All whole generations."""
        known = [(slot, self.words_of(slot)) for slot in _SLOTS]
        return [
            Generation(
                words[_NUMBER],
                words[_STEP],
                self._counts(slot),
                self._counts(slot, 2),
                self.mark_of(slot),
            )
            for slot, words in known
            if words[_NUMBER] != NONE
        ]

    def mark_of(self, slot: int) -> Mark | None:
        """The mark of the generation in a slot."""
        words = _SLOT_AT + 8 * slot
        mates, *digests = self._header[words + _MATES : words + _SETTINGS + 1]
        return Mark(mates, *digests) if mates else None

    def _counts(self, slot: int, which: int = 1) -> dict[int, int]:
        words = _COUNTS.unpack(self.memory.buffer(self.slot_at(slot), _COUNTS.size))
        return {x: calls for x, calls in zip(words[::3], words[which::3], strict=True) if x}

    def oldest_log(self) -> int:
        """The number of the oldest open log, or ``NONE``."""
        numbers = [int(self._header[_LOG_AT + 8 * slot + _NUMBER]) for slot in range(LOGS)]
        return min((x for x in numbers if x != NONE), default=NONE)

    def words_of(self, slot: int) -> list[int]:
        """A slot's generation number, size of head and of state in bytes, and step."""
        return self._header[_SLOT_AT + 8 * slot : _SLOT_AT + 8 * slot + _STEP + 1]

    def rewind(self, step: int, *, has_logs: bool = False) -> Counts:
        """Roll back to the newest generation of this step. Called by the agent.



        Args:
            has_logs: all ranks have the logs between this generation's place and its copy.
                Otherwise the logs are dropped.

        Returns:
            By process group, the calls that the rank's log covers: all later calls are new.
        """
        known = (x for x in self.generations() if x.step == step)
        newest = max(known, key=lambda known: known.number)
        slot = next(x for x in _SLOTS if self.words_of(x)[_NUMBER] == newest.number)
        logs = self._logs() if has_logs and newest.copied > newest.place else {}
        kept = next((slot for slot, log in logs.items() if log.leads_to(newest)), None)
        calls = newest.before if kept is None else newest.calls
        self.memory.buffer(self.slot_at(slot), _COUNTS.size)[:] = _packed(calls, newest.before)
        for slot in _SLOTS:
            if self._header[_SLOT_AT + 8 * slot] > newest.number:
                self._header[_SLOT_AT + 8 * slot] = NONE
        number = self.newest_log + 1
        for one in range(LOGS):
            self._cut(one, newest.copied - logs[one].first if one == kept else 0)
        if kept is None:
            self.open_log(number, newest.place)
        return calls

    # ------------------------------------------------------------ logs

    def open_log(self, number: int, first: int) -> None:
        """Begin a log at the worker's call ``first``; older logs cover the calls before it."""
        words, wanted = _LOG_AT + 8 * (number % LOGS), self.log_bytes(self.newest_log)
        self._drop_log(number % LOGS)
        self._known[number % LOGS].clear()
        self._header[words + _COUNT] = 0
        self._begin_part(number % LOGS, words + _PARTS, max(1, wanted))
        self._header[words + _FIRST] = first
        self._header[words + _NUMBER] = number

    def cut_logs(self) -> None:
        """Shorten the logs, which cannot be completed, and free what no rank needs any more."""
        for slot, log in self._logs().items():
            self._cut(slot, needed(log, self.generations()))

    def _cut(self, slot: int, count: int) -> None:
        """Keep the first ``count`` calls of a log."""
        if not count:
            self._drop_log(slot)
            return
        words, end = _LOG_AT + 8 * slot, count * _ENTRY_WORDS
        kept = [self._indexes[slot][at + 2 : at + 4] for at in range(0, end, _ENTRY_WORDS)]
        self._header[words + _COUNT] = count
        for part in (words + _PARTS, words + _PARTS + 2):
            begin, until = self._header[part : part + 2]
            used = [at + nbytes for at, nbytes in kept if begin <= at < until]
            self._header[part + 1] = max(used, default=begin)

    def log(
        self,
        number: int,
        group: int,
        call: int,
        kind: int,
        tensors: Sequence[torch.Tensor] = (),
        mark: int = 0,
    ) -> None:
        """Add a call of a process group to an open log, with the tensors that a replacement needs.

        The worker's calls must be added in the order of its program.

        Raises:
            AreaFull: the step has more calls or bytes than there is room for.
        """
        slot = number % LOGS
        words, header = _LOG_AT + 8 * slot, self._header
        count = header[words + _COUNT]
        at, nbytes = self._put(slot, tensors) if tensors else (0, 0)
        if count == CALLS_MAX or at == NONE:
            used = self.log_bytes(number) + nbytes
            raise AreaFull(f"a step's log of {count + 1} calls and {used} bytes")
        entry = count * _ENTRY_WORDS
        self._indexes[slot][entry : entry + _ENTRY_WORDS] = [group, call, at, nbytes, kind, mark]
        header[words + _COUNT] = count + 1

    def _put(self, slot: int, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
        """Copy a call's tensors into a log. Returns offset (``NONE``: no room) and size.

        The log may have a large tensor already, because FSDP2 gathers the same parameters in the
        forward and in the backward pass. It is looked up by its size and its first and last word,
        then compared.
        """
        begin, key, alike = self._address + _DATA_AT, None, NONE
        known, nbytes = [], 0
        for one in tensors:
            tensor = one if one.is_contiguous() else one.contiguous()
            known.append((tensor, nbytes))
            nbytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT  # as _aligned
        if len(known) == 1 and (size := tensor.nbytes) >= LARGE_BYTES:
            data = tensor.data_ptr()
            last = _Word.from_address(data + size - _WORD).value
            key = size, _Word.from_address(data).value, last
            alike = self._known[slot].get(key, NONE)
            if alike != NONE and not _memcmp(begin + alike, data, size):
                return alike, nbytes
        header = self._header
        first = _LOG_AT + 8 * slot + _PARTS
        part = first + 2 if header[first + 3] else first
        if header[part + 1] + nbytes > self._free_until[slot]:  # the next part may be free
            roomy_part = self._part(slot, nbytes)
            if roomy_part is None:
                return NONE, nbytes
            part = roomy_part
        at = header[part + 1]
        for tensor, offset in known:
            ctypes.memmove(begin + at + offset, tensor.data_ptr(), tensor.nbytes)
        header[part + 1] = at + nbytes
        if key and alike == NONE:
            self._known[slot][key] = at
        return at, nbytes

    def _part(self, slot: int, nbytes: int) -> int | None:
        """The index of the log's part that has room for ``nbytes`` bytes; None: neither has."""
        first = _LOG_AT + 8 * slot + _PARTS
        part = first + 2 if self._header[first + 3] else first
        end = self._header[part + 1]
        free = free_parts(self._taken(), self.log_room)
        self._free_until[slot] = next(until for begin, until in free if begin <= end <= until)
        if end + nbytes <= self._free_until[slot]:
            return part
        begin, until = roomy(free, nbytes)
        if part > first or until - begin < nbytes:
            return None
        self._begin_part(slot, first + 2, nbytes)
        return first + 2

    def _begin_part(self, slot: int, part: int, wanted: int) -> None:
        begin, self._free_until[slot] = roomy(free_parts(self._taken(), self.log_room), wanted)
        self._header[part] = self._header[part + 1] = begin

    def _taken(self) -> list[tuple[int, int]]:
        logs = (_LOG_AT + 8 * slot + _PARTS for slot in range(LOGS))
        parts = [tuple(self._header[at : at + 2]) for log in logs for at in (log, log + 2)]
        return [(begin, end) for begin, end in parts if begin < end]

    def drop_logs(self, until: int) -> None:
        """Drop the logs of all generations up to and including number ``until``."""
        for slot in range(LOGS):
            if NONE != self._header[_LOG_AT + 8 * slot + _NUMBER] <= until:
                self._drop_log(slot)

    def _drop_log(self, slot: int) -> None:
        words = _LOG_AT + 8 * slot
        self._header[words + _NUMBER] = NONE
        self._header[words + _PARTS + 1] = self._header[words + _PARTS + 3] = 0

    def find(self, group: int, call: int) -> Entry | None:
        """The log entry of a call; None: no log has it."""
        for slot in range(LOGS):
            place = self._calls(slot).get((group, call))
            if place is not None:
                return self._entry(slot, place * _ENTRY_WORDS)
        return None

    def calls(self, group: int) -> list[int]:
        """The numbers of a group's calls that are in the logs."""
        return [call for slot in range(LOGS) for of, call in self._calls(slot) if of == group]

    def _entry(self, slot: int, at: int) -> Entry:
        *_, offset, nbytes, kind, mark = self._indexes[slot][at : at + _ENTRY_WORDS]
        return Entry(kind, self.memory.view(_DATA_AT + offset, nbytes), mark)

    def _calls(self, slot: int) -> dict[tuple[int, int], int]:
        """The index of each call in a log. The result is cached until the log begins again."""
        words, index = _LOG_AT + 8 * slot, self._indexes[slot]
        number, first, count = self._header[words : words + _COUNT + 1]
        which, places = self._places[slot]
        if which != [number, first] or len(places) > count:
            which, places = self._places[slot] = [number, first], {}
        if number == NONE:
            return {}
        for place in range(len(places), count):
            entry = place * _ENTRY_WORDS
            places[index[entry], index[entry + 1]] = place
        return places

    def logs(self) -> list[Logged]:
        """The range of calls that each log covers."""
        return [*self._logs().values()]

    def _logs(self) -> dict[int, Logged]:
        """The same by slot."""
        found = {}
        for slot in range(LOGS):
            words = _LOG_AT + 8 * slot
            number, first, count = self._header[words : words + _COUNT + 1]
            if number != NONE:
                found[slot] = Logged(first, first + count)
        return found

    @property
    def newest_log(self) -> int:
        """The number of the log that was opened last, or ``NONE``."""
        return max(int(self._header[_LOG_AT + 8 * slot + _NUMBER]) for slot in range(LOGS))

    def log_bytes(self, number: int) -> int:
        """The bytes that a log uses."""
        at = _LOG_AT + 8 * (number % LOGS) + _PARTS
        begin, end, later, last = self._header[at : at + 4]
        return max(0, end - begin) + max(0, last - later)

    def slot_at(self, slot: int) -> int:
        """The offset of a slot's bytes."""
        return _DATA_AT + self.log_room + slot * int(self._header[_SLOT_BYTES])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _packed(calls: Counts, before: Counts) -> bytes:
    counts = [word for x in calls for word in (x, calls[x], before[x])]
    return _COUNTS.pack(*counts, *[0] * (3 * GROUPS_MAX - len(counts)))


def _state_at(head: int) -> int:
    """The offset of the state in a slot whose head has ``head`` bytes."""
    return _aligned(_COUNTS.size + head)
