"""``ftrun doctor --nodes``: whether each node of a Slurm step reaches every other node.

Each node listens at the address that it would announce in a job, connects to all others, and
reports which it could not reach. They meet in a shared directory, as the nodes of a job do. The
first node judges.

Not here: a node's own checks (network.py), the choice of its address in a job (tools/keep.py,
agent/devices.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.agent.devices import own_address
from ftrun.base import clock
from ftrun.base.addresses import address_towards, interface_address, is_loopback, join_address
from ftrun.base.files import write_whole
from ftrun.engines.place import Place
from ftrun.tools.doctor.findings import Finding, ok, problem

MEET_S = 60.0
CONNECT_S = 3.0
LOOK_S = 0.1
BACKLOG = 1024
NAMED_MAX = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """This node's part. ``interface``: as of ``--interface``; None: the one that leads to the
    others."""

    place: Place
    directory: Path
    interface: str | None = None

    def run(self) -> list[Finding]:
        """Take part to the end. Only the first node returns findings."""
        place, end = self.place, clock.now() + MEET_S
        host = self._host(end)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family, backlog=BACKLOG) as listener:
            self._write("at", {"host": host, "port": listener.getsockname()[1]})
            places = self._gather("at", end)
            missed = {
                str(number): why
                for number, at in places.items()
                if number != place.node and (why := _why_not(at["host"], at["port"]))
            }
            self._write("missed", missed)
            end = max(end, clock.now() + CONNECT_S * len(place.nodes))
            if place.node == 0:
                found = self._gather("missed", end)
                shutil.rmtree(self.directory, ignore_errors=True)
                hosts = {number: at["host"] for number, at in places.items()}
                return judge(place.nodes, hosts, found)
            _await(lambda: not self.directory.exists(), end)
        return []

    def _host(self, end: float) -> str:
        """The address that this node would announce. The first node's leads to all the others."""
        place = self.place
        if self.interface:
            return interface_address(self.interface)
        if place.node == 0:
            return address_towards(place.others) or "127.0.0.1"
        _await(lambda: self._read("at", 0) is not None, end)
        first = self._read("at", 0)
        if first is None:
            return address_towards(place.others) or "127.0.0.1"
        return own_address(join_address(first["host"], first["port"]))

    def _write(self, kind: str, record: Mapping[str, Any]) -> None:
        with contextlib.suppress(FileNotFoundError):  # the first node no longer waits for this one
            write_whole(self.directory / f"{kind}.{self.place.node}", json.dumps(record))

    def _read(self, kind: str, number: int) -> Any:
        name = f"{kind}.{number}"
        try:
            # Listing the directory refreshes the file server's cache.
            is_there = name in os.listdir(self.directory)
            return json.loads((self.directory / name).read_text()) if is_there else None
        except FileNotFoundError:
            return None

    def _gather(self, kind: str, end: float) -> dict[int, Any]:
        found: dict[int, Any] = {}

        def is_complete() -> bool:
            for number in range(len(self.place.nodes)):
                record = None if number in found else self._read(kind, number)
                if record is not None:
                    found[number] = record
            return len(found) == len(self.place.nodes)

        _await(is_complete, end)
        return found


def judge(
    nodes: Sequence[str], hosts: Mapping[int, str], missed: Mapping[int, Mapping[str, str]]
) -> list[Finding]:
    """Judge the results of all nodes.

    ``hosts``: the addresses by node; ``missed``: by node, which others it has not reached. A node
    that many cannot reach, or that reaches few, is reported once instead of once per pair.
    """
    check, count = "nodes", len(nodes)
    remedy = "State the interface that the nodes share: --interface NAME or CIDR, also for jobs."
    found = []
    silent = [n for n in range(count) if n not in hosts or n not in missed]
    if silent:
        names = _names([nodes[n] for n in silent])
        text = f"{names} did not take part within {MEET_S:g} s"
        shared = "Start one task on each node. --log-dir must be on a file system that they share."
        found.append(problem(check, text, shared))
    pairs = {(a, int(b)): why for a, row in missed.items() for b, why in row.items()}
    local = [n for n, host in sorted(hosts.items()) if is_loopback(host)] if count > 1 else []
    for node in local:
        text = f"{nodes[node]} would announce {hosts[node]}, which no other node reaches"
        found.append(problem(check, text, f"Correct its name in /etc/hosts or DNS. {remedy}"))
    pairs = {pair: why for pair, why in pairs.items() if not {*pair} & {*local}}
    while pairs:
        one = max(sorted({n for pair in pairs for n in pair}), key=lambda n: _share(n, pairs))
        own = {pair: why for pair, why in pairs.items() if one in pair}
        found += [_words(one, own, nodes, hosts, remedy)]
        pairs = {pair: why for pair, why in pairs.items() if pair not in own}
    if not found:
        found.append(ok(check, f"each of the {count} nodes reaches each other one"))
    return found


def _share(node: int, pairs: Mapping[tuple[int, int], str]) -> tuple[int, int]:
    """In how many failed pairs a node is, and in how many of them it is the unreachable one."""
    return sum(node in pair for pair in pairs), sum(pair[1] == node for pair in pairs)


def _words(
    one: int,
    own: Mapping[tuple[int, int], str],
    nodes: Sequence[str],
    hosts: Mapping[int, str],
    remedy: str,
) -> Finding:
    callers = [nodes[a] for a, b in own if b == one]
    unreached = [f"{nodes[b]} ({hosts[b]})" for a, b in own if a == one]
    words = []
    if callers:
        do = "does" if len(callers) == 1 else "do"
        words.append(f"{_names(callers)} {do} not reach {nodes[one]} at {hosts[one]}")
    if unreached:
        words.append(f"{nodes[one]} does not reach {_names(unreached)}")
    whys = ", ".join(sorted(set(own.values())))
    firewall = f"Let the firewalls pass all ports between the nodes. {remedy}"
    return problem("nodes", f"{'; '.join(words)} ({whys})", firewall)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _why_not(host: str, port: int) -> str:
    """Why no connection can be made; "": it can."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _await(is_done: Callable[[], bool], end: float) -> None:
    while not is_done() and clock.now() < end:
        time.sleep(LOOK_S)
