"""The shell around core/lighthouse/machine.py: gRPC for agents, a journal on disk, HTTP for people.

Not here: any decision (core/).
"""
