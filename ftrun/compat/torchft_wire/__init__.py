"""torchft's gRPC: a lighthouse, a replica group's manager, and the clients of both.

torchft's protocol has no token and no TLS. ``ftrun lighthouse`` serves ``service.py``. Not here:
decisions (core/torchft_quorum/), torchft's classes (torchft/coordination.py).
"""
