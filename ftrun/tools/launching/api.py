"""``ftrun.launch``: a function in replica groups, from a Python program, a notebook or a test.

Not here: torchelastic's names for the same (elastic/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ftrun.base import packed
from ftrun.base.errors import UserError
from ftrun.config.script import Script, TargetKind
from ftrun.tools.launching.function import pack
from ftrun.tools.launching.job import Job
from ftrun.tools.launching.records import Record
from ftrun.tools.launching.story import Story


def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    replicas: int | str | None = None,
    workers_per_replica: int | None = None,
    **settings: Any,
) -> dict[int, Any]:
    """Call ``function(*args, **kwargs)`` in every worker of a job, and wait for the job's end.

    The job is an ordinary ``ftrun run``: its output appears here, ``ftrun status`` finds it, and a
    worker that dies is restarted.

    Args:
        function: defined at the top level of a module or of the program itself; with
            ``cloudpickle`` installed also a lambda, a nested function or one from a notebook's
            cell.
        args: its positional arguments; they are pickled.
        kwargs: its keyword arguments.
        replicas: the number of replica groups, 1 by default; ``"MIN:MAX"`` for an elastic job.
        workers_per_replica: workers of each replica, 1 by default.
        settings: every further option of ``ftrun run`` by its name, such as ``max_restarts=3``.

    Returns:
        The return values by global rank, ``replica * workers_per_replica + rank in the replica``,
            of
        the replicas that have finished on this node. A restarted replica has the value of its last
        start. One that was drained or given up, or has finished on another node, has none.

    Raises:
        UserError: nothing was started.
        LaunchError: the job has failed; it has every worker's exception.
        KeyboardInterrupt: at Ctrl-C, when the job has ended.
    """
    call_settings = {
        **{"replicas": replicas, "workers_per_replica": workers_per_replica},
        **settings,
    }
    story = Story()
    with Job() as job:
        run_function(job, function, tuple(args), kwargs or {}, call_settings, story.add)
        return story.result(partial(packed.read_value, job.directory))


def run_function(
    job: Job,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: Mapping[str, Any],
    listen: Callable[[Record], None],
) -> None:
    """Run a job whose workers call ``function``. Its values are then in the job's directory.

    Raises:
        UserError: nothing was started; and what ``Job.run`` raises.
    """
    if packed.is_in_main():
        raise UserError(
            "A worker runs the main module of the program that launched it, and that module "
            'launches again. Put the launch under `if __name__ == "__main__":`.'
        )
    call = pack(function, args, kwargs)
    packed.write_call(job.directory, call.around, call.data)
    script = Script(call.name, TargetKind.FUNCTION, (str(job.directory), call.source))
    job.run(script, settings, listen)
