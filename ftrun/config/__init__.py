"""The settings of a run: options, environment, file, script, checked before anything starts.

Not here: what a machine has (agent/devices.py), the lighthouse's settings (lighthouse/settings.py).
"""
