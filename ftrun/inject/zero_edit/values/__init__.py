"""The values of a script outside its modules: found, compared by step, left, and set.

Begin with ``counters.py``.
"""
