"""Replicas that are threads of one program, as in torchft's tests and in notebooks.

Not here: a Manager's side of its seat (training/seats.py).
"""
