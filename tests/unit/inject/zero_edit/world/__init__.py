"""The script's process groups."""
