"""The commands that people run: a package for each, their command lines, and a run's start.

Only cli.py imports this package, and elastic/ uses launching/. Not here: the entry point (cli.py),
the settings of a run (config/), the programs that serve a job (agent/, lighthouse/).
"""
