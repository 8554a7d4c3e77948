"""The election of one of several lighthouses, by compare-and-set on one register.

Not here: the stores of the register, clocks, threads (lighthouse/).
"""
