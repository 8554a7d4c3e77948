"""What training scripts import: the Manager and what goes with it.

Reach it as ``from ftrun import Manager``; nothing is imported here.
"""
