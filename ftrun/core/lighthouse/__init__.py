"""One job's membership: which replicas train together, from which state, on which nodes.

Begin with phases.py (the theory of operation), then membership.py for replicas and machine.py for
agents. Not here: streams, the journal's file, HTTP (lighthouse/).
"""
