"""Training scripts of public repositories, run under torchrun and under ``ftrun --replicas``.

The rows are table.toml; no file of a foreign script is in this repository. Not here: the command
(scripts/real_scripts).
"""
