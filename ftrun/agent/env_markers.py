"""The marks by which a process of the job is known: variables of its environment.

Not here: who looks for them (sweep.py). Nothing is imported: the spawner's launch needs them first.
"""

GUARD_NAME = "FTRUN_GUARD_ID"
OWNER_NAME = "FTRUN_OWNER"
OWNER_CHARS = 16
NO_OWNER = "-" * OWNER_CHARS
