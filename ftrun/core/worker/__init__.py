"""One worker's decisions: begin a step, repair it, heal, commit, switch quorums, leave.

Begin with machine.py. Not here: threads, sockets and tensors (training/).
"""
