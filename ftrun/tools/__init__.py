"""The commands that people run: a room for each, their command lines, a run's start.

The top of ftrun: cli.py imports this, and elastic/ uses launching/; nothing else does. Not here:
the entry point (cli.py), the settings of a run (config/), the programs that serve a job (agent/,
lighthouse/).
"""
