"""For those that come from torchft or torchelastic: what only their names and their wire need.

``elastic``: torchelastic's agent and launcher on ours. ``torchft_wire``: torchft's gRPC.
``threads``: replicas that are threads of one program. ``child_groups``: groups in a process of
their own. The public names are ``ftrun.elastic`` and ``ftrun.torchft``, which import from here.
No other room does, so a job without these names loads nothing of it.
"""
