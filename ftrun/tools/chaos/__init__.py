"""``ftrun chaos``: kills workers of a running job, so that users can test their own script.

Not here: the chaos runs that test ftrun itself (tests/chaos).
"""
