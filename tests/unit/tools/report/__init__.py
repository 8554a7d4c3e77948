"""The report of a job, from its events."""
