"""The state of a replica, transferred from donors to a newcomer without pickle.

``format`` turns a state tree into a structure and raw bytes. ``layout`` is the address space of
those bytes. ``serve`` offers them over HTTP and ``heal`` fetches them. ``transport`` puts torchft's
``CheckpointTransport`` names on the two. Not here: when to heal and from whom (core/), the use of a
fetched state (training/).
"""
