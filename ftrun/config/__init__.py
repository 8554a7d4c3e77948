"""The settings of a run: options, environment, file, script, checked before anything starts.

Not here: a machine's resources (agent/devices.py), the lighthouse's settings
(lighthouse/settings.py).
"""
