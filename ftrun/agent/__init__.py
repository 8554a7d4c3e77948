"""The agent: one per node; starts, watches, restarts and stops the workers, and speaks for them.

Nothing here imports torch but the spawner, which is a process of its own.
"""
