"""Makes a replacement train on exactly the batches that its predecessor would have got.

A replacement reaches its place without reading the earlier batches, because the sampler alone
determines the order of samples. That is not enough if a sample depends on earlier ones through the
random numbers of a loader's workers. So each worker writes its random states to memory that it
shares with the script, a generation includes them, and the replacement's workers continue from
them. If they are not known, all batches from the start of the epoch are read.

A generation also has digests of its batches. If the replacement gets another batch (for example,
because a dataset keeps a generator of its own), it reads the epoch from its start. If the batch
still differs, or if the model gets other inputs (from a source that is not a loader), no death can
be mended any more.

Not here: how an iterator is set to a place (loaders.py).
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.loaders import OPEN, LoaderIterator
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.randomness import States
from ftrun.inject.zero_edit.values.journal import packed, unpacked
from ftrun.inject.zero_edit.values.units import hashed

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.predecessor import Predecessor

DEEP = 4
INPUTS = "inputs"
"""The key of the digest of the model's inputs in the first pass."""
ENTRY_BYTES, AHEAD = 16 << 10, 4
_WORDS = struct.Struct("<QQ")
"""The head of an entry: its number, and the size in bytes of its states."""


class WorkersRandom:
    """The random states of one iterator's workers, in memory shared with the forked workers.

    For each worker there is one entry that the script writes, and then a ring of the worker's last
    entries. An entry has the number of a batch among the worker's own, from 1, and random states.
    The script's entry has the states with which to begin that batch; the worker's, the states after
    it was read, or none if the worker has never drawn a random number.
    """

    def __init__(self, workers: int, entries: int) -> None:
        self._workers, self._entries = workers, 1 + entries
        self._memory = mmap.mmap(-1, workers * self._entries * ENTRY_BYTES)
        self._count, self._at_first = 0, b""
        self._passed, self._given = 0, dict[int, tuple[int, bytes]]()

    # ------------------------------------------------------------ in a worker

    def reads(self, worker: int, read: Callable[[], Any]) -> tuple[Any, bool]:
        """Read the worker's next batch; also whether the worker has ever drawn a random number."""
        self._count += 1
        given = self._entry(worker, 0, self._count)
        if given:
            States.decode(unpacked(given)[1]).set()
        self._at_first = self._at_first or packed([], States.now().encode())
        batch = read()
        left = packed([], States.now().encode())
        has_drawn = left != self._at_first
        slot = 1 + self._count % (self._entries - 1)
        self._put(worker, slot, self._count, left if has_drawn else b"")
        return batch, has_drawn

    # ------------------------------------------------------------ in the script

    def before(self, batch: int) -> list[bytes] | None:
        """The states of each worker once all batches before ``batch`` are read; None: not known."""
        found = []
        for worker in range(self._workers):
            count = -(-(batch - worker) // self._workers) - self._passed
            begins, given = self._given.get(worker, (1, b""))
            slot = 1 + count % (self._entries - 1)
            states = given if count < begins else self._entry(worker, slot, count)
            if states is None:
                return None
            found.append(states)
        return found

    def go_on(self, batch: int, passed: int, states: Sequence[bytes]) -> None:
        """Let each worker begin with its ``states`` at its first batch from ``batch`` on.

        ``passed``: how many batches were skipped, equally many of each worker.
        """
        self._passed = passed // self._workers
        for worker, given in enumerate(states):
            begins = -(-(batch - worker) // self._workers) - self._passed + 1
            self._given[worker] = begins, given
            if given:
                self._put(worker, 0, begins, given)

    def _entry(self, worker: int, slot: int, count: int) -> bytes | None:
        at = (worker * self._entries + slot) * ENTRY_BYTES
        begin, (number, size) = at + _WORDS.size, _WORDS.unpack_from(self._memory, at)
        return self._memory[begin : begin + size] if number == count else None

    def _put(self, worker: int, slot: int, count: int, states: bytes) -> None:
        at = (worker * self._entries + slot) * ENTRY_BYTES
        if (whole := _WORDS.size + len(states)) <= ENTRY_BYTES:
            self._memory[at : at + whole] = _WORDS.pack(count, len(states)) + states


class Batches:
    """The batches of this worker.

    Attributes:
        seen: a digest of each batch of the step that begins, by iterator and number.
    """

    def __init__(self, predecessor: Predecessor) -> None:
        self._predecessor = predecessor
        self._has_drawn = mmap.mmap(-1, 1)
        self._forked: WorkersRandom | None = None
        self.seen: dict[str, str] = {}
        self._expected: dict[str, str] = {}
        self._random: Sequence[bytes] = ()
        self._inputs: Any = None

    def install(self, patches: Patches) -> None:
        """Patch torch's loaders, and look at each batch from now on."""
        from torch.utils.data._utils import fetch

        OPEN.keeps_seeds, OPEN.on_batch, OPEN.on_begin = True, self._drawn, self._begins
        patches.around(fetch._MapDatasetFetcher, "fetch", self._fetch)

    # ------------------------------------------------------------ workers of loaders

    def _begins(self, iterator: LoaderIterator) -> WorkersRandom | None:
        """An iterator is about to start its workers."""
        loader = iterator.loader
        workers = getattr(loader, "num_workers", 0)
        if not workers:
            return None
        context = loader.multiprocessing_context or multiprocessing
        if context.get_start_method() != "fork":
            self._has_drawn[0] = 1  # assumed, because it cannot be observed
            return None
        self._forked = WorkersRandom(workers, (loader.prefetch_factor or 2) + AHEAD)
        return self._forked

    def _fetch(self, plain: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        info, forked = get_worker_info(), self._forked
        if info is None or forked is None:
            return plain(fetcher, index)
        batch, has_drawn = forked.reads(info.id, lambda: plain(fetcher, index))
        if has_drawn:
            self._has_drawn[0] = 1
        return batch

    @property
    def have_drawn(self) -> bool:
        """Whether a loader's worker has drawn a random number."""
        return bool(self._has_drawn[0])

    # ------------------------------------------------------------ for a generation

    def step_ended(self) -> None:
        """Forget the step's digests: a batch of another epoch may have the same number."""
        self.seen, self._expected = {}, {}

    def passes(self, inputs: Any) -> None:
        """A pass in training begins with these inputs."""
        self._inputs = inputs
        self.compare()

    def compare(self) -> None:
        """Check that a replacement's first pass gets the same inputs as its predecessor's."""
        expected, self._expected = self._expected.get(INPUTS), {}
        if expected and expected != hashed(self._inputs, DEEP):
            self._predecessor.differs([f"the same input of its model as before, at {call_site()}"])

    def digests(self) -> dict[str, str]:
        """The digests of the step that begins with this pass, for a replacement."""
        return {**self.seen, INPUTS: hashed(self._inputs, DEEP)}

    # ------------------------------------------------------------ of a replacement

    def expect(
        self,
        seen: dict[str, str],
        random: Sequence[bytes],
        *,
        have_drawn: bool,
    ) -> None:
        """This worker continues from a generation (memory.py).

        Args:
            seen: the generation's digests.
            random: the encoded random states at its draw; empty: not known.
            have_drawn: workers of the predecessor's loaders have drawn random numbers.
        """
        self._expected, self._random = seen, random
        self._has_drawn[0] = OPEN.reads_all = have_drawn

    def _drawn(self, iterator: LoaderIterator, batch: Any) -> Any:
        """An iterator yields this batch; returns the batch that the script gets."""
        wants = self._predecessor.is_due()
        if not (wants or self._expected):
            return batch
        name = f"{iterator.name} {iterator.cursor.drawn}"
        if name in self._expected:
            expected = self._expected.pop(name)
            if hashed(batch, DEEP) != expected:
                batch = self._read_again(iterator)
            if hashed(batch, DEEP) != expected:
                what = f"the batches of the data loader at {iterator.spot}: they differ"
                self._predecessor.differs([what])
        if wants:
            self.seen[name] = hashed(batch, DEEP)
        return batch

    def _read_again(self, iterator: LoaderIterator) -> Any:
        own = OPEN.own()
        now = States.now(own)
        iterator.read_again()
        now.set(own)
        if self._random:
            States.decode(self._random).set(own)
        return iterator.take()
