"""Where a main thread stands, in a few words."""

from __future__ import annotations

from ftrun.core.agent.stack_words import innermost

STACKS = """\
Current thread 0x00007f1cd6ef36c0 (most recent call first):
  File "/lib/threading.py", line 629 in wait
  File "/home/me/train.py", line 14 in stuck_here
  File "/home/me/train.py", line 24 in <module>
  File "/site/ftrun/inject/bootstrap.py", line 180 in _run_file
  File "<frozen runpy>", line 88 in _run_code

Thread 0x00007f1cbf7fe6c0 (most recent call first):
  File "/site/ftrun/training/link.py", line 78 in _run
"""
PY_SPY = """\
Process 812: ftrun worker 1.0
Python v3.11.7 (/usr/bin/python3.11)

Thread 812 (idle): "MainThread"
    wait (threading.py:629)
    stuck_here (train.py:14)
Thread 830 (idle): "ftrun-link"
    _run (ftrun/training/link.py:78)
"""


def test_the_main_thread_is_the_first_one_and_ends_at_the_script() -> None:
    assert innermost(STACKS) == (
        "wait (threading.py:629) < stuck_here (train.py:14) < <module> (train.py:24)"
    )
    assert innermost(PY_SPY) == "wait (threading.py:629) < stuck_here (train.py:14)"
    assert innermost(STACKS, 1) == "wait (threading.py:629)"


def test_what_cannot_be_read_has_no_words() -> None:
    assert innermost("") == ""
    assert innermost("Thread 0x1 (most recent call first):\n  <no Python frame>\n") == ""
