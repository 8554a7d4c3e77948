"""The books of one job: the use of its time, its failures, its changes of membership.

They receive facts (facts.py) and do not read the lighthouse's state. No decision depends on them.
Begin with books.py. Not here: the sender of the facts (lighthouse/telling.py), what is shown of the
books (lighthouse/snapshot.py), their files (lighthouse/ of the service).
"""
