"""The state of a replica, carried from donors to a newcomer without pickle.

``format`` turns a state tree into a header and raw bytes, ``layout`` is the address space those
bytes lie in, ``serve`` offers them over HTTP, ``heal`` fetches them, ``transport`` puts torchft's
``CheckpointTransport`` names on the two. Not here: when to heal and from whom (core/), and what is
done with a fetched state (training/).
"""
