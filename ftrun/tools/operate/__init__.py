"""Commands that act on a running job: drain, restart, kill, stack, ps.

Not here: what a lighthouse does with a request (core/lighthouse/people/operators.py).
"""
