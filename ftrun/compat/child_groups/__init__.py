"""Process groups in a process of their own, as torchft's "baby" groups. Begin with ``group.py``."""
