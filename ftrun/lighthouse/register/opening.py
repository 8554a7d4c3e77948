"""Opens the store that a user names: ``--state DIR``, ``etcd://…/JOB`` or ``k8s://…/NAME``.

Not here: the stores.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ftrun.base.errors import UserError
from ftrun.lighthouse.register.store import Store

ETCD = "etcd://"
KUBERNETES = "k8s://"
FILE = "file://"


def open_store(text: str) -> Store:
    """The store that ``text`` names. No request is sent yet.

    Raises:
        UserError: it has another form.
    """
    directory = directory_of(text)
    if directory is not None:
        from ftrun.lighthouse.register.directory import DirectoryStore

        return DirectoryStore(directory)
    if text.startswith(ETCD):
        from ftrun.lighthouse.register.etcd import EtcdStore, parse_etcd

        return EtcdStore(*parse_etcd(text.removeprefix(ETCD)))
    if text.startswith(KUBERNETES):
        from ftrun.lighthouse.register import kubernetes

        place = kubernetes.parse_kubernetes(text.removeprefix(KUBERNETES))
        return kubernetes.KubernetesStore(*place, kubernetes.api_server(os.environ))
    raise UserError(
        f"--state {text}: this kind of store is not known. Give a directory that all lighthouses "
        f"of the job share, {ETCD}HOST:PORT,HOST:PORT/JOB, or in a pod {KUBERNETES}NAMESPACE/NAME."
    )


def files_beside(text: str, home: Path) -> Path:
    """Where a lighthouse keeps the optional files: account and incidents.

    They are in the store's directory or, if the store is not a directory, below ``home`` on each
    host.
    """
    directory = directory_of(text)
    if directory is not None:
        return directory
    return home / re.sub(r"[^\w-]", "_", text.partition("://")[2].partition("?")[0])


def directory_of(text: str) -> Path | None:
    """The directory that ``text`` names, if it names one."""
    if "://" in text and not text.startswith(FILE):
        return None
    return Path(text.removeprefix(FILE))
