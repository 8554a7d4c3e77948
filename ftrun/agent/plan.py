"""``--dry-run``: shows all resolved settings of a run, and starts nothing.

Not here: the resolution of the settings (config/, devices.py, environment.py).
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.table import Table

from ftrun.agent.devices import DeviceSlices, Machine
from ftrun.agent.environment import Place, threads_per_worker, worker_environment
from ftrun.agent.team.meeting import address_here
from ftrun.base.addresses import join_address
from ftrun.config.checks import relations
from ftrun.config.forms import injection, standbys_of, why_no_memory_snapshots
from ftrun.config.layers import DEFAULT
from ftrun.config.options import OPTIONS
from ftrun.config.settings import RunSettings
from ftrun.config.starting import FORK, why_exec
from ftrun.core.ids import WorkerKey
from ftrun.core.replay.copying import EVERY_S

SLOTS_SHOWN_MAX = 16
_TORCHFT_WORDS = {
    "auto": "ftrun's own modules, and a line says so",
    "ftrun": "ftrun's own modules",
    "real": "the installed package",
}


def print_plan(settings: RunSettings, machine: Machine) -> None:
    console = Console()
    console.print(_facts(settings, machine))
    console.print(_slots(settings, machine))
    console.print(_environment(settings, machine))
    if given := _given(settings):
        table = Table("option", "stated by", title="options given", title_justify="left")
        for name, source in given.items():
            table.add_row(name, source)
        console.print(table)
    for relation in relations(settings):
        console.print(f"{relation.words()}.")
    console.print("Nothing was started: --dry-run.")


def _facts(settings: RunSettings, machine: Machine) -> Table:
    table = Table("what", "value", title=f"job {settings.job_id}", title_justify="left")
    lighthouse = settings.lighthouse or "embedded, 127.0.0.1, ports chosen at start"
    devices = f": {', '.join(machine.devices)}" if machine.devices else ""
    for name, value in (
        ("command", shlex.join(settings.script.command())),
        ("replicas", f"{settings.replicas}, at least {settings.min_replicas} to train"),
        *_meeting(settings),
        ("workers per replica", _workers(settings)),
        ("fit on this node", f"{machine.capacity} replicas"),
        ("device", machine.device + devices),
        ("threads per worker", f"{threads_per_worker(settings, machine)} of {machine.cores} cores"),
        *_bindings(settings, machine),
        ("lighthouse", lighthouse),
        ("spare nodes", str(settings.spare_nodes)),
        ("rebalancing", "to nodes that come late" if settings.rebalance else "never"),
        ("restarts", _restarts(settings)),
        *_times(settings),
        ("injection", injection(settings)),
        ("workers start", _start(settings)),
        ("data", _data(settings)),
        ("import torchft", _TORCHFT_WORDS[settings.torchft]),
        ("preload", ", ".join(settings.preload) or "torch"),
        ("standbys", str(standbys_of(settings))),
        ("snapshots", _snapshots(settings)),
        ("memory snapshots", _memory_snapshots(settings)),
        ("ports", "every port is bound as 0 and published"),
        ("logs", str(settings.job_log_dir / "replica_<id>/rank_<r>/<restart>.log")),
    ):
        table.add_row(name, value)
    return table


def _workers(settings: RunSettings) -> str:
    one, count = settings.rendezvous, settings.workers_per_replica
    return str(count) if one is None else f"{count} on each node"


def _memory_snapshots(settings: RunSettings) -> str:
    """Where copies of a worker's state are kept in memory."""
    why = why_no_memory_snapshots(settings)
    if why or settings.rendezvous is None:
        return why or "each step, on this node"
    return f"each step, on each node; every {EVERY_S:g} s on another one"


def _meeting(settings: RunSettings) -> Iterator[tuple[str, str]]:
    """Where the nodes of the group meet, if it has several nodes."""
    one = settings.rendezvous
    if one is None:
        return
    leads = address_here(one) is not None and not (one.is_static and one.rank)
    who = "this node, which leads" if leads else "another node, which leads"
    number = "by the order of arrival" if one.rank is None else str(one.rank)
    yield "nodes", f"{one.size.replace(':', ' to ')}, with the workers of one replica group"
    yield "they meet at", f"{join_address(one.host, one.port)} ({one.stated_by}), on {who}"
    yield "node rank", number


def _data(settings: RunSettings) -> str:
    together = settings.global_batch
    return settings.data + (f", {together} samples in each step" if together else "")


def _bindings(settings: RunSettings, machine: Machine) -> Iterator[tuple[str, str]]:
    """The CPUs of each worker, if they are bound."""
    for at, binding in enumerate(machine.bindings[:SLOTS_SHOWN_MAX]):
        slot, rank = divmod(at, settings.workers_per_replica)
        yield f"worker {slot}.{rank} on", binding.words()


def print_json(settings: RunSettings, machine: Machine) -> None:
    print(json.dumps(plan(settings, machine), indent=2, default=str))


def plan(settings: RunSettings, machine: Machine) -> dict[str, Any]:
    """The plan: settings and their sources, machine, slots, environment, relations of times."""
    slices = DeviceSlices(machine.devices, settings.ranks_here)
    here = min(settings.replicas, machine.capacity)
    sources = settings.sources
    rows = {
        f.name: {"value": _plain(getattr(settings, f.name)), "source": sources.get(f.name, "")}
        for f in fields(settings)
        if f.name not in ("sources", "script", "tls")
    }
    return {
        "schema": 1,
        "command": list(settings.script.command()),
        "settings": rows,
        "given": _given(settings),
        "machine": {
            "device": machine.device,
            "devices": list(machine.devices),
            "cores": machine.cores,
            "address": machine.host,
            "replicas_that_fit": machine.capacity,
            "bindings": dict(_bindings(settings, machine)),
        },
        "slots": {str(i): list(slices.take(str(i))) for i in range(min(here, SLOTS_SHOWN_MAX))},
        "environment": dict(_variables(settings, machine)),
        "times": [
            {"holds": one.holds, "is_rule": one.is_rule, "words": one.words()}
            for one in relations(settings)
        ],
        "logs": str(settings.job_log_dir),
    }


def _given(settings: RunSettings) -> dict[str, str]:
    """The options that differ from their defaults, and the source of each."""
    return {
        option.key: settings.sources[option.name]
        for option in OPTIONS
        if option.name in settings.sources and not settings.sources[option.name].startswith(DEFAULT)
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _times(settings: RunSettings) -> Iterator[tuple[str, str]]:
    """Every setting in seconds, under its own name; a hang timeout of 0 means none."""
    for name in (field.name for field in fields(settings) if field.name.endswith("_s")):
        value = getattr(settings, name)
        is_never = name == "hang_timeout_s" and not value
        yield name.removesuffix("_s").replace("_", " "), "never" if is_never else f"{value:g} s"


def _slots(settings: RunSettings, machine: Machine) -> Table:
    table = Table("replica", "workers", "devices", title="slots", title_justify="left")
    slices = DeviceSlices(machine.devices, settings.ranks_here)
    shown = min(settings.replicas, machine.capacity, SLOTS_SHOWN_MAX)
    for index in range(shown):
        devices = ", ".join(slices.take(str(index))) or machine.device
        table.add_row(str(index), str(settings.workers_per_replica), devices)
    if shown < settings.replicas:
        table.add_row(f"... {settings.replicas}", "", "")
    return table


def _environment(settings: RunSettings, machine: Machine) -> Table:
    """The first worker's environment; ports are known only once they are bound."""
    table = Table("variable", "value", title="environment of worker 0.0", title_justify="left")
    for name, value in _variables(settings, machine):
        table.add_row(name, value)
    return table


def _variables(settings: RunSettings, machine: Machine) -> Iterator[tuple[str, str]]:
    devices = DeviceSlices(machine.devices, settings.ranks_here).take("0")
    place = Place(WorkerKey("0", "(random)", 0), 0, 0, devices, settings.lighthouse or "(embedded)")
    threads = threads_per_worker(settings, machine)
    for name, value in worker_environment(settings, machine, place, threads).items():
        yield name, "(bound at start)" if name == "MASTER_PORT" and value == "0" else value


def _snapshots(settings: RunSettings) -> str:
    if settings.snapshot_path is None:
        return "none"
    begin = "the newest there"
    if settings.begins_anew:
        begin = "the script's beginning"
    elif settings.resume_path not in (None, settings.snapshot_path):
        begin = f"the newest there, or in {settings.resume_path}"
    every, keep = settings.snapshot_every, settings.snapshot_keep
    return f"{settings.snapshot_path}, every {every}, {keep} kept; resumes from {begin}"


def _start(settings: RunSettings) -> str:
    why = why_exec(settings, os.environ)
    if settings.start == FORK or not why:
        return "forked"
    return f"each as a new interpreter: {why}"


def _restarts(settings: RunSettings) -> str:
    if settings.as_torchrun:
        return f"{settings.max_restarts} in all, as torchrun counts them"
    return f"{settings.max_restarts} per replica, refilled by progress"
