"""``ftrun doctor``: checks this machine before a job runs. Each check has a verdict and a remedy.

Not here: the agent's own checks at a start (config/, agent/devices.py), health while a job runs
(agent/resources.py).
"""
