"""What every room uses: the clock, the errors, addresses, processes and files of this machine.

It imports nothing of ftrun but itself, and no torch.
"""
