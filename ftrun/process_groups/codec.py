"""Values as 8-bit numbers in rows, with one scale per row: a quarter of float32.

A row is ``ROW_VALUES`` values. It is encoded as its scale (float32, four bytes) and one byte per
value. The scale maps the row's largest magnitude *a* to the largest number of the kind:

| kind | numbers        | a value is off by at most               |
|------|----------------|-----------------------------------------|
| int8 | -127 … 127     | a / 254                                 |
| fp8  | float8_e4m3fn  | 1/16 of its own magnitude, or a / 2^18  |

A row that contains an infinity or NaN is decoded as NaN, so that a guard detects it. If all values
of a row are below 1e-37 they become zero, because float32 has no scale for them.

Only torch's operations are used, so the same code runs on each device. Not here: who sends the
bytes to whom (quantized.py, quantized_messages.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

ROW_VALUES = 256
SCALE_BYTES = 4
ROW_BYTES = SCALE_BYTES + ROW_VALUES
SMALLEST = 1e-37
BLOCK_ROWS = 4096
"""Rows that are encoded at a time, so that intermediate values stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One kind of 8-bit numbers; ``largest``: the largest of them."""

    name: str
    dtype: torch.dtype
    largest: float

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """(rows, ROW_VALUES) of float32 → (rows, ROW_BYTES) of uint8."""
        rows = values.shape[0]
        encoded = torch.empty((rows, ROW_BYTES), dtype=torch.uint8, device=values.device)
        for first in range(0, rows, BLOCK_ROWS):
            block = slice(first, first + BLOCK_ROWS)
            self._encode_block(values[block], encoded[block])
        return encoded

    def _encode_block(self, values: torch.Tensor, encoded: torch.Tensor) -> None:
        magnitude = values.abs().amax(dim=1, keepdim=True)
        scale = magnitude / self.largest
        factor = torch.where(magnitude >= SMALLEST, self.largest / magnitude, 0.0)
        scaled = (values * factor).nan_to_num_(0.0, 0.0, 0.0)  # the scale makes their row NaN
        scaled.clamp_(-self.largest, self.largest)
        if not self.dtype.is_floating_point:
            scaled.round_()
        encoded[:, :SCALE_BYTES] = scale.view(torch.uint8)
        encoded[:, SCALE_BYTES:] = scaled.to(self.dtype).view(torch.uint8)

    def decode(self, encoded: torch.Tensor) -> torch.Tensor:
        """(rows, ROW_BYTES) of uint8 → (rows, ROW_VALUES) of float32."""
        out = torch.empty(
            (encoded.shape[0], ROW_VALUES), dtype=torch.float32, device=encoded.device
        )
        for block, values in self._decoded(encoded):
            out[block] = values
        return out

    def add(self, encoded: torch.Tensor, total: torch.Tensor) -> None:
        """Add encoded rows to ``total``, rows of float32."""
        for block, values in self._decoded(encoded):
            total[block] += values

    def write(self, encoded: torch.Tensor, tensor: torch.Tensor) -> None:
        """Decode rows that ``rows_of`` made of ``tensor``'s values into ``tensor``."""
        if not tensor.is_contiguous():
            write_rows(self.decode(encoded), tensor)
            return
        flat = tensor.view(-1)
        for block, values in self._decoded(encoded):
            part = flat[block.start * ROW_VALUES : block.stop * ROW_VALUES]
            part.copy_(values.view(-1)[: part.numel()])

    def _decoded(self, encoded: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """The values, some rows at a time."""
        for first in range(0, encoded.shape[0], BLOCK_ROWS):
            block = slice(first, first + BLOCK_ROWS)
            part = encoded[block]
            scale = part[:, :SCALE_BYTES].contiguous().view(torch.float32)
            numbers = part[:, SCALE_BYTES:].contiguous().view(self.dtype)
            yield block, numbers.to(torch.float32).mul_(scale)


CODECS = {
    "int8": Codec("int8", torch.int8, 127.0),
    "fp8": Codec("fp8", torch.float8_e4m3fn, 448.0),
}
DEFAULT = "int8"


def rows_of(tensor: torch.Tensor, parts: int) -> torch.Tensor:
    """The values of ``tensor`` as float32 rows, zero-padded to a multiple of ``parts``."""
    flat = tensor.detach().reshape(-1).to(torch.float32)
    rows = -(-flat.numel() // ROW_VALUES)
    rows = -(-max(rows, 1) // parts) * parts
    lacking = rows * ROW_VALUES - flat.numel()
    if lacking:
        flat = torch.nn.functional.pad(flat, (0, lacking))
    return flat.view(rows, ROW_VALUES)


def write_rows(rows: torch.Tensor, tensor: torch.Tensor) -> None:
    """Write rows that ``rows_of`` made of ``tensor``'s values back into ``tensor``."""
    tensor.copy_(rows.reshape(-1)[: tensor.numel()].view(tensor.shape))
