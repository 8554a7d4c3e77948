"""ftrun beside its rivals: one training under five launchers, each of which loses a worker.

``measure.py`` kills and judges, ``launchers.py`` starts a job under each launcher, ``worker.py`` is
the training script, and ``lm_resiliency_kit/`` has what that package needs and does not ship.
"""
