"""Stands in for torchvision where torchft's train_ddp.py is tried without a download.

Images of the size of CIFAR10, drawn by a seed, and the three transforms that the script names.
"""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
