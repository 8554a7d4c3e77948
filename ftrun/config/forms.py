"""The form in which a script begins, and the settings of a run that begins again in another one.

Not here: why it does (core/forms.py, inject/zero_edit/), other settings (settings.py).
"""

from __future__ import annotations

from dataclasses import replace

from ftrun.config.script import TargetKind
from ftrun.config.settings import RunSettings
from ftrun.core.forms import AUTO, WATCHED, Form


def injection(settings: RunSettings) -> str:
    """``--inject`` as it holds for this run: ``auto`` only where there is something to find out.

    A command, or a script under another interpreter, is out of reach, and so are the functions of
    ``ftrun.launch``, whose values come back replica by replica. A replica of several workers needs
    a Manager.
    """
    if settings.inject != AUTO:
        return settings.inject
    script = settings.script.as_started()
    is_script = script.kind in (TargetKind.FILE, TargetKind.MODULE, TargetKind.PATH)
    may_be_taken = settings.replicas > 1 and settings.workers_per_replica == 1
    return AUTO if is_script and may_be_taken else Form.EXPLICIT.value


def in_form(settings: RunSettings, form: Form) -> RunSettings:
    """The settings of the same run in another form.

    ``ONE_WORLD``: what ``--workers-per-replica N`` and ``--replicas 1`` say.
    """
    if form is Form.EXPLICIT:
        return replace(settings, inject=WATCHED)
    if form is Form.DDP:
        return replace(settings, inject=form.value)
    stdin = settings.stdin
    return replace(
        settings,
        inject=Form.EXPLICIT.value,
        replicas=1,
        min_replicas=1,
        workers_per_replica=settings.replicas,
        stdin=None if stdin is None else f"0.{stdin.partition('.')[0]}",
    )
