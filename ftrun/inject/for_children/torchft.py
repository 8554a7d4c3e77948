"""``import torchft`` in a process that a worker's script has spawned by multiprocessing.

Such a process has the worker's path, but not its finder: this module puts that back, and itself
aside.
"""

import importlib
import sys

from ftrun.inject import torchft_names

torchft_names.answer()
sys.modules[torchft_names.NAME] = importlib.import_module(f"ftrun.{torchft_names.NAME}")
