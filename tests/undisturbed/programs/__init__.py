"""The programs, many in a file: each file is a script for torchrun (../table.py)."""
