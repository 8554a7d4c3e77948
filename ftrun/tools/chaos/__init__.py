"""``ftrun chaos``: strikes a running job, so that users can test their own script.

At random (session.py), or by a campaign of faults by step (campaign.py).

Not here: the chaos runs that test ftrun itself (tests/chaos).
"""
