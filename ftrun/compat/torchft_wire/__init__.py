"""torchft's gRPC: a lighthouse, a replica group's manager, and the clients of both.

No token and no TLS: their protocol has none. Not here: decisions (core/torchft_quorum/), the
service of ``ftrun lighthouse`` (service.py), torchft's classes
(torchft/coordination.py).
"""
