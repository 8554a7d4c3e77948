"""The Manager, and everything else that training scripts import.

Import it as ``from ftrun import Manager``; nothing is imported here.
"""
