"""Tests of ftrun/tools/operate."""
