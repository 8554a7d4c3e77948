"""Tests of ftrun/operate."""
