"""The commands as typed: a file for each, with its options. Begin with app.py.

Not here: what they do (a room each), and the settings of a run (config/).
"""
