"""Recovery without replicas: a lost worker is replaced inside its group, and no step is lost.

``settling.py``: what a process of the group does. ``mending.py``: what its agent does.
``falls.py``: why a death cannot be mended. ``pacing.py``: how often states are copied. Not here:
memory, processes and tensors (snapshots/area.py, agent/, inject/zero_edit/world/).
"""
