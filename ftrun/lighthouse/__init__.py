"""The shell around core/lighthouse/: gRPC for agents, a journal on disk, HTTP for people.

Not here: any decision (core/).
"""
