"""Tests that need the real torchft-nightly, beside which ours is compared.

They are skipped where it is not installed: ``pip install torchft-nightly==2026.10.26``, then
``python -m pytest tests/torchft -m slow``.
"""
