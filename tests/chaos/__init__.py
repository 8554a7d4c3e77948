"""Chaos: real jobs, real faults drawn by seed, and checks of the outcome."""
