"""``python -m ftrun`` is ``ftrun``."""

from ftrun.cli import main

if __name__ == "__main__":
    main()
