"""Which nodes make a replica group that is larger than a node.

Not here: what its agents tell each other (core/messages/in_a_team.py), streams (agent/team/).
"""
