"""Tests that need the real torchft-nightly, beside which ours is compared.

They are skipped where it is not installed: ``pip install -e .[bench] parameterized``, then
``python -m pytest tests/torchft -m slow``. (Only test_on_ours.py needs ``parameterized``.)
"""
