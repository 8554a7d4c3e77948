"""The process of torch's plugins: those of ``--logs-specs`` and of ``--event-log-handler``.

A plugin needs torch, and may start threads; the agent has no torch, and the spawner may have no
threads. So each run with a plugin has this process beside the spawner. A LogsSpecs is asked before
each start of a replica where the workers' output goes; a handler of events gets what the agent
does.

Not here: the agent's side (agent/plugins.py), which events (recording.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import socket
import sys
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Any

from ftrun import linux
from ftrun.agent.channel import Channel
from ftrun.config.checks import LOGS_SPECS_GROUP
from ftrun.config.streams import parse_ranks
from ftrun.elastic.recording import Job, Recorder
from ftrun.launching.story import Story

BAD_PLUGIN_EXIT = 2


class BadPlugin(Exception):
    """A plugin that cannot be used; the text goes on after its option."""


class LogsPlugin:
    """One LogsSpecs for each replica, because it may keep the directory of its first answer."""

    def __init__(self, name: str, order: dict[str, Any]) -> None:
        self._kind = _load_logs_specs(name)
        self._order = order
        self._specs: dict[str, Any] = {}
        self._spare: Any = self._make()  # a plugin that cannot be made is found before the start

    def reify(self, replica_id: str, envs: dict[int, dict[str, str]]) -> dict[str, Any]:
        """Its answer for one start; it may change the variables, which are in the answer.

        Raises:
            BadPlugin: it raised, or its answer has another form.
        """
        if replica_id not in self._specs:
            self._specs[replica_id] = self._spare if self._spare is not None else self._make()
            self._spare = None
        try:
            return {**asdict(self._specs[replica_id].reify(envs)), "envs": envs}
        except Exception as error:  # noqa: BLE001 - the plugin is the user's code
            raise BadPlugin(f"its reify has failed: {type(error).__name__}: {error}") from None

    def _make(self) -> Any:
        from torch.distributed.elastic.multiprocessing import Std

        order = self._order
        ranks = set(parse_ranks(order["ranks"]))
        try:
            return self._kind(
                log_dir=order["log_dir"],
                redirects=Std.from_str(order["redirects"]),
                tee=Std.from_str(order["tee"]),
                local_ranks_filter=ranks or None,
            )
        except Exception as error:  # noqa: BLE001 - the plugin is the user's code
            raise BadPlugin(f"it cannot be made: {type(error).__name__}: {error}") from None


def _load_logs_specs(name: str) -> Any:
    found = entry_points(group=LOGS_SPECS_GROUP).select(name=name)
    if not found:
        known = sorted(entry_points(group=LOGS_SPECS_GROUP).names)
        raise BadPlugin(f"no installed package has such an entry point; there are {_list(known)}")
    try:
        return next(iter(found)).load()
    except Exception as error:  # noqa: BLE001 - the plugin is the user's code
        raise BadPlugin(f"it cannot be loaded: {type(error).__name__}: {error}") from None


class EventsPlugin:
    """A handler in torch's registry, with the story of the job that it is told of."""

    def __init__(self, name: str, order: dict[str, Any]) -> None:
        # As torchrun does: it loads the rendezvous plugins, and one of those may add a handler.
        import torch.distributed.run  # noqa: F401
        from torch.distributed.elastic.events import handlers

        if name not in handlers._log_handlers:
            known = sorted(handlers._log_handlers)
            raise BadPlugin(f"torch has no such handler of events; there are {_list(known)}")
        self._story = Story()
        job = Job(order["role"], order["entry_point"])
        self._recorder = Recorder(name, job, self._story)

    def record(self, record: dict[str, Any]) -> None:
        """A record of the agent's."""
        self._story.add(record)
        if record["event"] != "ended":
            self._recorder.hear(record)
            return
        self._recorder.workers_end()
        is_known = record["exit_code"] == 0 or bool(self._story.failures())
        self._recorder.agent_ends(well=is_known)


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


class Plugins:
    """Does what the agent asks for, in order, until the agent closes its end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._logs: LogsPlugin | None = None
        self._events: EventsPlugin | None = None
        self._has_complained = False

    def run(self) -> None:
        """Serve the agent to its end."""
        while not self._channel.closed:
            select.select([self._channel], [], [])
            for frame in self._channel.receive():
                self._take(frame.message)

    def _take(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "open":
                self._open(message)
            case "reify":
                self._reify(message)
            case "record":
                self._record(message["record"])

    def _open(self, order: dict[str, Any]) -> None:
        option, name = "--logs-specs", order["logs_specs"]
        try:
            if name:
                self._logs = LogsPlugin(name, order)
            option, name = "--event-log-handler", order["event_log_handler"]
            if name:
                self._events = EventsPlugin(name, order)
        except BadPlugin as error:
            self._send({"op": "unusable", "reason": f"{option} {name}: {error}"})
            sys.exit(BAD_PLUGIN_EXIT)
        self._send({"op": "ready"})

    def _reify(self, order: dict[str, Any]) -> None:
        assert self._logs is not None
        envs = {int(rank): env for rank, env in order["envs"].items()}
        try:
            found = self._logs.reify(order["replica"], envs)
            self._send({"op": "placed", "incarnation": order["incarnation"], **found})
        except (BadPlugin, TypeError) as error:  # a TypeError: the answer is no JSON
            reason = str(error)
            self._send({"op": "unplaced", "incarnation": order["incarnation"], "reason": reason})

    def _record(self, record: dict[str, Any]) -> None:
        assert self._events is not None
        try:
            self._events.record(record)
        except Exception as error:  # noqa: BLE001 - the handler is the user's code
            if not self._has_complained:
                self._has_complained = True
                self._send({"op": "trouble", "text": f"{type(error).__name__}: {error}"})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # The agent is gone: ``run`` ends in its next round.
            self._channel.send(message)


def main() -> None:
    """Started by the agent only, with the arguments ``--parent PID --channel FD``."""
    parser = argparse.ArgumentParser(description="The process of torch's plugins.")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--channel", type=int, required=True)
    options = parser.parse_args()
    if not linux.die_with_parent(options.parent):
        os._exit(0)
    linux.title_process("ftrun plugins")
    os.set_inheritable(options.channel, False)
    Plugins(Channel(socket.socket(fileno=options.channel))).run()
