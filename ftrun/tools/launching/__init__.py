"""Launches a function, a script or a command in replica groups from a Python program.

The program starts one process, the host (host.py), which becomes the agent of an ordinary run. The
host reports the agent's actions as JSON lines over a pipe. Not here: the agent (agent/), the code
in a worker (inject/), torchelastic's names (elastic/).
"""
