"""Which of several lighthouses leads: decided by compare-and-set on one register.

Not here: the stores that hold it, clocks, threads (lighthouse/).
"""
