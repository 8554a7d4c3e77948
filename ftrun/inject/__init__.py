"""A worker process before and around the user's script.

Not here: the fork (agent/), the Manager (training/).
"""
