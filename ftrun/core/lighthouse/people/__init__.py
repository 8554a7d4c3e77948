"""Requests of people to a running job: drain, restart, kill, stacks. Begin with operators.py.

Not here: which requests survive the lighthouse (operation_table.py), their routes (lighthouse/ of
the service).
"""
