"""Nodes that Slurm has lost and removed from the job: each comes back through a job of its own.

With ``--no-kill`` Slurm keeps a job that loses a node, but removes the node from it, and starts no
step there any more. So a job with one task is submitted for that node alone. Slurm starts it when
the node is back, and its agent joins the others. It is cancelled when the job ends.

The first contender that Slurm has not lost submits these jobs, and takes over those that another
one has submitted.

Not here: what the agent receives (keeper.py), a node that is back before Slurm has noticed its
absence: then srun ends the whole step.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ftrun.engines.place import Place
from ftrun.engines.slurm import node_names

LOOK_S = 10.0
ANSWER_S = 20.0
ALIKE = {
    "--partition": "SLURM_JOB_PARTITION", "--account": "SLURM_JOB_ACCOUNT",
    "--qos": "SLURM_JOB_QOS", "--reservation": "SLURM_JOB_RESERVATION",
    "--cpus-per-task": "SLURM_CPUS_ON_NODE", "--gpus-per-node": "SLURM_GPUS_ON_NODE",
    "--mem": "SLURM_MEM_PER_NODE",
}  # fmt: skip
"""The job's properties on each node, and the variables from which they are known."""


class ReturningNodes:
    """Submits the jobs.

    Attributes:
        contenders: the nodes whose keepers do this.
        environ: of this process.
        command: an agent's command line.
        variables: the variables for the agent of a node.
        say: shows a line.
    """

    def __init__(
        self,
        place: Place,
        contenders: Sequence[str],
        environ: Mapping[str, str],
        command: Sequence[str],
        variables: Callable[[str], Mapping[str, str]],
        log_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        self._place, self._contenders = place, contenders
        self._environ = environ
        self._command = command
        self._variables = variables
        self._log_dir = log_dir
        self._say = say
        self._jobs: dict[str, str] = {}  # by node
        self._is_over = False

    async def run(self) -> None:
        """Look for lost nodes until ``cancel``, or until Slurm stops answering."""
        own, own_name = self._place.job.partition(".")[0], self._place.own_name
        while not self._is_over and len(self._jobs) < len(self._place.others):
            await asyncio.sleep(LOOK_S)
            try:
                left = node_names(await self._ask("squeue", "-h", "-j", own, "-o", "%N"))
            except ValueError:
                continue  # Slurm did not answer
            if next((node for node in self._contenders if node in left), "") != own_name:
                continue  # another contender does it
            for node in self._place.others:
                if node not in left and node not in self._jobs and not self._is_over:
                    await self._submit(node)

    async def _submit(self, node: str) -> None:
        try:
            job = await self._ask("squeue", "-h", f"--name={self._name(node)}", "-o", "%i")
            if job:
                self._jobs[node] = job
                return
            self._jobs[node] = await self._ask(*self._sbatch(node), **self._variables(node))
        except ValueError as error:
            self._jobs[node] = ""
            self._say(f"Slurm has lost {node}, and takes no job that would use it again: {error}")
            return
        if self._is_over:
            await self.cancel()
            return
        self._say(
            f"Slurm has lost {node} and taken it out of this job. Job {self._jobs[node]} uses it "
            "again as soon as it is back."
        )

    def _name(self, node: str) -> str:
        return f"{self._place.job_id()}-{node}"

    def _sbatch(self, node: str) -> list[str]:
        known = {option: self._environ.get(name) for option, name in ALIKE.items()}
        alike = [f"{option}={value}" for option, value in known.items() if value]
        log = self._log_dir / f"{node}.log"
        return [
            "sbatch", "--parsable", "--nodes=1", "--ntasks=1", f"--nodelist={node}", *alike,
            f"--job-name={self._name(node)}", f"--output={log}", "--open-mode=append",
            f"--wrap=exec {shlex.join(self._command)}",
        ]  # fmt: skip

    async def cancel(self) -> None:
        """Cancel the submitted jobs: a node that came back now would begin the job again, alone.

        Slurm shows a job without ``--no-kill`` that it ends for a lost node without that node.
        """
        self._is_over = True
        jobs = [job for job in self._jobs.values() if job]
        if jobs:
            with contextlib.suppress(ValueError):
                await self._ask("scancel", *jobs)

    async def _ask(self, *words: str, **variables: str) -> str:
        """The output of a Slurm command.

        Raises:
            ValueError: it has failed, or does not answer.
        """
        own = ("SLURM_", "SBATCH_")  # they would act as options
        kept = {k: v for k, v in self._environ.items() if not k.startswith(own)}
        conf = {k: v for k, v in self._environ.items() if k == "SLURM_CONF"}
        try:
            done = await asyncio.to_thread(
                subprocess.run, words, env=kept | conf | variables, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=ANSWER_S,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ValueError(str(error)) from error
        text: str = done.stdout.strip()
        if done.returncode:
            raise ValueError(text)
        return text
