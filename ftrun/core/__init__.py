"""Pure decisions: standard library only; no clock, no randomness, no sockets, no torch.

Three programs decide here, each in its own corridor: ``worker`` (one training process), ``agent``
(one node), ``lighthouse`` (one job's membership). Each takes events and returns instructions; its
shell does all input and output. The corridors do not import each other. They share the modules of
this folder: ids, messages, quorum, activity, version. In ``replay`` agent and workers decide by the
same rules. ``books`` receives facts from the lighthouse, and decides nothing.
"""
