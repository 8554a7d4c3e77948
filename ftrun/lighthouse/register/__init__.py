"""The register of core/register/ in the world: its stores, and what runs the machine.

Begin with ``store.py``. Not here: any decision (core/register/).
"""
