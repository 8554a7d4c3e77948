"""Small programs whose output under torchrun and under ``ftrun --replicas`` is the same text."""
