"""The workers' log files: where they are, how they are written, limited, read and shown.

Not here: pipes and the terminal (agent/logs.py, agent/terminal.py), jobs that run (status/jobs.py).
"""
