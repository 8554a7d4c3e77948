"""Real processes: ftrun as users run it."""
