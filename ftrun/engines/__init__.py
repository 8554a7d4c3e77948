"""Jobs of several nodes that an engine, such as Slurm, has started by one command.

An engine's reader (slurm.py) turns its variables into a ``Place``. The keeper of each node
(keeper.py) connects the nodes and runs an ordinary agent, which is independent of the engine.
"""
