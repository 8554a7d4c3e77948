"""Which nodes make a replica group that is larger than a node.

Not here: the messages between its agents (core/messages/in_a_team.py), streams (agent/team/).
"""
