"""The job's state on disk, so that nothing is lost when all of its processes die.

A snapshot is a directory in torch's DCP format, which ``torch.distributed.checkpoint`` reads
without ftrun, with a manifest (``ftrun.json``) that is written last. ``manifest`` is that file;
``directory`` finds, names, prunes and sets aside snapshots; ``memory`` is what trainer and writer
share, to which ``pinned`` copies from a GPU; ``writer`` is the process that writes, ``process`` its
other end, ``forked`` its start; ``parts`` is what one worker of a replica writes, ``merging`` makes
one snapshot of all parts;
``reading`` reads one back without pickle; ``starting`` checks them at a run's start; ``area`` is
the agent's memory, from which a lost worker's replacement goes on.

Not here: when one is taken (core/worker/snapshots.py), what it holds and the copy
(training/snapshots.py), how a worker begins with one (training/resuming.py).
"""
