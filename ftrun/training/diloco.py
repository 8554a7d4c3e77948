"""DiLoCo: replicas train independently, and an outer optimizer steps by their average change.

As in "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv 2311.08105), and in
fragments as in "Streaming DiLoCo with overlapping communication" (arXiv 2501.18512). One outer step
of one fragment is one step of the Manager. The Manager's step number determines the fragment, so
all replicas take the same one. With two fragments, ``sync_every=8`` and ``fragment_sync_delay=1``:

| inner step         | 1 | 2 | 3            | 4           | 5 | 6 | 7            | 8           |
|--------------------|---|---|--------------|-------------|---|---|--------------|-------------|
| after it           |   |   | reduce 0     | step 0      |   |   | reduce 1     | step 1      |
| step of the Manager|   |   | begins       | is decided  |   |   | begins       | is decided  |

If a replica dies between *reduce* and *step*, the reductions are repaired while the inner steps
continue. A newcomer heals when its first *reduce* begins: local and global weights, and both
optimizers.

Not here: the work on one fragment (fragments.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import nn

from ftrun.training.fragments import Fragment, FragmentSettings
from ftrun.training.local_sgd import InnerSteps

if TYPE_CHECKING:
    from ftrun.training.manager import Manager

USE_BUCKETIZATION_ENV = "TORCHFT_USE_BUCKETIZATION"
BUCKET_CAP_MB = 1024


class DiLoCo(InnerSteps):
    """Steps of ``inner_optimizer`` on each replica, outer steps for all.

    Use it as a context manager around the training loop, which calls ``inner_optimizer.step()`` as
    usual. If an outer step is not committed, its fragment is reset to its global weights, and is
    the next one again.

    Args:
        manager: the Manager of this process, made with ``use_async_quorum=False``.
        model_fragments: parts of the model, reduced in turn; one part is plain DiLoCo.
        inner_optimizer: steps the local weights. Its state stays local to each replica.
        outer_optimizer: steps the global weights; one for all fragments, or one for each.
        sync_every: inner steps until each fragment has been stepped once; a multiple of the number
            of fragments.
        backup_device: where the global weights are kept; None: in host memory.
        pin_memory: pin them there, if there is an accelerator.
        use_bucketization: reduce a fragment in buckets, not parameter by parameter. The variable
            TORCHFT_USE_BUCKETIZATION=True does the same.
        bucket_cap_mb: size of a bucket in MiB; None: 1,024. A larger parameter is a bucket by
            itself.
        should_quantize: send 8 bits for each value (see ``Manager.allreduce``).
        fragment_sync_delay: inner steps from *reduce* to *step*, while reductions run.
        fragment_update_alpha: share of the local weights in the model after an outer step.

    Raises:
        ValueError: arguments that do not fit together, or an asynchronous quorum.
        UserError: an outer optimizer has no parameter of its fragment.
    """

    def __init__(
        self,
        manager: Manager,
        model_fragments: list[nn.Module],
        inner_optimizer: torch.optim.Optimizer,
        outer_optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer],
        sync_every: int,
        backup_device: torch.device | None = None,
        pin_memory: bool = True,
        use_bucketization: bool = False,
        bucket_cap_mb: int | None = None,
        should_quantize: bool = False,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
    ) -> None:
        count = len(model_fragments)
        if manager._use_async_quorum:
            raise ValueError("DiLoCo needs Manager(..., use_async_quorum=False)")
        _check(count, sync_every, fragment_sync_delay, fragment_update_alpha)
        one_for_each = isinstance(outer_optimizer, list)
        outer = outer_optimizer if isinstance(outer_optimizer, list) else [outer_optimizer] * count
        assert not one_for_each or len(outer) == count, (
            f"{len(outer)} outer optimizers for {count} model_fragments: give one, or one for each"
        )
        super().__init__(manager, inner_optimizer)
        self._sync_every = sync_every // count
        self._fragment_sync_delay = fragment_sync_delay
        in_buckets = use_bucketization or os.getenv(USE_BUCKETIZATION_ENV) == "True"
        cap_mb = BUCKET_CAP_MB if bucket_cap_mb is None else bucket_cap_mb
        if cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb={bucket_cap_mb}: more than 0")
        settings = FragmentSettings(
            backup_device=backup_device or torch.device("cpu"),
            pin_memory=pin_memory,
            bucket_bytes_max=int(cap_mb * (1 << 20)) if in_buckets else None,
            should_quantize=should_quantize,
            update_alpha=fragment_update_alpha,
        )
        self._fragments = [
            Fragment(manager, module, number, outer[number], settings)
            for number, module in enumerate(model_fragments)
        ]
        self._reduced: Fragment | None = None

    def _stepped(self) -> None:
        is_due = self._local_step >= self._sync_every - self._fragment_sync_delay
        if is_due and self._reduced is None:
            self._manager.start_quorum()
            turn = self._manager.current_step() % len(self._fragments)
            self._reduced = self._fragments[turn]
            self._reduced.prepare_sync()
        if self._local_step >= self._sync_every:
            self._local_step = 0
            reduced, self._reduced = self._reduced, None
            assert reduced is not None, "an outer step of a fragment that was not reduced"
            reduced.perform_sync()


def _check(count: int, sync_every: int, delay: int, alpha: float) -> None:
    """Raise ValueError for an impossible schedule."""
    if count < 1 or sync_every < count:
        raise ValueError(
            f"sync_every={sync_every} with {count} model_fragments: each needs a step of its own"
        )
    if sync_every % count:
        raise ValueError(f"sync_every={sync_every} is no multiple of {count} model_fragments")
    if not 0 <= delay < sync_every // count:
        raise ValueError(
            f"fragment_sync_delay={delay}: a fragment must be stepped before the next one is "
            f"reduced, so at most {sync_every // count - 1}"
        )
    if not 0 <= alpha <= 1:
        raise ValueError(f"fragment_update_alpha={alpha}: from 0 to 1")
