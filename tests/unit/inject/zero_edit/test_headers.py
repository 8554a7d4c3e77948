"""A script whose loops are followed does what it does under Python, in all forms."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ftrun.inject.zero_edit import headers
from ftrun.inject.zero_edit.counting import RANGES
from tests.unit.inject.forked import fork_and_run

FORMS = """
random.Random(3).sample(range(10), 3)
random.Random(3).choice(range(10))
random.Random(3).choices(range(10), k=2)
isinstance(range(10), collections.abc.Sequence)
isinstance(range(3), range), isinstance(enumerate("a"), enumerate), isinstance(count(), count)
type(range(3)) is range, type(enumerate([])) is enumerate, type(count()) is count
range is builtins.range, enumerate is builtins.enumerate, count is itertools.count
range(10)[2:8:2], range(10)[-1], range(10).index(3), range(10).count(3)
pickle.loads(pickle.dumps(range(3))), copy.deepcopy(range(3)), copy.copy(iter(range(3))).__next__()
{range(3): 1}[range(3)], hash(range(3)), range(3) == range(0, 3)
[*range(3)], sum(range(4)), sorted(range(3)), list(reversed(range(3))), list(zip(range(2), "ab"))
numpy.array(range(3)).tolist(), numpy.random.default_rng(1).choice(range(9), 2).shape
[numpy.zeros(3)[i] for i in range(3)], numpy.arange(6)[range(2)].tolist()
bytes(range(3)), repr(range(3)), str(enumerate)
typing.get_type_hints(hinted), typing.get_args(list[range]), range in vars(builtins).values()
[i for i in range(3) if i], {i: j for i, j in enumerate("ab")}, {i for i in range(2)}
[(i, j) for i in range(2) for j in range(i, 2)], list(i for i in range(3))
[x for x in loops()], dict(enumerate(range(3), 1)), next(iter(enumerate("ab", 7)))
[name for name in vars(ranges) if not name.startswith("_")]
inspect.getsource(loops), inspect.signature(loops), loops.__code__.co_firstlineno, loops.__doc__
sorted(loops.__code__.co_varnames), loops.__code__.co_argcount, ranges.__doc__
errors(broken), errors(bad_type), errors(bad_value)
[*whiles()], errors(bad_test), errors(bad_truth), sorted(whiles.__code__.co_varnames)
[*whiles()][-1], whiles.__code__.co_firstlineno
twice(enumerate("abcd")), twice(count(3)), twice(iter(range(5))), twice(x for x in "abcd")
jitted.__code__.co_names
"""
LIBRARY = '''"""Loops of all forms."""
from __future__ import annotations
import builtins, collections.abc, copy, inspect, itertools, pickle, random, sys, traceback, typing
import numpy
from itertools import count

ranges = sys.modules[__name__]

def hinted(x: range, y: "enumerate") -> list[range]: ...

def loops():
    """Of several forms."""
    for i in range(3):
        for j, x in enumerate("ab"):
            yield i, j, x
    else:
        yield "else"
    for k in count(5):
        if k > 7: break
        yield k
    for x in [1, 2]: yield x
    for (a, b), *c in zip([(1, 2)], range(9)): yield a, b, c
    for i in range(2) or range(3): yield i
    for x in (lambda: range(2))(): yield x
    for i in (n := range(2)): yield i, n
    for i in range(2): continue

def whiles():
    """Of several forms."""
    n = 0
    while n < 3:
        n += len("a")
        if n == 2: continue
        yield n
    while (
        n
        and True
    ):
        n -= len("a")
        while True:
            yield "inner", n
            break
    while n < 2: n += len("a"); yield n
    while len("a") > n:
        yield "never"
    else:
        yield "else"
    try:
        while True:
            try:
                return len("a")
            finally:
                yield "finally"
    finally:
        yield n

def bad_test():
    while len(
        0
    ):
        len("a")

def bad_truth():
    while numpy.zeros(2): len("a")

def twice(it):
    """The second loop goes on where the first one was left."""
    first = []
    for x in it:
        first.append(x)
        break
    for x in it:
        return first, x

def broken():
    for x in range(
        2
    ):
        for y in [1]: raise ValueError(x)

def bad_type(n=5):
    for x in n: pass

def bad_value():
    return [x for x in range("a")]

def njit(f): return f

@njit
def jitted(n):
    for i in range(n): pass

def errors(f):
    try:
        f()
    except Exception as error:
        return traceback.format_exception(error)
'''


def results(path: Path, code: Any) -> list[str]:
    """What each form comes to."""
    module = ModuleType("loops")
    module.__file__ = str(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "loops", module)
        exec(code, vars(module))
        forms = FORMS.strip().splitlines()
        return [f"{x}: {eval(x, vars(module))}" for x in forms]  # noqa: S307


def test_all_forms_are_as_under_python(tmp_path: Path) -> None:
    path = tmp_path / "loops.py"
    path.write_text(LIBRARY)
    RANGES.is_on = True
    code = headers.compiled(LIBRARY.encode(), str(path))
    assert code is not None and headers.NAME in code.co_names
    plain = compile(LIBRARY, str(path), "exec", dont_inherit=True)
    assert results(path, code) == results(path, plain)
    assert [x[2] for x in code.co_lines()][:1] == [x[2] for x in plain.co_lines()][:1]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "for x in [1]: f()",
        "for x in f(): x += 1",
        "for x in range(3)",
        "for\0",
        "while x: x -= 1",
        "while x: f()\nelse: g()",
    ],
)
def test_what_has_no_loop_to_follow_or_an_error_is_left_to_python(source: str) -> None:
    RANGES.is_on = True
    assert headers.compiled(source.encode(), "script.py") is None


def test_a_compiled_file_is_kept_for_a_later_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers._Cache, "directory", tmp_path)
    RANGES.is_on = True
    source, path = b"for x in range(3): print(x)", str(tmp_path / "script.py")
    code = headers.compiled(source, path)
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(headers, "_compiled", None)
    assert code is not None and headers.compiled(source, path) == code
    kept.write_bytes(b"torn")
    monkeypatch.undo()
    assert headers.compiled(source, path) == code


MAIN = """
import builtins, glob, os, sys
sys.dont_write_bytecode = False
import beside
from package import inner
def main():
    for i in range(2):
        yield i
print(list(main()), range is builtins.range, beside.loop(), inner.loop())
here = os.path.dirname(os.path.abspath(__file__))
cached = glob.glob(os.path.join(here, "**", "*.pyc"), recursive=True)
print(sorted(os.path.basename(x).partition(".")[0] for x in cached))
print(*["follow" in str(f.__code__.co_names) for f in (main, beside.loop, inner.loop)])
print(next(iter(__import__("inspect").getsourcelines(beside.loop))))
"""
LOOP = "def loop():\n    return [int(i) for i in range(3)]\n"


@pytest.mark.parametrize("kind", ["file", "module"])
@pytest.mark.parametrize("inject", ["auto", "explicit"])
def test_files_and_modules_of_the_script_are_followed_and_not_cached(
    tmp_path: Path, kind: str, inject: str
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "beside.py").write_text(LOOP)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text(LOOP)
    targets = [str(tmp_path / "script.py")] if kind == "file" else ["script"]
    facts = {"inject": inject, "replicas": 2, "kind": kind, "targets": targets}
    done = fork_and_run(tmp_path, MAIN, **facts)
    lines = done.stdout.splitlines()
    is_followed = inject == "auto"
    assert lines[0] == "[0, 1] True [0, 1, 2] [0, 1, 2]", done.stderr
    assert lines[2] == " ".join([str(is_followed)] * 3)
    cached = ["__init__"] if is_followed else ["__init__", "beside", "inner"]
    assert lines[1] in (str(cached), str([*cached, *["script"][is_followed:]]))  # python -m may
    assert lines[3] == str(LOOP.splitlines(keepends=True))
