"""Replicas that are threads of one program, as in torchft's tests and in notebooks.

Importing this package (``ftrun.torchft`` does) gives the Managers of this process seats among
threads. Not here: a Manager's side of its seat (training/seats.py).
"""

from __future__ import annotations

from ftrun.training.seats import Seat, SeatAsked, serve


def _take(asked: SeatAsked) -> Seat:
    from ftrun.compat.threads.seats import take_seat  # late: it loads gRPC

    return take_seat(asked)


serve(_take)
