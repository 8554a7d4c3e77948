"""The error of a step, as ``Manager.errored()`` returns it.

Not here: when a step has an error (step_flow.py, in_flight.py).
"""

from __future__ import annotations

import traceback


class ExceptionWithTraceback(Exception):
    """An error of a step with the stack on which it was raised.

    Attributes:
        original_exception: the error itself.
        stack_trace: its traceback as text; "" if it was reported without being raised.
    """

    def __init__(self, e: Exception) -> None:
        self.original_exception = e
        raised = e.__traceback__ is not None
        self.stack_trace = "".join(traceback.format_exception(e)) if raised else ""
        super().__init__(f"{e}\n{self.stack_trace}" if raised else str(e))
