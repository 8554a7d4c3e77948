"""The Manager, and all else that training scripts import.

Reach it as ``from ftrun import Manager``; nothing is imported here.
"""
