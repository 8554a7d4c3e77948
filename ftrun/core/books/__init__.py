"""The books of one job: what its time goes to, its failures, its changes of membership.

They receive facts (facts.py), and see nothing of the lighthouse's state; nobody decides by them.
Begin with books.py. Not here: who sends the facts (lighthouse/telling.py), what is shown of the
books (lighthouse/snapshot.py), their files (lighthouse/ of the service).
"""
