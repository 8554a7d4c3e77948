"""torchelastic's agent and launcher, on ftrun's agent. Begin with ``launcher.py``.

Not here: the public names (``ftrun.elastic``).
"""
