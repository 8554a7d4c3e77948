"""torchft.local_sgd: LocalSGD and DiLoCo (training/local_sgd.py, training/diloco.py)."""

from ftrun.training.diloco import USE_BUCKETIZATION_ENV, DiLoCo
from ftrun.training.local_sgd import LocalSGD, extract_local_tensor

__all__ = ["USE_BUCKETIZATION_ENV", "DiLoCo", "LocalSGD", "extract_local_tensor"]
