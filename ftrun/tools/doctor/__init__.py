"""``ftrun doctor``: looks at this machine before a job does, and gives a verdict and a remedy each.

Not here: the agent's own checks at a start (config/, agent/devices.py), health while a job runs
(agent/resources.py).
"""
