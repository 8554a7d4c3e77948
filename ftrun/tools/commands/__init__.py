"""The commands as typed: a file for each, with its options. Begin with app.py.

Not here: the work (a package for each), the settings of a run (config/).
"""
