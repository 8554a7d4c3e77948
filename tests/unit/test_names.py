"""Every file, room or function that a docstring or a document names is there, under that name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOUSE = ("ftrun", "tests", "scripts", "examples", "docs")
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "INVARIANTS.md", "SECURITY.md"),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
NAME = re.compile(r"(?<![\w./$~<-])((?:[\w-]+/)*[\w-]+\.(?:py|proto)|(?:[a-z_]+/)+)(?![\w/<$.*{])")
FUNCTIONS = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py): ([^`]+)`")
"""In documents: a file of ftrun/, and functions, methods or classes in it."""
FOREIGN = re.compile(r"<!-- table: begin -->.*?<!-- table: end -->", re.DOTALL)
"""In docs/REAL_SCRIPTS.md: scripts of other repositories."""
NOT_OURS = {"train.py", "utils.py", "threading.py", "train_ddp.py", "train_diloco.py"}
"""The reader's own script, what CONTRIBUTING forbids, Python's, and two scripts of torchft."""


def paths() -> set[str]:
    """Every file and room of the house, from its root, with a slash before it; rooms end in one."""
    found = {f"/{path.name}" for path in ROOT.iterdir() if path.is_file()}
    for part in HOUSE:
        found.add(f"/{part}/")
        for path in (ROOT / part).rglob("*"):
            if "__pycache__" not in path.parts:
                found.add(f"/{path.relative_to(ROOT)}" + ("/" if path.is_dir() else ""))
    return found


def docstrings() -> Iterator[tuple[str, str]]:
    """(where, text) of each docstring in the house."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for part in HOUSE:
        for path in sorted((ROOT / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                    yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", text


def test_what_docstrings_and_documents_name_is_there() -> None:
    known = paths()
    texts = [*docstrings(), *((name, (ROOT / name).read_text()) for name in DOCUMENTS)]
    texts = [(where, FOREIGN.sub("", text)) for where, text in texts]
    missing = [
        f"{where}: {name}"
        for where, text in texts
        for name in NAME.findall(text)
        if name not in NOT_OURS and not any(path.endswith(f"/{name}") for path in known)
    ]
    assert not missing, "\n".join(missing)


def missing_functions(text: str) -> list[str]:
    """Each pair of file and function in ``text`` whose file, below ftrun/, does not define it."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    missing = []
    for file, names in FUNCTIONS.findall(text):
        path = ROOT / "ftrun" / file
        tree = ast.walk(ast.parse(path.read_text())) if path.is_file() else ()
        defined = {node.name for node in tree if isinstance(node, kinds)}
        missing += [f"{file}: {name}" for name in names.split(", ") if name not in defined]
    return missing


def test_each_function_that_documents_name_is_there() -> None:
    texts = {name: (ROOT / name).read_text() for name in DOCUMENTS}
    found = FUNCTIONS.findall(texts["ARCHITECTURE.md"])
    assert len(found) >= 30, "the walks are not written as `path.py: function`"
    missing = [f"{name}: {where}" for name in DOCUMENTS for where in missing_functions(texts[name])]
    assert not missing, "\n".join(missing)


def test_a_function_or_a_file_that_is_not_there_is_found() -> None:
    text = "`core/quorum.py: Quorum, no_such` → `agent/no_such.py: run`, in `core/quorum.py`"
    assert missing_functions(text) == ["core/quorum.py: no_such", "agent/no_such.py: run"]
