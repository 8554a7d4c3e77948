"""Used by all packages: the clock, errors, addresses, words, processes and files of this machine.

It imports nothing else of ftrun, and no torch.
"""
