"""Tests of ftrun/engines."""
