"""A directory on the path of processes that a script spawns: they import torchft as it does.

Not here: the worker's own imports (inject/torchft_names.py).
"""
