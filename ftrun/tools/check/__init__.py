"""``ftrun check``: runs an unmodified script with deaths, and reports what heals.

Not here: a worker's part in a trial (inject/zero_edit/trial.py).
"""
