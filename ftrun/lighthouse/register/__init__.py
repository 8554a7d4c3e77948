"""The shell of core/register/: the stores of the register, and the loop that runs the machine.

Begin with ``store.py``. Not here: any decision (core/register/).
"""
