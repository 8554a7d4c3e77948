"""The script's process groups: torch's own backends behind a shell, swapped as the quorum changes.

| file | what |
|---|---|
| opening.py | how the script makes its world and groups |
| shell.py | one group, as torch and the script see it |
| kinds.py | each collective: inputs, outputs, and how it runs while ranks are away |
| calls.py | the states of one call |
| plain.py | the fast path of an allreduce that no failure disturbs |
| world.py | all groups of a process: calls that need no peer, waits |
| replayed.py | the world of one replica group: calls are logged, and replayed |
| on_device.py | the same for a script that trains on a GPU |
| quorums.py | the groups when ranks die and join |
| kept.py | results from before the first step, kept for a successor |
| objects.py | torch's object collectives: several calls that count as one |

Not here: gradients (models.py, sharding.py), the decisions (core/worker/settling.py).
"""
