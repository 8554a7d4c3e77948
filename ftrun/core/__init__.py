"""Pure decisions: standard library only; no clock, no randomness, no sockets, no torch.

Every core takes events and returns instructions; the shells around it touch the world.
"""
