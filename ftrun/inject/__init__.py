"""A worker process before and around the user's script.

Not here: the fork and the exec (agent/), the Manager (training/).
"""
