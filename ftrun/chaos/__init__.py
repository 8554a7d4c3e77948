"""``ftrun chaos``: kills workers of a running job, so that users can try their own script.

Not here: the chaos runs by which ftrun itself is tested (tests/chaos).
"""
