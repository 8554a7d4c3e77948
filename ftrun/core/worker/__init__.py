"""One worker's decisions: begin a step, repair it, heal, commit, switch quorums, leave.

Read machine.py first. Not here: threads, sockets and tensors (training/).
"""
