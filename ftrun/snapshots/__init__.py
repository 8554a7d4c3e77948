"""The job's state on disk, so that nothing is lost when all of its processes die.

A snapshot is a directory in torch's DCP format, which ``torch.distributed.checkpoint`` reads
without ftrun, plus a manifest (``ftrun.json``) that is written last.

| module                | what it does                                                          |
|-----------------------|-----------------------------------------------------------------------|
| ``manifest``          | the manifest file                                                     |
| ``directory``         | finds, names, prunes and sets aside snapshots                         |
| ``memory``, ``pinned``| the memory that trainer and writer share; copies to it from a GPU     |
| ``serving``           | the process that writes; ``process``: a worker's connection to it     |
| ``writer``            | the orders that this process carries out                              |
| ``parts``, ``merging``| the part that one worker writes; one snapshot of all parts            |
| ``reading``           | reads a snapshot back without pickle                                  |
| ``starting``          | checks the snapshots at a run's start                                 |
| ``area``, ``board``,  | a replica group's state in the agent's memory, from which a           |
| ``group_memory``      | replacement worker resumes; ``groups``: from there to a disk          |

Not here: when a snapshot is taken (core/worker/snapshots.py), its content and the copy
(training/snapshots.py), how a worker resumes from it (training/resuming.py).
"""
