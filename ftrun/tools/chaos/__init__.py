"""``ftrun chaos``: injects faults into a running job, so that users can test their own script.

Faults come at random (session.py), or by a campaign that names steps (campaign.py).

Not here: the chaos runs that test ftrun itself (tests/chaos).
"""
