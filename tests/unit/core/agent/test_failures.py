"""A failure's text, its exit code, and when two failures are the same."""

from __future__ import annotations

import pytest

from ftrun.core.agent import failures
from ftrun.core.agent.failures import Failure, exit_code_of, signal_name
from ftrun.core.messages import FailureReport


def report(message: str = "no", line: int = 3) -> FailureReport:
    trace = f'Traceback:\n  File "t.py", line {line}, in f\n    f()\nValueError: {message}'
    return FailureReport("ValueError", message, trace)


@pytest.mark.parametrize(
    ("failure", "words", "cause"),
    [
        (Failure("0", 0, 1, 0, -11), "SIGSEGV", "died: SIGSEGV"),
        (Failure("0", 0, 1, 0, -63), "signal 63", "died: signal 63"),
        (Failure("0", 0, 1, 0, 3), "exit code 3", "ended with exit code 3"),
        (Failure("0", 0, 1, 0, 1, report()), "ValueError: no", "failed: ValueError: no"),
        (Failure("0", 0, 1, 0, 1, report("")), "ValueError", "failed: ValueError"),
        (Failure("0", 0, 0, 0, 1, None, "no memory"), "no memory", "no memory"),
        (
            Failure("0", 0, 1, 0, -9, on_request=True),
            "killed on request",
            "was killed on request (ftrun kill)",
        ),
    ],
)
def test_words_and_cause(failure: Failure, words: str, cause: str) -> None:
    assert failure.words() == words
    assert failure.cause() == cause


def test_only_the_first_line_of_a_message_is_shown() -> None:
    assert Failure("0", 0, 1, 0, 1, report("a\nb")).words() == "ValueError: a"


def test_a_traceback_is_the_same_whatever_its_message_says() -> None:
    one = Failure("0", 0, 1, 0, 1, report("at 0x1"))
    two = Failure("1", 1, 2, 5, 1, report("at 0x2"))
    assert one.signature() == two.signature()
    assert one.signature() != Failure("0", 0, 1, 0, 1, report(line=4)).signature()


@pytest.mark.parametrize(
    ("status", "reason", "signature"),
    [
        (-11, "", "SIGSEGV"),
        (-6, "", "SIGABRT"),
        (-9, "", None),
        (-15, "", None),
        (42, "", "exit code 42"),
        (-9, "was given up: silent", None),
    ],
)
def test_what_comes_from_outside_has_no_signature(
    status: int, reason: str, signature: str | None
) -> None:
    assert Failure("0", 0, 1, 0, status, None, reason).signature() == signature


def test_exit_codes_pass_through_and_signals_are_128_above() -> None:
    assert exit_code_of(42) == 42
    assert exit_code_of(-9) == 137
    assert signal_name(15) == "SIGTERM"


def test_where_it_raised_is_the_innermost_line_and_ftrun_s_own_are_known() -> None:
    trace = 'File "/a/train.py", line 3, in <module>\n  File "{}", line 28, in step\n    x()\n'
    script = FailureReport("ValueError", "no", trace.format("/b/model.py"))
    ours = FailureReport("UserError", "no", trace.format(failures.__file__))
    at = Failure("0", 0, 1, 0, 1, script).raised_at
    assert (str(at), at is not None and at.is_of_ftrun) == ("model.py:28", False)
    at = Failure("0", 0, 1, 0, 1, ours).raised_at
    assert at is not None and at.is_of_ftrun
    assert Failure("0", 0, 1, 0, 1, FailureReport("SystemExit", "no", "")).raised_at is None
    assert Failure("0", 0, 1, 0, -9).raised_at is None
