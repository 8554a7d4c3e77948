"""Tests of ftrun/tools."""
