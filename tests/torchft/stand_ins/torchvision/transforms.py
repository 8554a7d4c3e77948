"""The transforms that train_ddp.py names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class ToTensor:
    """Height, width and channels in bytes become channels, height and width from 0 to 1."""

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255


class Normalize:
    """Subtracts a mean of each channel, and divides by its deviation."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self._mean) / self._std


class Compose:
    """One after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self._transforms:
            image = transform(image)
        return image
