"""torchft's gRPC: a lighthouse, a replica group's manager, and the clients of both.

No token and no TLS: their protocol has none. ``service.py`` is what ``ftrun lighthouse`` serves.
Not here: decisions (core/torchft_quorum/), torchft's classes (torchft/coordination.py).
"""
