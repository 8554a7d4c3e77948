"""Recovery without replicas: a lost worker is replaced inside its group, and no step is lost.

``settling.py``: what a worker process does. ``mending.py``: what the group's agent does.
``falls.py``: the reasons why a worker cannot be replaced alone. ``pacing.py``: how often workers
copy their states. ``alike.py``: silent corruption. Not here: memory, processes and tensors
(snapshots/area.py, agent/, inject/zero_edit/world/).
"""
