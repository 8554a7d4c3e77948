"""Runs the tests, and other checks beside them: what ``scripts/test`` calls.

    scripts/test                            the gate: what each change must pass
    scripts/test all                        every test but the slow ones, as .ci/run
    scripts/test all --write-durations      and note how long each file took: the longest come first
    scripts/test tests/unit/core -x         options go to pytest, which then is one process

A test that fails in ``all`` is run again by itself, once, in a process of its own. If it passes
then, the run passes, and ``flaky: NAME`` is printed with the first traceback. Nothing is run again
after more than ``FLAKES_MAX`` failures, and nothing else is excused: an error in collection, a
process that crashed, a check. An example that Hypothesis has found is kept, so it fails again.

Not here: which tests are in the gate (levels.py), what pytest reports (recording.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.suite.durations import ROOT, write_files, write_slowest
from tests.suite.levels import missing

LINTERS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("lint-imports",))
CHECKS = (*LINTERS, ("scripts/core_coverage",))
"""Beside the tests of ``all``. The last one takes 40 s of a core: it runs the tests of the cores
once more, with a tenth of the examples, because to follow each branch of the run itself, whose
examples are 10 times as many and other ones each time, would cost minutes and be chance."""
CHECK_TIMEOUT_S = 600.0
FLAKES_MAX = 10
AGAIN_TIMEOUT_S = 900.0
WRITE_DURATIONS = "--write-durations"
USAGE_ERROR = 2
TESTS_FAILED = 1  # pytest's exit code for "some tests failed", and for nothing else


def main(words: Sequence[str]) -> int:
    """Run the level, or pytest with the options, that ``words`` name; returns the exit code."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # pytest prints there
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is pytest's to act on; its end is ours
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # takes pytest along
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        checks = pool.submit(check, CHECKS if words[:1] == ["all"] else LINTERS)
        code = run_tests(words)
        code = report_checks(checks) or code
    verdict = "passed" if code == 0 else "FAILED"
    seconds = time.monotonic() - began
    print(f"scripts/test: {verdict} in {seconds:.0f} s, {len(os.sched_getaffinity(0))} cores")
    return code


def run_tests(words: Sequence[str]) -> int:
    """Pytest, and again what has failed; returns the exit code."""
    is_all = words[:1] == ["all"]
    if words and not is_all:
        return pytest(words).code
    if unknown := [word for word in words[1:] if word != WRITE_DURATIONS]:
        print(f"scripts/test: all takes {WRITE_DURATIONS} only, not {' '.join(unknown)}")
        return USAGE_ERROR
    options, marks = level_options(is_all)
    began = time.monotonic()
    run = pytest([*options, *side_by_side(is_all), "-m", marks])
    code = run.code
    if is_all and code == TESTS_FAILED:
        code = run_again(run, options)
    for name in missing(run.seconds):
        print(f"not run: {name}, which the gate keeps (tests/suite/levels.py)")
        code = code or TESTS_FAILED
    if WRITE_DURATIONS in words:
        write_files(run.seconds)
    print(f"durations of the slowest tests: {write_slowest(run.seconds).relative_to(ROOT)}")
    words_of = {"failed": "flaky"} if code == 0 else {}
    found = sorted(run.counts.items())
    counts = [f"{count} {words_of.get(name, name)}" for name, count in found if count]
    print(f"tests: {', '.join(counts)} in {time.monotonic() - began:.0f} s")
    return code


def level_options(is_all: bool) -> tuple[list[str], str]:
    """Pytest's options of a level, and its marks. Only ``all`` draws examples with fresh seeds."""
    if is_all:
        return ["--hypothesis-profile", "fresh seeds"], "not slow"
    return [], "not slow and not long"


def side_by_side(is_all: bool) -> list[str]:
    """Share whole files between more processes than cores, because real jobs, most of all in
    ``all``, wait."""
    cores = len(os.sched_getaffinity(0))
    processes = os.environ.get("TEST_PROCESSES", str(min(cores + 1 + is_all, 8)))
    return ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]


@dataclass(frozen=True)
class Run:
    """The results of a run of pytest; ``failures``: the tracebacks of each test that failed."""

    code: int
    seconds: dict[str, float]
    counts: dict[str, int]
    failures: dict[str, str]
    broken: list[str]


def pytest(options: Sequence[str], timeout_s: float | None = None, root: Path = ROOT) -> Run:
    """Run pytest in a new process, which prints to our output."""
    with TemporaryDirectory() as directory:
        record = Path(directory, "record.json")
        plugin = ("-p", "tests.suite.recording", "--record", str(record))
        command = [sys.executable, "-m", "pytest", *plugin, *options]
        try:
            code = subprocess.run(command, cwd=root, timeout=timeout_s, check=False).returncode
        except subprocess.TimeoutExpired:
            return Run(-1, {}, {}, {}, [f"pytest has not ended within {timeout_s:.0f} s"])
        if not record.exists():
            return Run(code, {}, {}, {}, ["pytest has not recorded what it found"])
        return Run(code, **json.loads(record.read_text()))


def run_again(run: Run, options: Sequence[str], root: Path = ROOT) -> int:
    """Run each failed test by itself, once; 0 if they all pass and there was no other error."""
    for text in run.broken:
        print(f"not excused: {text}")
    if run.broken or not 0 < len(run.failures) <= FLAKES_MAX:
        print(f"tests that failed: {len(run.failures)}; none is run again")
        return run.code
    code = 0
    for name, traceback in run.failures.items():
        print(f"again: {name}")
        if pytest([*options, name], AGAIN_TIMEOUT_S, root).code == 0:
            print(f"{traceback}flaky: {name}")
        else:
            print(f"failed again: {name}")
            code = run.code
    return code


def check(checks: Sequence[Sequence[str]]) -> list[tuple[str, int, str]]:
    """Each check's words, exit code and output. One without a path is a tool beside Python."""
    found = []
    for words in checks:
        is_script = "/" in words[0]
        tool = ROOT / words[0] if is_script else Path(sys.executable).with_name(words[0])
        done = subprocess.run(
            [str(tool), *words[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
        found.append((" ".join(words), done.returncode, done.stdout + done.stderr))
    return found


def report_checks(checks: Future[list[tuple[str, int, str]]]) -> int:
    """Print the whole output of those that failed; returns the exit code."""
    outcomes = Counter[bool]()
    for name, code, output in checks.result():
        outcomes[code == 0] += 1
        if code != 0:
            print(f"\n== {name}: exit code {code}\n{output}")
    print(f"checks: {outcomes[True]} passed, {outcomes[False]} failed")
    return int(outcomes[False] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
