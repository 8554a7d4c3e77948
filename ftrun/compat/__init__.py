"""Support for programs written for torchft or torchelastic.

``elastic``: torchelastic's agent and launcher on ftrun's. ``torchft_wire``: torchft's gRPC.
``threads``: replicas that are threads of one program. The public names are ``ftrun.elastic`` and
``ftrun.torchft``, which import from here. No other package does, so a job without these names loads
none of it.
"""
