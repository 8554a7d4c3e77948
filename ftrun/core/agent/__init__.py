"""One node's decisions: start, watch, restart and stop its replica groups.

Begin with supervisor.py. Not here: processes, sockets and files (agent/).
"""
