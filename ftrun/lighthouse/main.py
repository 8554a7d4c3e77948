"""One lighthouse service from start to end: checks, ports, journal, core, signals.

``run_lighthouse`` is called by the CLI, ``run_embedded`` by the child process of an agent. Not
here: the parts (server.py, web.py, shell.py, journal.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ftrun.base import clock
from ftrun.base.addresses import ANY_HOST, join_address, own_host
from ftrun.base.errors import ExitCode, FtrunError, UserError
from ftrun.core.lighthouse.events import JournalState
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.status import Status
from ftrun.core.lighthouse.stopping import LEAVING_MAX_S, LOOK_S, may_stop
from ftrun.core.torchft_quorum.status import TorchftStatus
from ftrun.lighthouse.account_file import ACCOUNT_FILE, AccountFile
from ftrun.lighthouse.candidacy import Candidacy, stands_by
from ftrun.lighthouse.event_file import EventFile
from ftrun.lighthouse.incident_file import INCIDENTS_FILE, IncidentFile
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.occurrences import ACCOUNT_INTERVAL_S
from ftrun.lighthouse.register.opening import open_store
from ftrun.lighthouse.server import MembershipServer, listen
from ftrun.lighthouse.settings import EMBEDDED, STANDALONE, ServiceSettings, TorchftSettings
from ftrun.lighthouse.shell import Journaling, Shell
from ftrun.lighthouse.status import full_status
from ftrun.lighthouse.traces import start_traces
from ftrun.lighthouse.train_job import post_progress, server_of
from ftrun.protocol.embedding import (
    GOES_ON_WORDS,
    Embedding,
    ServiceAddress,
    publish_address,
    withdraw_address,
)
from ftrun.protocol.tls import TlsFiles

JOURNAL_FILE = "journal"
LOCK_FILE = "lock"
NOT_LOGGED = ("UnicodeDecodeError", "ExecuteBatchError")
GC_THRESHOLD = 20_000
EPOCH_ZERO = datetime(2026, 1, 1, tzinfo=timezone.utc)

log = logging.getLogger(__name__)


class TorchftLighthouse(Protocol):
    """torchft's lighthouse beside the job's, in this process (compat/torchft_wire/service.py).

    ``addresses``: its bound ports. ``failed`` is set to the error that ends this process.
    """

    addresses: list[str]

    @property
    def failed(self) -> asyncio.Future[None]: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def status(self) -> TorchftStatus: ...


def run_lighthouse(
    settings: ServiceSettings,
    announce: Callable[[str], None] = print,
    stop_fd: int = -1,
    torchft: Callable[[TorchftSettings, Path, int], TorchftLighthouse] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, with a log on stderr. Returns the exit code.

    ``announce`` is called with one line as soon as agents can attach. ``stop_fd``: serve until the
    end of this pipe. ``torchft`` makes the lighthouse for torchft's clients, whose ids start from
    the number that it is called with; None: it is off.

    Raises:
        UserError: a setting is wrong, a port is taken, or the state directory is unusable or used
            by another lighthouse; nothing was started.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s lighthouse: %(message)s")
    for name in ("grpc._cython.cygrpc", "asyncio"):
        logging.getLogger(name).addFilter(_is_worth_logging)
    settings.check()
    with contextlib.nullcontext() if settings.state else _locked(settings.state_dir):
        if not settings.state:
            withdraw_address(settings.state_dir)  # left by a killed lighthouse
        make = None if torchft is None else partial(torchft, settings.torchft, settings.state_dir)
        return asyncio.run(_run(settings, announce, stop_fd, make))


def run_embedded(embedding: Embedding, stop_fd: int) -> int:
    """The lighthouse of its parent, which reads this process's stderr. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="lighthouse: %(message)s")
    settings = ServiceSettings(
        state_dir=Path(embedding.state_dir),
        token=embedding.token,
        bind=embedding.bind,
        http=embedding.http,
        tls=TlsFiles(*map(Path, embedding.tls)),
        insecure_plaintext=embedding.for_nodes,
        core=STANDALONE if embedding.for_nodes else EMBEDDED,
        state=embedding.state_dir if embedding.contends else "",
        log_dir=Path(embedding.log_dir) if embedding.log_dir else None,
        outlives=embedding.outlives,
        once=embedding.once,
    )
    try:
        return run_lighthouse(settings, log.info, stop_fd)
    except FtrunError as error:
        print(f"lighthouse: {error}", file=sys.stderr)
        return error.exit_code


async def _run(
    settings: ServiceSettings,
    announce: Callable[[str], None],
    stop_fd: int,
    make_torchft: Callable[[int], TorchftLighthouse] | None,
) -> int:
    """Serve. Ports are bound first, so that a taken one is reported before any other effect."""
    server = MembershipServer(settings)
    grpc_host, grpc_port = server.bind()
    with listen(*settings.http_address(), "--http") as listener:
        http = f"{settings.http_address()[0]}:{listener.getsockname()[1]}"
        address = ServiceAddress(f"{grpc_host}:{grpc_port}", http, os.getpid())
        stopping = StopRequests(stop_fd)
        term = _Term(settings, server, listener, address, announce, stopping, make_torchft)
        try:
            if settings.state:
                return await _contend(term)
            await server.start(None)
            while True:
                journal = JournalFile(settings.state_dir / JOURNAL_FILE, outlives=settings.outlives)
                code = await _lead(term, journal, journal.load() or _no_journal())
                if code is not None:
                    return code
        finally:
            await server.stop()


@dataclass(frozen=True)
class _Term:
    """What is constant over all terms of leadership of one process."""

    settings: ServiceSettings
    server: MembershipServer
    listener: socket.socket
    address: ServiceAddress
    announce: Callable[[str], None]
    stopping: StopRequests
    make_torchft: Callable[[int], TorchftLighthouse] | None


async def _contend(term: _Term) -> int:
    """Stand by, lead, and stand by again if another process has taken over."""
    settings = term.settings
    await term.server.start(None)
    port = term.address.grpc.rpartition(":")[2]
    bound = settings.grpc_address()[0]
    reachable = join_address(own_host() if bound in ANY_HOST else bound, int(port))
    while True:
        store, floor = open_store(settings.state), _no_journal().epoch
        candidacy = Candidacy(store, reachable, settings.silence_s, floor)
        answering = await asyncio.start_server(stands_by, sock=term.listener.dup())
        try:
            record = await candidacy.until_it_leads(term.stopping.asked)
            answering.close()
            code = ExitCode.OK if record is None else await _lead(term, candidacy, record)
        finally:
            answering.close()
            await candidacy.stop()
        if code is not None:
            return code


async def _lead(term: _Term, journal: Journaling, record: JournalState) -> int | None:
    """Serve as the lighthouse. Returns the exit code, or None if another life or process takes
    over."""
    settings, server = term.settings, term.server
    rules = replace(settings.core, http=term.address.http)
    if isinstance(journal, Candidacy):
        rules = rules.after_watching(journal.watched_s)
    account = AccountFile(settings.state_dir / ACCOUNT_FILE)
    core = Lighthouse(rules, record, clock.now(), account.load())
    torchft = None if term.make_torchft is None else term.make_torchft(_no_journal().epoch)
    incidents = IncidentFile(settings.state_dir / INCIDENTS_FILE)
    directories = [settings.state_dir, *([settings.log_dir] if settings.log_dir else [])]
    traces = start_traces()
    shell = Shell(core, journal, incidents, account, EventFile(directories), traces)
    if isinstance(journal, Candidacy):
        journal.go_on = shell.go_on
    shell.start()
    server.lead(shell)
    if torchft is not None:
        await torchft.start()
    _collect_seldom()
    publish_address(settings.state_dir, term.address)
    term.announce(_hello_line(settings, term.address))
    if torchft is not None:
        term.announce(_torchft_line(torchft))
    code: int | None = ExitCode.BUG
    try:
        code = await _until_stopped(term, shell, journal, torchft)
        return code
    finally:
        server.lead(None)
        shell.stop(is_deposed=isinstance(journal, Candidacy) and journal.ended.done())
        if torchft is not None:
            await torchft.stop()
        if code is not None:
            withdraw_address(settings.state_dir)
        if traces is not None:
            traces.close()


def _collect_seldom() -> None:
    """Collect garbage rarely: records have no cycles, and a pass over them takes milliseconds.

    Objects that exist now, mostly modules, are never scanned again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def _until_stopped(
    term: _Term,
    shell: Shell,
    journal: Journaling,
    torchft: TorchftLighthouse | None,
) -> int | None:
    """Returns the exit code; None: another process leads, or another life begins."""
    started = clock.now()

    def status() -> Status:
        found = torchft.status() if torchft is not None else None
        return full_status(shell, journal, clock.now() - started, found)

    web = await _start_web(term.settings, status, shell, term.listener.dup())
    keeping = asyncio.ensure_future(_keep_account(shell))
    trainer = server_of(os.environ)
    posting = None if trainer is None else asyncio.ensure_future(post_progress(trainer, status))
    stopped = asyncio.ensure_future(_stop_in_time(shell, term.stopping, term.settings.once))
    failed = [shell.failed, shell.again, *([] if torchft is None else [torchft.failed])]
    if isinstance(journal, Candidacy):
        failed.append(journal.ended)
    ends: list[asyncio.Future[Any]] = [stopped, *failed]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in failed:
            if end.done():
                return None if end.exception() is None else _explain(end.exception())
        log.info("the lighthouse stops%s", f"; {GOES_ON_WORDS}" if shell.agents else "")
        return ExitCode.OK
    finally:
        stopped.cancel()
        keeping.cancel()
        if posting is not None:
            posting.cancel()
        await web.stop()


async def _keep_account(shell: Shell) -> None:
    """Write the account to ``events.jsonl`` periodically while the job has agents."""
    while True:
        await asyncio.sleep(ACCOUNT_INTERVAL_S)
        if shell.agents:
            shell.occurrences.account(clock.now())


async def _start_web(
    settings: ServiceSettings, status: Callable[[], Status], shell: Shell, listener: socket.socket
) -> Any:
    """Start HTTP last, because aiohttp is the slowest import and agents are waiting.

    The socket is listening already, so an early request only waits a moment.
    """
    loop = asyncio.get_running_loop()
    web = await loop.run_in_executor(None, importlib.import_module, "ftrun.lighthouse.web")
    totals = shell.occurrences.totals
    app = web.build_app(status, settings, shell, shell.incidents, totals)
    server = web.WebServer(app, settings)
    await server.start(listener)
    return server


def _no_journal() -> JournalState:
    """The first record, if there is no journal or it was lost.

    Its epoch is one that no earlier lighthouse can have used (Q1): the seconds since a date before
    ftrun existed, which stay ahead of an epoch that rises by one at each restart.
    """
    return JournalState(epoch=max(0, int((clock.wall() - EPOCH_ZERO).total_seconds())))


def _explain(error: BaseException | None) -> int:
    """Log what stopped the lighthouse. Returns the exit code."""
    if isinstance(error, OSError):
        log.error(
            "the journal cannot be written (%s), so nothing may be decided any more: the "
            "lighthouse stops. Training continues; a restarted lighthouse takes over.",
            error,
        )
        return ExitCode.LIGHTHOUSE_UNREACHABLE
    log.error(
        "the lighthouse has found a bug in itself and stops. Training continues; a restarted "
        "lighthouse takes over. Please report this.",
        exc_info=error,
    )
    return ExitCode.BUG


class StopRequests:
    """SIGTERM, SIGINT and the end of the pipe ``stop_fd``. A second one stops at once."""

    def __init__(self, stop_fd: int) -> None:
        self.asked, self.insisted = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if stop_fd >= 0:
            self._loop.add_reader(stop_fd, self._pipe_ended, stop_fd)
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._ask)

    def _pipe_ended(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._ask()

    def _ask(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()


async def _stop_in_time(shell: Shell, stopping: StopRequests, once: bool) -> None:
    """Wait until a stop is requested, and then until the leaving agents have left.

    ``once``: also stop when the job has ended and its agents have left.
    """
    began, is_seen = clock.now(), False
    while once and not stopping.asked.is_set():
        await asyncio.sleep(LOOK_S)
        is_seen |= shell.agents > 0
        # The state may be an earlier job's, before the first agent of another one attaches.
        if shell.has_served and (is_seen or clock.now() - began > LEAVING_MAX_S):
            log.info("the job has ended, and all its nodes have left (--once)")
            return
    await stopping.asked.wait()
    began = clock.now()
    if not may_stop(0.0, shell.agents, shell.agents_leaving):
        log.info("asked to stop: waits for the agents that leave, unless it is asked once more")
    while not may_stop(clock.now() - began, shell.agents, shell.agents_leaving):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopping.insisted.wait(), LOOK_S)
            return


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for headers that are no UTF-8, because gRPC would log a damaged call's token (X4).

    Also False for a stream that was cut before its last message, which gRPC logs verbosely.
    """
    errors = record.msg, *(record.exc_info or ())
    return not any(type(error).__name__ in NOT_LOGGED for error in errors)


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Lock the state directory: two lighthouses on one journal would reuse quorum ids (Q1)."""
    with open(state_dir / LOCK_FILE, "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{state_dir}: another lighthouse is running on this state directory. This one was "
                "not started. Give another directory, or stop the other one."
            ) from None
        yield


def _hello_line(settings: ServiceSettings, address: ServiceAddress) -> str:
    scheme = "https" if settings.tls else "http"
    return (
        f"lighthouse ready: agents {address.grpc}, status {scheme}://{address.http}/status, "
        f"state in {settings.state or settings.state_dir}"
    )


def _torchft_line(torchft: TorchftLighthouse) -> str:
    """The address for torchft's clients, and a warning that it needs no token."""
    address = torchft.addresses[0]
    return (
        f"for torchft's own clients: TORCHFT_LIGHTHOUSE=http://{address} (their protocol has no "
        f"token: {', '.join(torchft.addresses)} must be out of strangers' reach)"
    )
