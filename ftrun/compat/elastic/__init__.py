"""What torchelastic's agent and launcher do, on ftrun's agent. Begin with ``launcher.py``.

Not here: the public names (``ftrun.elastic``).
"""
