"""The job's token: 256 random bits that every RPC, route and Unix socket requires (Q7, X1).

It is read from a file of mode 0600, from FTRUN_TOKEN, or from an inherited descriptor. It is never
in argv, a log, a status or a report (X4). Not here: the checks of the token (rpc.py,
lighthouse/web.py, the agent).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ftrun.base.errors import UserError, naming

TOKEN_BYTES = 32
TOKEN_PATTERN = re.compile(r"[0-9a-f]{64}")
OF_GROUP = 0o440
"""The mode of a Kubernetes secret with fsGroup: root's, readable by a group of this process."""
VARIABLE = "FTRUN_TOKEN"
BEARER = "Bearer "


def new_token() -> str:
    """A fresh token: 256 bits, in hex."""
    return secrets.token_hex(TOKEN_BYTES)


def state_home(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of files that outlive a process: ``$XDG_STATE_HOME/ftrun``."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path is invalid and ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "ftrun"


def default_token_path() -> Path:
    return state_home() / "token"


def load_token(path: Path) -> str:
    """The token in ``path``.

    Raises:
        UserError: the file is missing, holds no token, or others may read it.
    """
    try:
        with open(path, encoding="ascii") as file:
            found = os.fstat(file.fileno())
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"The token file {path} cannot be read: {why}. Give the job's: --token-file FILE."
        ) from error
    mode, groups = stat.S_IMODE(found.st_mode), {os.getegid(), *os.getgroups()}
    is_secret = mode == OF_GROUP and found.st_uid == 0 and found.st_gid in groups
    if mode & 0o077 and not is_secret:
        raise UserError(
            f"The token file {path} has mode {mode:04o}: others could read it. "
            f"Run: chmod 600 {path}"
        )
    if not TOKEN_PATTERN.fullmatch(text):
        raise UserError(
            f"The token file {path} does not hold a token (64 hex digits). "
            "Remove it, and ftrun writes a new one."
        )
    return text


def take_token(environ: MutableMapping[str, str]) -> str:
    """The token in FTRUN_TOKEN, which is removed, so that no child inherits it; "": there is none.

    Raises:
        UserError: it is no token.
    """
    text = environ.pop(VARIABLE, "").strip()
    if text and not TOKEN_PATTERN.fullmatch(text):
        raise UserError(
            f"{VARIABLE} does not hold a token (64 hex digits). Nothing was started. Write one to "
            "the Secret: openssl rand -hex 32"
        )
    return text


def one_token(given: str, file: Path | None) -> str:
    """Check that a token comes from one place.

    Raises:
        UserError: it is stated twice.
    """
    if given and file is not None:
        raise UserError(
            f"{VARIABLE} and --token-file {file} both state the job's token. Nothing was started. "
            "Leave one of the two out."
        )
    return given


def load_or_create_token(path: Path) -> str:
    """The token in ``path``. If there is no file yet, a new token is written to it.

    Two processes that create it at the same time end up with the same token.

    Raises:
        UserError: see ``load_token``; or the file cannot be written.
    """
    if not path.exists():
        try:
            _create(path, new_token())
        except OSError as error:
            raise UserError(f"The token file {path} cannot be written: {error}.") from error
    return load_token(path)


def token_matches(given: str, expected: str) -> bool:
    """Compare in constant time. No token matches an empty one, because every job has a token."""
    if not expected:
        return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def bearer(token: str) -> str:
    """The value of an ``authorization`` header."""
    return BEARER + token


def bearer_matches(header: str | None, expected: str) -> bool:
    """Whether an ``authorization`` header carries the expected token."""
    if header is None or not header.startswith(BEARER):
        return False
    return token_matches(header[len(BEARER) :], expected)


def _create(path: Path, token: str) -> None:
    """Create the file atomically, unless another process was faster."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with naming(draft), os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
        with contextlib.suppress(FileExistsError):  # then the other process's token is the job's
            os.link(draft, path)
    finally:
        os.unlink(draft)
