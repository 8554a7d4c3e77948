"""A running job seen from outside: ``ftrun status``.

Not here: the status itself (core/lighthouse/snapshot.py, lighthouse/web.py).
"""
