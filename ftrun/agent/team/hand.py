"""A hand: this node's workers of a group that another node's agent leads.

It connects, takes a place, and carries out the lead's orders in the order of their arrival. Its
workers do not outlive the stream: when that ends they are killed, and the hand offers itself again.
Not here: the decisions (the lead's supervisor, core/teams/), the lead's end (lead.py).
"""

from __future__ import annotations

import asyncio
import math
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftrun.agent.environment import spawner_configuration, threads_per_worker
from ftrun.agent.launch import SpawnerLaunch
from ftrun.agent.setup import AgentSetup
from ftrun.agent.signals import PreemptionFile, catch_signals
from ftrun.agent.team.place import Place
from ftrun.agent.team.storing import make_mark
from ftrun.base import clock
from ftrun.base.addresses import join_address
from ftrun.base.errors import ExitCode
from ftrun.config.forms import standbys_of, why_no_memory_snapshots
from ftrun.config.rendezvous import Rendezvous, Span
from ftrun.core import messages as m
from ftrun.core.agent.events import (
    EndAgent,
    SpawnerLost,
)
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.signals import Reaction
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection, Refusal

REMIND_S = 10.0
PLACE_SHOWN_S = 5.0
"""After this time without a place, a line reports that this node waits for one."""
LEASES_PER_TIMEOUT = 5
LEAVE_MARGIN_S = 15.0
"""How much longer than the grace period a node that was asked to stop waits for the lead's
answer.
"""
HANDSHAKE, CLOSED = "Tls handshake failed", "Socket closed"
"""Parts of gRPC's error texts."""
BACK_S = 3.0
"""How long the hand waits for a lost lead if the lead has no restart left."""


class Hand:
    """See the module's text. The setup's spawner is for its first place."""

    def __init__(
        self, setup: AgentSetup, rendezvous: Rendezvous, show: Callable[[str], None]
    ) -> None:
        self._setup, self._settings = setup, setup.settings
        self._rendezvous = rendezvous
        self._launch: SpawnerLaunch | None = setup.launch
        self._say = show
        self._loop = asyncio.get_running_loop()
        self._address = join_address(rendezvous.host, rendezvous.port)
        self._orders: asyncio.Queue[Any] = asyncio.Queue()
        self._done: asyncio.Future[EndAgent] = self._loop.create_future()
        self._connection = LighthouseConnection(
            (self._address,), setup.token, self._orders.put_nowait, tls=setup.settings.tls
        )
        self._place: Place | None = None
        self._closing: asyncio.Task[None] | None = None
        self._was_placed = self._is_leaving = False
        self._gives_up_at = clock.now() + rendezvous.connect_timeout_s
        self._shown_at: float | None = None
        # A lead that a registrar has named starts at about the same time.
        self._speaks_at = clock.now() + (PLACE_SHOWN_S if setup.settings.workers_per_node else 0.0)
        self._why = "it does not answer"
        self._is_connected = False
        self._waits_since: float | None = None
        self.job_has_ended = False
        """Whether the job has ended; otherwise this node ends alone."""

    async def run(self) -> EndAgent:
        """Serve until the job's end. After that none of its processes run here."""
        rules = self._settings.signal_rules()
        catch_signals(rules, self._signalled)
        preempt, file = self._settings.preempt_file, None
        if preempt is not None:
            appeared = f"{preempt} has appeared"
            file = PreemptionFile(preempt, lambda: self._leave(appeared, ExitCode.PREEMPTED, 15))
        tasks = [
            self._loop.create_task(work)
            for work in (self._connection.run(), self._obey(), self._watch())
        ]
        try:
            ends: list[asyncio.Future[Any]] = [self._done, *tasks]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not self._done.done():
                    task.result()  # raises what is a bug
            return await self._done
        finally:
            if file is not None:
                file.close()
            for task in tasks[1:]:
                task.cancel()
            ends_well = self._done.done() and self._done.result().exit_code == ExitCode.OK
            await self._leave_place(ends_well=ends_well)
            self._connection.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._launch is not None:
                self._launch.end()

    def stop(self, why: EndAgent) -> None:
        """End what runs here: the node gets another place, or ends."""
        if why.exit_code:
            self._say(f"This node is a hand of {self._address} no more: {why.reason}.")
        self._connection.drop(why.reason)  # nothing is left to send, and the lead may be gone
        self._end(why.exit_code, why.reason)

    # ------------------------------------------------------------ the stream

    async def _obey(self) -> None:
        """Carry out orders one by one, because leaving a place takes a moment."""
        while True:
            message = await self._orders.get()
            match message:
                case Connected():
                    mark = await self._mark()
                    self._is_connected = True  # from here on it may ask for leases
                    self._greet(mark)
                case Disconnected():
                    await self._disconnected(message)
                case m.HandPlace():
                    await self._leave_place()
                    await self._take_place(message)
                case m.Rejected(reason):
                    self._end(ExitCode.REFUSED, f"{self._address} refuses this node: {reason}")
                case m.EndJob(exit_code, reason, kind):
                    self.job_has_ended = not self._done.done()
                    self._end(exit_code, reason, kind)
                case _:
                    if self._place is not None:
                        self._place.carry_out(message)

    async def _mark(self) -> str:
        where = self._settings.snapshot_path
        if where is None or why_no_memory_snapshots(self._settings):
            return ""
        return await self._loop.run_in_executor(None, make_mark, where)

    def _greet(self, mark: str) -> None:
        rendezvous = self._rendezvous
        self._waits_since = clock.now()
        self._connection.send(
            m.HandHello(
                socket.gethostname()[:64],
                self._setup.machine.host,
                self._settings.workers_per_replica,
                rendezvous.rank,
                rendezvous.size,
                mark=mark,
            )
        )
        if self._shown_at is not None:
            self._shown_at = None
            self._say(f"The first node answers at {self._address}.")

    async def _disconnected(self, ending: Disconnected) -> None:
        now = clock.now()
        was_connected, self._is_connected = self._is_connected, False
        if ending.refused is Refusal.TOKEN:
            what = "--token-file" if self._settings.token_file else "--rdzv-id or --token-file"
            self._end(
                ExitCode.REFUSED,
                f"the node at {self._address} belongs to another job: give both the same {what}",
            )
            return
        if ending.refused is Refusal.PORT:
            stated = self._rendezvous.stated_by
            self._end(
                ExitCode.REFUSED,
                f"what answers at {self._address} ({stated}) is no ftrun. Give the address of a "
                "node that runs this command, and a port that is free there",
            )
            return
        if was_connected:
            is_patient = self._settings.max_restarts or self._settings.workers_per_node
            self._gives_up_at = now + (self._rendezvous.join_timeout_s if is_patient else BACK_S)
            if self._place is not None:
                self._say(f"The first node is lost ({ending.reason}): workers here are ended.")
            await self._leave_place()
        self._why = cause(ending.words)
        if now >= self._gives_up_at:
            self._unreachable()
        elif now >= self._speaks_at:
            self._shown_at, self._speaks_at = now, now + REMIND_S
            stated, left_s = self._rendezvous.stated_by, self._gives_up_at - now
            limit = f" for {left_s:.0f} s" if math.isfinite(left_s) else ""
            self._say(
                f"No node answers at {self._address} ({self._why}), where {stated} has the "
                f"nodes meet. ftrun keeps trying{limit}."
            )

    def _unreachable(self) -> None:
        why, stated, code = self._why, self._rendezvous.stated_by, ExitCode.LIGHTHOUSE_UNREACHABLE
        if self._was_placed:
            self._end(code, f"the first node of the group is gone ({why})")
            return
        self._end(
            code,
            f"no node of the job answered at {self._address} ({stated}) within "
            f"{self._rendezvous.connect_timeout_s:g} s ({why}). Check that ftrun runs there, and "
            "that a firewall lets this node through",
        )

    async def _watch(self) -> None:
        """Ask for leases, and end when the lead has been out of reach for too long."""
        interval_s = self._settings.heartbeat_timeout_s / LEASES_PER_TIMEOUT
        while True:
            await asyncio.sleep(min(1.0, interval_s))
            if self._is_connected:  # without a place it is a sign of life
                self._connection.send(m.AskLease(clock.now()))
                if self._place is None:
                    self._show_waiting(clock.now())
            elif clock.now() >= self._gives_up_at:
                self._unreachable()

    def _show_waiting(self, now: float) -> None:
        since = self._waits_since
        if since is not None and now - since >= PLACE_SHOWN_S:
            self._waits_since = None
            self._park()
            self._say(
                f"This node has reached {self._address} and waits there for a place: other nodes "
                "are missing, or this one stands by. The first node's output says which."
            )

    def _park(self) -> None:
        """There is time: prepare a spawner with all imports and standbys for the next place."""
        settings, machine = self._settings, self._setup.machine
        if self._launch is None:
            empty(self._setup.runtime_dir)
            self._launch = SpawnerLaunch(self._setup.launch)
        self._launch.configure(
            spawner_configuration(self._setup, waits=True),
            standbys_of(settings),
            threads_per_worker(settings, machine),
        )

    # ------------------------------------------------------------ the place

    async def _take_place(self, place: m.HandPlace) -> None:
        if self._launch is None:
            empty(self._setup.runtime_dir)
        launch, self._launch = self._launch or SpawnerLaunch(self._setup.launch), None
        first = place.first
        span = Span(
            place.number, place.nodes, first, self._settings.workers_per_replica, place.master_addr
        )
        settings = replace(
            self._settings,
            job_id=place.job_id,
            workers_per_replica=place.workers_per_replica,
            span=span,
        )
        settings.check_directories()
        setup = replace(self._setup, settings=settings, launch=launch)
        self._place = Place(setup, self._connection.send, self._spawner_lost)
        await self._place.start()
        self._was_placed = True
        ranks = f"workers {first} to {span.ranks[-1]}" if span.workers > 1 else f"worker {first}"
        self._say(
            f"This node is number {place.number} of {place.nodes}: {ranks} of "
            f"{place.workers_per_replica}, led from {self._address}."
        )

    async def _leave_place(self, *, ends_well: bool = False) -> None:
        """Return when none of its processes run, even if an earlier call was cancelled."""
        place, self._place = self._place, None
        if place is not None:
            self._closing = self._loop.create_task(place.close(ends_well=ends_well))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    # ------------------------------------------------------------ the end

    def _signalled(self, number: int) -> None:
        rules, name = self._settings.signal_rules(), signal_name(number)
        reaction = rules.reaction(number)
        if reaction is Reaction.PASS_ON and self._place is not None:
            self._place.fleet.pass_signal(number)
        elif reaction is Reaction.STOP or (reaction is Reaction.LEAVE and self._is_leaving):
            self._end(rules.exit_code(number), f"{name}: a request to stop at once")
        elif reaction is Reaction.LEAVE:
            is_notice = number == rules.preempt
            self._leave(name, rules.exit_code(number), number, is_notice=is_notice)

    def _leave(self, reason: str, code: int, number: int, *, is_notice: bool = True) -> None:
        """Ask the lead to stop the group. Without a place the node simply ends."""
        self._is_leaving = True
        if self._place is None:
            self._end(code, reason)
            return
        self._say(f"{reason}: the whole group is asked to stop.")
        self._connection.send(m.DrainAsked(reason, code, number, is_notice))
        if self._settings.exit_with == "job":
            return  # it may take as long as the job
        after_s = self._settings.grace_s + LEAVE_MARGIN_S
        self._loop.call_later(after_s, self._end, code, f"{reason}, and no word from the lead")

    def _spawner_lost(self, lost: SpawnerLost) -> None:
        self._end(lost.exit_code, lost.reason)

    def _end(self, exit_code: int, reason: str, kind: str = "") -> None:
        if not self._done.done():
            self._done.set_result(EndAgent(exit_code, reason, kind))


def empty(runtime_dir: Path) -> None:
    """Create the directory again: a spawner removes it when it ends."""
    shutil.rmtree(runtime_dir, ignore_errors=True)
    runtime_dir.mkdir(mode=0o700)


def cause(words: str) -> str:
    """The part of gRPC's text about a failed try that helps; for TLS, with the remedy."""
    last = words.removesuffix(": OK").rpartition(": ")[2]
    if last == CLOSED:
        return f"{last}: perhaps it has TLS, which --tls-ca turns on here"
    if HANDSHAKE not in words:
        return last
    return (
        f"the TLS handshake fails: {last}. The first node's --tls-cert must be a server's, for "
        "the host of the endpoint, from the authority of --tls-ca here"
    )
