"""CIFAR10's shape with random pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLES, CLASSES = 4096, 10


class CIFAR10:
    """``SAMPLES`` images of 32 × 32 × 3 bytes with a label each; nothing is downloaded."""

    def __init__(
        self,
        root: str,
        train: bool = True,
        download: bool = False,
        transform: Callable[[Any], Any] = lambda image: image,
    ) -> None:
        numbers = np.random.default_rng(int(train))
        self._images = numbers.integers(0, 256, (SAMPLES, 32, 32, 3), dtype=np.uint8)
        self._labels = numbers.integers(0, CLASSES, SAMPLES)
        self._transform = transform

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> tuple[Any, int]:
        image: NDArray[np.uint8] = self._images[at]
        return self._transform(image), int(self._labels[at])
