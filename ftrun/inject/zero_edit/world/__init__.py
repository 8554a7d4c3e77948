"""The script's process groups: real ones of torch's, which follow the quorums behind a shell.

| file | what |
|---|---|
| opening.py | how the script makes its world and groups |
| shell.py | one group, as torch and the script see it |
| kinds.py | each collective: what it gives and gets, and what it is while ranks are away |
| calls.py | the life of one call |
| plain.py | a call to which nothing happens, as most are |
| world.py | all groups of a process: calls that meet no peer, waits |
| replayed.py | the world of one replica group: calls are logged, and replayed |
| on_device.py | the same of a script that trains on a GPU |
| quorums.py | the groups when ranks die and come |
| kept.py | what was given before the first step, for a successor |
| objects.py | torch's functions for objects: several calls that are one |

Not here: gradients (models.py, sharding.py), the decisions (core/worker/settling.py).
"""
