"""For every room: the clock, errors, addresses, words, processes and files of this machine.

It imports nothing of ftrun but itself, and no torch.
"""
