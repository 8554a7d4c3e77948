"""Tests of ftrun/base."""
