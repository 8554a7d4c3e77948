"""Process groups in a separate process, like torchft's "baby" groups. Begin with ``group.py``."""
