"""Chaos: real jobs, real faults drawn by seed, and what must be true of the wreckage afterwards."""
