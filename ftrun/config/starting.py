"""How a worker starts: forked from a process that has torch, or as a new interpreter.

A fork starts at once, with torch and numpy loaded. It does not suit a script that needs them to be
loaded later:

| the script | effect of a fork |
|---|---|
| sets a variable that is read when torch or numpy is loaded | the variable has no effect |
| is an installed tool that runs another script (``-m coverage``) | torch is loaded before it |
| runs with a variable that the interpreter itself acts on | the spawner acts on it instead |

``find`` reads the source, and in doubt reports such a variable. The cost of a false positive is
only a slower restart. Variables that are read later (``CUDA_VISIBLE_DEVICES``, those of NCCL and
Gloo: when a device or a group is first used) work in a fork too.

Not here: the start itself (agent/fresh.py), torchrun's PYTHON_EXEC (script.py).
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.config.script import Script, TargetKind
from ftrun.config.settings import RunSettings

AUTO, EXEC, FORK = "auto", "exec", "fork"
FILES_MAX = 32
"""The most files of the script that are read."""
FILE_BYTES_MAX = 1 << 20

AT_LOADING = re.compile(
    r"(?:OMP|GOMP|KMP|MKL|OPENBLAS|GOTO|BLIS|DNNL|MKLDNN|ONEDNN|NPY|NUMPY|ATEN|KINETO)_"
    r"|PYTORCH_(?!MPS_|ENABLE_MPS_)"
    r"|TORCH_(?!NCCL_|HOME$|EXTENSIONS_DIR$|CUDA_ARCH_LIST$)"
)
"""Variables that torch, numpy or one of their libraries reads when it is loaded."""
AT_COMPILER = re.compile(
    r"(?:TORCHDYNAMO|TORCHINDUCTOR|TORCHEXPORT|AOTINDUCTOR|AOT_INDUCTOR|INDUCTOR|TRITON|SYMPY)_"
    r"|TORCH_(?:COMPILE|COMPILER|DYNAMO|FAKE_TENSOR)_"
)
"""Variables that are read when torch's compiler is loaded, which may happen much later."""
OF_INTERPRETER = ("PYTHONPROFILEIMPORTTIME", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
"""Variables, read at an interpreter's start, that concern everything that it loads."""

_HURRIES = {"standby": "standbys", "preload": "preload"}
"""Options that only shorten a fork's start; their settings."""
_LOADS = frozenset({"torch", "torchvision", "torchaudio", "torchft"})
_READS = frozenset({"get", "getenv", "getenvb"})
_WORDS = (b"environ", b"putenv")


@dataclass(frozen=True, slots=True)
class Source:
    """A Python file. ``package``: the parts of its package's name."""

    name: str
    text: bytes
    package: tuple[str, ...] = ()


Look = Callable[[tuple[str, ...]], "Source | None"]
"""Returns the script's own module of this dotted name, in parts; None: it is not the script's."""


def find(script: Source, look: Look) -> str:
    """The first variable that the script sets and a fork would miss, as ``NAME at train.py:3``.

    A variable that is set after a module-level ``import torch`` is too late for torch in any
    process, so only the compiler's variables count there.

    Returns:
        "": the script sets no such variable.
    """
    search = _Search(look)
    search.enter(script)
    return search.found


@dataclass
class _Search:
    look: Look
    found: str = ""
    is_loaded: bool = False
    seen: set[str] = field(default_factory=set)

    def enter(self, source: Source) -> None:
        """Go through a module in the order in which its statements run."""
        if source.name in self.seen or len(self.seen) >= FILES_MAX:
            return
        self.seen.add(source.name)
        try:
            tree = ast.parse(source.text)
        except (SyntaxError, ValueError, RecursionError):
            return
        sets = any(word in source.text for word in _WORDS)
        for statement in tree.body:
            if sets and not self.found:
                names = AT_COMPILER if self.is_loaded else None
                self.found = _first_set(statement, source.name, names)
            for module in _imported(statement, source.package):
                if self.found:
                    return
                self._follow(module, runs_now=isinstance(statement, ast.Import | ast.ImportFrom))

    def _follow(self, module: tuple[str, ...], *, runs_now: bool) -> None:
        """Enter one of the script's own modules. In a function or a condition it may run later."""
        was_loaded = self.is_loaded
        if module[0] in _LOADS:
            self.is_loaded = True
        else:
            for depth in range(1, len(module) + 1):
                source = self.look(module[:depth])
                if source is not None:
                    self.enter(source)
        self.is_loaded = self.is_loaded if runs_now else was_loaded


def _first_set(statement: ast.stmt, file: str, names: re.Pattern[str] | None) -> str:
    """The first variable name in it that is not only read. ``names``: None: any name."""
    read: set[int] = set()
    for node in ast.walk(statement):
        read.update(id(part) for part in _only_read(node))
        for text, line in _texts(node):
            is_one = names.match(text) if names else is_read_at_start(text)
            if is_one and id(node) not in read:
                return f"{text} at {file}:{line}"
    return ""


def is_read_at_start(name: str) -> bool:
    """Whether a variable takes effect when torch, numpy or the compiler is loaded."""
    return bool(AT_LOADING.match(name) or AT_COMPILER.match(name))


def _texts(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Possible names of variables: texts, beginnings of f-strings, keywords."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        yield node.value, node.lineno
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value.lineno


def _only_read(node: ast.AST) -> Iterable[ast.AST]:
    """The parts that name a variable without setting it."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return (node.slice,)
    if isinstance(node, ast.Compare):
        return (node.left,)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return node.args[:1] if name in _READS else ()
    return ()


def _imported(statement: ast.stmt, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The modules that a statement imports, anywhere in it."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            if module:
                yield module
            yield from ((*module, alias.name) for alias in node.names if module or node.level)


# ---------------------------------------------------------------- of a run


def why_exec(settings: RunSettings, environ: Mapping[str, str]) -> str:
    """Why workers must be new interpreters; "": they may be forked.

    Under ``--start fork`` they are forked anyway, and this is what they miss.
    """
    script = settings.script
    if script.kind is TargetKind.COMMAND or script.python:
        return ""  # it becomes another program in any case
    if settings.start == EXEC:
        return "--start exec"
    for name in OF_INTERPRETER:
        if environ.get(name):
            return f"{name} changes the start of the interpreter"
    path = _source_of(script)
    tool = _tool(script, path)
    if tool:
        return f"{tool} runs another script, and may look at all loaded modules"
    if path is None:
        return ""
    where = find(*_beside(path, is_module=script.kind is TargetKind.MODULE))
    return f"the script sets {where}, which is read when torch is loaded" if where else ""


def starts_fresh(settings: RunSettings, environ: Mapping[str, str]) -> bool:
    """Whether workers are new interpreters."""
    return settings.start != FORK and bool(why_exec(settings, environ))


def line(settings: RunSettings, environ: Mapping[str, str]) -> str:
    """The notice about the start of workers; "": no notice."""
    why = why_exec(settings, environ) if settings.start != EXEC else ""
    if not why:
        return ""
    if settings.start == FORK:
        return f"{why}. Workers are forked nevertheless (--start fork), after torch was loaded."
    for_nothing = [f"--{name}" for name, kept in _HURRIES.items() if getattr(settings, kept)]
    also = f", also with {' and '.join(for_nothing)}" if for_nothing else ""
    return (
        f"{why}. So each worker is a new interpreter, as under torchrun, and each restart waits "
        f"for `import torch`{also}. For fast restarts give --start fork: then torch is loaded "
        "before the script begins."
    )


def line_without_fork(settings: RunSettings) -> str:
    """The notice if the spawner had to start bare (own_process.py)."""
    why = (
        "Python starts a thread in each interpreter here (sitecustomize or a debugger does it), "
        "and a process with threads must not fork"
    )
    if settings.start == FORK:
        return f"{why}. Workers are forked from one that was started without it (--start fork)."
    return (
        f"{why}. So each worker is a new interpreter, as under torchrun, and each restart waits "
        "for `import torch`."
    )


def _source_of(script: Script) -> Path | None:
    if script.kind is TargetKind.FUNCTION:
        return Path(script.args[1]) if script.args[1] else None
    if script.kind is TargetKind.MODULE:
        from ftrun.config.modules import find_module  # here, because workers import script.py

        return find_module(script.target, Path.cwd())
    path = Path(script.target)
    return path / "__main__.py" if path.is_dir() else path


def _tool(script: Script, path: Path | None) -> str:
    """The installed program that runs another script, as the user names it; "": none."""
    if script.kind is TargetKind.FUNCTION:
        return ""
    others = any(arg == "-m" or arg.endswith((".py", ".pyw")) for arg in script.args)
    if not others or not (path is None or _is_installed(path)):
        return ""
    return f"-m {script.target}" if script.kind is TargetKind.MODULE else script.target


def _is_installed(path: Path) -> bool:
    places = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    resolved, absolute = path.resolve(), path.absolute()
    roots = [Path(found) for name in places if (found := sysconfig.get_path(name))]
    return any(
        resolved.is_relative_to(root.resolve()) or absolute.is_relative_to(root) for root in roots
    )


def _beside(path: Path, *, is_module: bool) -> tuple[Source, Look]:
    """A file, and a function that finds its imports in its directory or beside a module's
    package."""
    root, package = path.absolute().parent, list[str]()
    while is_module and (root / "__init__.py").is_file():
        package.insert(0, root.name)
        root = root.parent

    def look(parts: tuple[str, ...]) -> Source | None:
        place = root.joinpath(*parts)
        own, of_package = place.with_name(f"{place.name}.py"), place / "__init__.py"
        for file, inside in ((own, parts[:-1]), (of_package, parts)):
            if file.is_file():
                return Source(str(file.relative_to(root)), _text(file), inside)
        return None

    return Source(path.name, _text(path), tuple(package)), look


def _text(path: Path) -> bytes:
    """The source; empty for a file that is too large or unreadable."""
    try:
        return path.read_bytes() if path.stat().st_size <= FILE_BYTES_MAX else b""
    except OSError:
        return b""
