"""A replica group on several nodes: one agent leads it, the agents of its other nodes are its
hands.

The lead has the supervisor, the group's store and the link to the lighthouse, which sees one agent.
A hand starts, signals and watches the workers of its node for the lead. Begin with ``lead.py``;
``main.py`` decides which node leads. Not here: which nodes make the team (core/teams/), their
messages (core/messages/in_a_team.py).
"""
