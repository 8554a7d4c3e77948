"""``ftrun check``: tries an unmodified script with a death, and reports what heals.

Not here: what a worker does in a trial (inject/zero_edit/trial.py).
"""
