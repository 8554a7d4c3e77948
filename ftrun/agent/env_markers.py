"""Environment variables that mark each process of the job.

Imports nothing, because the spawner's launch needs these first. Not here: the search (sweep.py).
"""

GUARD_NAME = "FTRUN_GUARD_ID"
OWNER_NAME = "FTRUN_OWNER"
AGENT_ID_NAME = "FTRUN_AGENT_ID"
OWNER_CHARS = 16
NO_OWNER = "-" * OWNER_CHARS
FROM_KEEPER = "FTRUN_FROM_KEEPER"
"""A pipe through which a keeper's agent receives more variables when the job's nodes have met."""
