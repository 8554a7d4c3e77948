"""The agent's side of torch's plugins: their process is asked at each start, and gets each event.

``--logs-specs NAME`` decides where the workers' streams go, ``--event-log-handler NAME`` gets what
the agent does. Both need torch, so a process of their own has them. The agent never waits for it:
what does not fit into the socket is kept, up to a limit.

Not here: the plugins (elastic/plugins.py, by name), the records (facts.py), the streams (logs.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun import clock, own_process
from ftrun.agent.channel import Channel, encode
from ftrun.agent.facts import record_of
from ftrun.agent.watch import WorkerStarted
from ftrun.config.checks import EVENT_LOG_HANDLERS, OWN_LOGS
from ftrun.config.layers import DEFAULT
from ftrun.config.settings import RunSettings
from ftrun.core.agent.events import EndAgent, Event, Instruction, StartReplica
from ftrun.errors import ProtocolError, UserError

READY_TIMEOUT_S = 600.0
PLACES_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0
WAITING_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a stream of a worker goes besides its log. ``path``: None: into no further file."""

    path: Path | None
    is_shown: bool


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one start, by group_rank. ``filtered``: files for filtered lines, or none."""

    out: Mapping[int, StreamPlace]
    err: Mapping[int, StreamPlace]
    environments: Mapping[int, dict[str, str]]
    filtered: tuple[Path | None, Path | None] = (None, None)


class NoPlaces(Exception):
    """The plugin has no usable answer for one start."""


def wants_plugins(settings: RunSettings) -> bool:
    """Whether a plugin of torch's is asked for."""
    return has_logs_plugin(settings) or settings.event_log_handler not in EVENT_LOG_HANDLERS


def has_logs_plugin(settings: RunSettings) -> bool:
    """Whether a plugin decides where the workers' streams go."""
    return settings.logs_specs not in OWN_LOGS


class PluginsLaunch:
    """The process from its launch to the agent's start."""

    def __init__(self, settings: RunSettings) -> None:
        self.sock, theirs = socket.socketpair()
        words = ["--parent", str(os.getpid()), "--channel", str(theirs.fileno())]
        with theirs:
            self.process = own_process.start(
                "ftrun.elastic.plugins",
                words,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        given = settings.sources.get("log_dir", DEFAULT) != DEFAULT
        handler = settings.event_log_handler
        order = {
            "op": "open",
            "logs_specs": settings.logs_specs if has_logs_plugin(settings) else "",
            "event_log_handler": "" if handler in EVENT_LOG_HANDLERS else handler,
            "log_dir": str(settings.log_dir) if given else None,
            "redirects": settings.redirects,
            "tee": settings.tee,
            "ranks": settings.local_ranks_filter,
            "role": settings.role,
            "entry_point": settings.script.target,
        }
        with contextlib.suppress(OSError):  # It has ended: ``wait`` reports that.
            Channel(self.sock).send(order)

    def wait(self) -> None:
        """Return when the plugins are loaded.

        Raises:
            UserError: one of them cannot be used.
        """
        channel, deadline = Channel(self.sock), clock.now() + READY_TIMEOUT_S
        while not channel.closed:
            left_s = max(0.0, deadline - clock.now())
            if not select.select([channel], [], [], left_s)[0]:
                raise UserError(
                    f"The plugins of torch were not loaded within {READY_TIMEOUT_S:g} s. Nothing "
                    "was started. Leave out --logs-specs and --event-log-handler."
                )
            for frame in channel.receive():
                if frame.message["op"] == "ready":
                    return
                raise UserError(f"{frame.message['reason']}. Nothing was started.")
        raise UserError(
            f"The process of torch's plugins has ended with status {self.process.wait()}; what it "
            "wrote is above. Nothing was started."
        )

    def end(self) -> None:
        """End the process, if the agent has not."""
        self.sock.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Plugins:
    """The running process. ``say``: shows a sentence of ftrun's own."""

    def __init__(
        self, launch: PluginsLaunch, settings: RunSettings, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._say = say
        self._process = launch.process
        self._sock = launch.sock
        self._sock.setblocking(False)
        self._channel = Channel(launch.sock)
        self._waiting = bytearray()
        self._is_incomplete = self._is_closing = False
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._read)
        self._has_handler = settings.event_log_handler not in EVENT_LOG_HANDLERS
        self._record("settled", job_id=settings.job_id, workers=settings.workers_per_replica)

    def watch(self, fact: Event | Instruction | WorkerStarted) -> None:
        """Hand one fact to the handler of events."""
        if isinstance(fact, EndAgent):
            self._record("ended", exit_code=int(fact.exit_code), reason=fact.reason)
            return
        record = record_of(fact)
        if record is not None:
            self._record(**record)

    async def places(self, start: StartReplica, envs: Mapping[int, dict[str, str]]) -> Places:
        """Where the streams of this start go, by the plugin.

        Raises:
            NoPlaces: it has failed, or has no answer in time.
        """
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._answers[start.incarnation] = answer
        order = {"op": "reify", "replica": start.replica_id, "incarnation": start.incarnation}
        self._send({**order, "envs": envs})
        try:
            if self._channel.closed:
                raise NoPlaces("the process of the plugins has ended")
            message = await asyncio.wait_for(answer, PLACES_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise NoPlaces(f"it has not answered within {PLACES_TIMEOUT_S:g} s") from None
        finally:
            self._answers.pop(start.incarnation, None)
        if message["op"] == "unplaced":
            raise NoPlaces(message["reason"])
        return parse_places(message, len(envs))

    async def close(self) -> None:
        """Let it take what it was sent, and end it."""
        self._is_closing = True
        deadline = clock.now() + END_TIMEOUT_S
        while self._waiting and not self._channel.closed and clock.now() < deadline:
            await asyncio.wait([self._room()], timeout=max(0.0, deadline - clock.now()))
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        left_s = max(0.0, deadline - clock.now())
        try:
            await self._loop.run_in_executor(None, self._process.wait, left_s)
        except subprocess.TimeoutExpired:
            self._say(
                "The handler of --event-log-handler has not taken all events within "
                f"{END_TIMEOUT_S:g} s of the end: it is ended."
            )
            self._process.kill()

    # ------------------------------------------------------------ the socket

    def _record(self, event: str, **facts: Any) -> None:
        if self._has_handler:
            at = clock.wall().timestamp()
            self._send({"op": "record", "record": {"event": event, "at": at, **facts}})

    def _send(self, message: dict[str, Any]) -> None:
        data = encode(message)
        if self._channel.closed:
            return
        if len(self._waiting) + len(data) > WAITING_BYTES_MAX:
            if not self._is_incomplete:
                self._is_incomplete = True
                self._say("The handler of --event-log-handler is too slow: it misses events.")
            return
        self._waiting += data
        self._write()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._sock.send(self._waiting)]
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError:
            self._waiting.clear()  # It has ended: ``_read`` sees that.
        self._loop.remove_writer(self._sock.fileno())

    def _room(self) -> asyncio.Future[None]:
        """Done when the socket takes more; ``_write`` is called then as before."""
        room: asyncio.Future[None] = self._loop.create_future()

        def write() -> None:
            self._write()
            if not room.done():
                room.set_result(None)

        self._loop.add_writer(self._sock.fileno(), write)
        return room

    def _read(self) -> None:
        try:
            frames = self._channel.receive()
        except ProtocolError as error:
            frames, self._channel.closed = [], True
            self._say(f"The process of the plugins sent a message that is not valid: {error}.")
        for frame in frames:
            message = frame.message
            answer = self._answers.get(message.get("incarnation", ""))
            if message["op"] == "trouble":
                self._say(
                    f"--event-log-handler {self._settings.event_log_handler} has failed at an "
                    f"event ({message['text']}). It gets the next ones; the job goes on."
                )
            elif answer is not None and not answer.done():
                answer.set_result(message)
        if self._channel.closed:
            self._ended()

    def _ended(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(NoPlaces("the process of the plugins has ended"))
        if not self._is_closing:
            self._say(
                "The process of torch's plugins has ended: no handler gets events any more, and "
                "with --logs-specs no replica can be started again."
            )


def parse_places(message: Mapping[str, Any], workers: int) -> Places:
    """A LogsDest as JSON.

    Raises:
        NoPlaces: a rank lacks, or it asks for what is not done here.
    """
    try:
        streams = [
            {rank: _place(message, name, rank) for rank in range(workers)}
            for name in ("stdouts", "stderrs")
        ]
        environments = {
            int(rank): {str(name): str(value) for name, value in env.items()}
            for rank, env in message["envs"].items()
        }
        if set(environments) != set(range(workers)):
            raise NoPlaces("it has removed the variables of a worker")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoPlaces(f"its answer is no LogsDest: {error!r}") from None
    out, err = streams
    files = (message.get("filtered_stdout"), message.get("filtered_stderr"))
    filtered = tuple(Path(file) if file and file != os.devnull else None for file in files)
    return Places(out, err, environments, (filtered[0], filtered[1]))


def _place(message: Mapping[str, Any], name: str, rank: int) -> StreamPlace:
    places = message[name]
    if str(rank) not in places:
        raise NoPlaces(f"its {name} lack local rank {rank}")
    path = places[str(rank)] or ""
    teed = message[f"tee_{name}"].get(str(rank), "")
    if teed not in ("", os.devnull, path):
        raise NoPlaces(f"it tees {teed}, which is not where local rank {rank} writes ({path})")
    if path == os.devnull:
        return StreamPlace(None, is_shown=False)
    if not path:
        return StreamPlace(None, is_shown=True)
    return StreamPlace(Path(path), is_shown=bool(teed) and teed != os.devnull)
