"""What people see of a job from outside: ``ftrun status``.

Not here: what the lighthouse tells (core/lighthouse/machine.py, lighthouse/web.py).
"""
