"""One job on the nodes of a step: ``srun ftrun --replicas N train.py``, with no other flag."""

from __future__ import annotations

import os
import re
import signal
import stat
from contextlib import ExitStack
from pathlib import Path

from tests.engines.job import AGENT, DDP, FTRUN, LIGHTHOUSE, TRAIN, SlurmJob
from tests.engines.slurm import Slurm

NODES = ("--nodes=4", "--ntasks-per-node=1", "--job-name=train")
LINE = f"srun {FTRUN} --replicas 3 {TRAIN}"


def test_nodes_meet_by_themselves_and_their_agents_come_and_go(
    slurm: Slurm, tmp_path: Path
) -> None:
    line = LINE.replace("srun", "srun --kill-on-bad-exit=1")
    with SlurmJob(slurm, tmp_path, NODES, line, {"STEPS": "100000"}) as job:
        hosts = job.expect(r"begins on n(\d)", 3)
        job.expect(r"step \d+ of 3", 3)
        (meeting,) = tmp_path.glob(f"ftrun-logs/train-{job.id}.0/lighthouse-slurm-{job.id}.0.0-*")
        assert stat.S_IMODE(meeting.stat().st_mode) == 0o700
        for name in ("lighthouses", "token", "agent.key"):
            assert stat.S_IMODE((meeting / name).stat().st_mode) == 0o600, name
        known = (meeting / "lighthouses").read_text()
        assert [x.partition(":")[0] for x in known.split(",")] == slurm.machines.addresses[:3]

        killed = next(int(host) for host in hosts if host != "0")
        os.kill(job.process(killed, AGENT), signal.SIGKILL)
        job.expect(rf"The agent on n{killed} \(pid \d+\) died: SIGKILL. It restarts")
        job.expect("begins on", 4)
        job.expect("joined at step")
        # Its successor has the replica again, or stands by because another node has it.
        job.expect(rf"begins on n{killed}\b|ftrun n{killed}: All replicas run on other nodes", 2)

        os.kill(job.process(0, LIGHTHOUSE), signal.SIGKILL)
        job.expect("The lighthouse on n0 died: SIGKILL. It restarts")
        job.expect("A lighthouse leads again and knows of")

        drained = next(int(host) for host in hosts if host not in ("0", str(killed)))
        os.kill(job.process(drained, AGENT), signal.SIGTERM)
        job.expect(r"Replica \d has left: drained")
        job.expect("begins on", 5)
        job.train_to_the_end(3)
        assert job.end() == ("COMPLETED", "0:0")
        of_job = re.findall("^ftrun: (.*)", job.output, re.MULTILINE)
        assert [line for line in of_job if of_job.count(line) > 1] == [], "each line once"
        assert "The job has finished" in of_job[-2] and "Summary: " in of_job[-1]
        assert re.search(r"^ftrun n\d: replica \d \(pid", job.output, re.MULTILINE) is None
        assert re.search(r"^ftrun n\d: All replicas run on other nodes", job.output, re.MULTILINE)
        assert not re.search(r"srun: error: n\d", job.output), "of a task"
        assert job.left() == ""
        assert not meeting.exists()


def test_all_leave_at_one_boundary_and_a_requeue_begins_afresh(
    slurm: Slurm, tmp_path: Path
) -> None:
    """Nothing of the first try is waited for, or taken over: its nodes and its lighthouses."""
    line = f"-- --replicas 2 {TRAIN}"
    options = ("--nodes=2", *NODES[1:], "--requeue", "--signal=USR1@60")
    with SlurmJob(slurm, tmp_path, options, line, {"STEPS": "100000"}) as job:
        job.expect("step 10 of 2", 2)
        job.ends_within(60)
        job.expect("SIGUSR1: leaving within 10 s", 2)
        job.expect(r"A drain was carried out at step (\d+)")
        job.expect(r"ended with exit code 75 \(SIGUSR1\)")
        job.expect(f"The job is queued again .--requeue.: scontrol requeue {job.id}")
        job.run_again()
        job.expect("step 10 of 2", 4)
        again = job.output.partition("The job is queued again")[2]
        assert not re.search(r"leads again|[Ll]ost|out of reach|moves from|is replaced", again)
        assert (tmp_path / "ftrun-logs" / f"train-{job.id}.0.attempt-1").is_dir()
        slurm.ask("scancel", job.id)
        assert job.end()[0] == "CANCELLED"
        assert len(job.expect(r"A drain was carried out at step (\d+)", 2)) == 2
        assert job.left() == ""


def test_an_unmodified_script_heals_over_nodes_and_leaves_at_the_time_limit(
    slurm: Slurm, tmp_path: Path
) -> None:
    options = ("--nodes=2", "--ntasks-per-node=1", "--job-name=ddp")
    with SlurmJob(slurm, tmp_path, options, f"srun {FTRUN} --replicas 2 {DDP}") as job:
        host, pid = next(iter(job.expect(r"begins on n(\d) with pid (\d+)", 2)))
        job.expect(r"step 10: ", 2)
        os.kill(slurm.machines.nodes[int(host)].pid_of(int(pid)), signal.SIGKILL)
        (step,) = job.expect(r"healed from replicas? .*: step (\d+)")[:1]
        later = int(step) // 10 * 10 + 20
        states = job.expect(rf"step {later}: (\w+)", 2)
        assert len(set(states)) == 1
        job.ends_within(5)  # Slurm refuses a time that has passed when it hears of it
        assert job.end()[0] == "TIMEOUT"
        job.expect(r"A drain was carried out at step (\d+)")
        assert job.left() == ""


def test_a_node_that_is_lost_costs_the_others_nothing_and_gets_work_when_it_is_back(
    slurm: Slurm, tmp_path: Path
) -> None:
    line = f"srun --no-kill {FTRUN} --replicas 3 --interface eth0 {TRAIN}"
    options = ("--nodes=3", *NODES[1:], "--no-kill")
    with SlurmJob(slurm, tmp_path, options, line, {"STEPS": "100000"}) as job:
        hosts = job.expect(r"begins on n(\d)", 3)
        job.expect("step 10 of 3", 3)
        lost = next(int(host) for host in hosts if host != "0")
        slurm.power_off(lost)
        job.expect(r"Replica \d lost: the node is out of reach: it acknowledges nothing to 10\.")
        job.expect("begins on", 4)
        job.expect(rf"Slurm has lost n{lost} and taken it out of this job. Job \d+ uses it again")
        slurm.power_on(lost)
        slurm.await_nodes(len(slurm.machines.nodes))
        job.expect(r"moves from \S+ to \S+, to even the load")
        (log,) = tmp_path.glob(f"ftrun-logs/*/n{lost}.log")
        job.expect("joined at step", 2)
        assert f"begins on n{lost}" in log.read_text()
        job.train_to_the_end(2)  # what has come back prints elsewhere
        assert job.end() == ("COMPLETED", "0:0")


def test_two_jobs_share_their_nodes_and_a_second_task_of_a_node_has_nothing_to_do(
    slurm: Slurm, tmp_path: Path
) -> None:
    script = tmp_path / "once.py"
    script.write_text("print('ran once')\n")
    sizes, options = (2, 1), ("--ntasks-per-node=2", "--job-name=twice")
    with ExitStack() as stack:
        jobs = []
        for size, nodes in zip(sizes, ("n0,n1", "n0"), strict=True):
            place = tmp_path / nodes
            place.mkdir()
            line = f"srun {FTRUN} --replicas {size} {script}"
            job = SlurmJob(slurm, place, (f"--nodelist={nodes}", *options), line)
            jobs.append(stack.enter_context(job))
        for size, job in zip(sizes, jobs, strict=True):
            assert job.end() == ("COMPLETED", "0:0")
            needless = re.findall(r"task 1 of (n\d) beside task 0", job.output)
            assert sorted(needless) == ["n0", "n1"][:size]
            assert len(re.findall("ran once", job.output)) == size
            assert job.left() == ""


def test_doctor_names_the_way_that_is_missing_and_torchruns_words_are_refused(
    slurm: Slurm, tmp_path: Path
) -> None:
    first, second = (f"srun {FTRUN} {words}" for words in ("doctor --nodes", "--nproc-per-node 2"))
    machines, away = slurm.machines, slurm.machines.addresses[3]
    options = ("--nodes=4", "--ntasks-per-node=1")
    machines.ip(1, "route", "add", "unreachable", away)
    try:
        with SlurmJob(slurm, tmp_path, options, f"{first}; {second} {TRAIN}") as job:
            assert job.end() == ("FAILED", "2:0")
    finally:
        machines.ip(1, "route", "del", "unreachable", away)
    (bad,) = (line for line in job.output.splitlines() if line.startswith("PROBLEM  nodes"))
    assert f"n3 does not reach n1 at {machines.addresses[1]}; n1 does not reach n3 ({away})" in bad
    assert "ok       KillWait" in job.output
    assert "For one job under Slurm: --replicas N" in job.output
    assert not list(tmp_path.glob("ftrun-logs/doctor*"))


def test_groups_of_two_nodes_each_outlive_an_agent(slurm: Slurm, tmp_path: Path) -> None:
    """A hand's agent is killed, and its keeper starts another; test_groups.py has nodes lost."""
    line = f"srun --no-kill {FTRUN} --replicas 2 -w 2 --nproc-per-node 1 {TRAIN}"
    options = (*NODES, "--no-kill")
    with SlurmJob(slurm, tmp_path, options, line, {"STEPS": "100000"}) as job:
        begun = job.expect(r"\[(\d\.\d)\] begins on n(\d)", 4)
        assert sorted(begun) == [("0.0", "0"), ("0.1", "1"), ("1.0", "2"), ("1.1", "3")]
        job.expect("step 10 of 2", 4)
        os.kill(job.process(1, AGENT), signal.SIGKILL)
        # Its lead tells it, or the lighthouse, which may hear first and frees the lead.
        job.expect("replica 0, worker 1 is lost with its node n1|now: node n1 .* is gone")
        job.expect("The agent on n1 .* died: SIGKILL. It restarts")
        job.expect("Replica 0 joined at step")
        slurm.ask("scancel", job.id)
        assert job.end()[0] == "CANCELLED"
        assert job.left() == ""
