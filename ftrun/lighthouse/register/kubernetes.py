"""The register as one ConfigMap of Kubernetes, through the API server's HTTP.

The version is the object's resourceVersion. A write is a merge patch that states the version that
was read, and the API server refuses it (409) at any other version. So a write without a journal is
small, and does not change the journal or any other keys. A ConfigMap without a register counts as
unwritten, so it may be created in advance and named in a Role.

Token and CA are read at each request, because both are renewed while a pod runs. Not here: when
anything is written.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from ftrun.base.addresses import join_address
from ftrun.base.errors import ProtocolError, UserError
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.lighthouse.register.store import (
    StoreError,
    decode_head,
    encode_head,
    pack_journal,
    unpack_journal,
)

MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_TIMEOUT_S = 1.0
JOURNAL_BYTES_MAX = 1_000_000
"""A ConfigMap has 1 MiB at most; the rest is for its other content."""
HEAD = "register"
JOURNAL = "journal"
LABELS = {"app.kubernetes.io/managed-by": "ftrun"}
MERGE_PATCH = "application/merge-patch+json"
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_PLACE = re.compile(rf"({_NAME})/({_NAME})")
HINTS = {
    401: "it does not accept this pod's service account token",
    403: "bind a Role with get, create and patch on configmaps to this pod's service account",
    404: "there is no such namespace",
    413: "the job's journal is too large for a ConfigMap: use etcd:// or a shared directory",
    422: "the job's journal is too large for a ConfigMap: use etcd:// or a shared directory",
    429: "it has too many requests",
}


@dataclass(frozen=True, slots=True)
class ApiServer:
    """How a pod reaches it. ``mount``: the directory of its service account's token and CA."""

    address: str
    mount: Path

    def read(self, name: str) -> str:
        """One of the two files.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            return (self.mount / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.mount / name} cannot be read: {error}") from None


def parse_kubernetes(text: str) -> tuple[str, str]:
    """The namespace and the ConfigMap's name in ``NAMESPACE/NAME``.

    Raises:
        UserError: it has another form.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise UserError(
            f"--state k8s://{text}: must be k8s://NAMESPACE/NAME, where NAME is a ConfigMap that "
            "only this job's lighthouses use."
        )
    return found[1], found[2]


def api_server(environ: Mapping[str, str]) -> ApiServer:
    """The API server of the cluster in which this process runs.

    Raises:
        UserError: it runs in none, or its pod has no service account token.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise UserError(
            "--state k8s://: this process is in no pod of Kubernetes (KUBERNETES_SERVICE_HOST is "
            "not set). Give a directory or etcd:// instead."
        )
    if not (MOUNT / "token").exists():
        raise UserError(
            f"--state k8s://: there is no service account token in {MOUNT}. Give the pod a "
            "serviceAccountName, and remove automountServiceAccountToken: false."
        )
    return ApiServer(join_address(host, int(port)), MOUNT)


class KubernetesStore:
    """One register in one ConfigMap."""

    def __init__(self, namespace: str, name: str, api: ApiServer) -> None:
        self.place = f"k8s://{namespace}/{name}"
        self._name = name
        self._api = api
        self._all = f"https://{api.address}/api/v1/namespaces/{namespace}/configmaps"
        self._session: aiohttp.ClientSession | None = None
        self._ca = ""

    async def read(self, *, with_journal: bool) -> Answered:
        status, found = await self._call("GET", f"{self._all}/{self._name}")
        if status == 404:
            return Answered(0, None)
        self._check(status, found)
        version = self._version(found)
        head = _part(found, "data").get(HEAD)
        if head is None:
            return Answered(version, None)
        packed = _part(found, "binaryData").get(JOURNAL, "") if with_journal else ""
        try:
            journal = unpack_journal(base64.b64decode(packed)) if with_journal else None
            value, _ = decode_head(str(head).encode(), journal)
        except (ProtocolError, binascii.Error) as error:
            raise StoreError(
                f"the ConfigMap {self._name} has something else than a register ({error}): delete "
                "it, or give another name in --state"
            ) from error
        return Answered(version, value)

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        document: dict[str, Any] = {"data": {HEAD: encode_head(value).decode()}}
        if value.journal is not None:
            packed = pack_journal(value.journal)
            if len(packed) > JOURNAL_BYTES_MAX:
                raise StoreError(HINTS[413])
            document["binaryData"] = {JOURNAL: base64.b64encode(packed).decode()}
        if version:
            document["metadata"] = {"resourceVersion": str(version)}
            status, found = await self._call("PATCH", f"{self._all}/{self._name}", document)
        else:
            kind = {"apiVersion": "v1", "kind": "ConfigMap"}
            document |= {**kind, "metadata": {"name": self._name, "labels": LABELS}}
            status, found = await self._call("POST", self._all, document)
        if status == 409 or (version and status == 404):  # changed, or deleted
            return Refused()
        self._check(status, found)
        return Accepted(self._version(found))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ------------------------------------------------------------ requests

    async def _call(
        self, method: str, url: str, document: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The status and the document of one answer."""
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._api.read('token')}", "Content-Type": kind}
        data = None if document is None else io.BytesIO(json.dumps(document).encode())
        try:
            session = await self._connected()
            async with session.request(method, url, data=data, headers=headers) as answer:
                body = await answer.read()
                status = answer.status
            found = json.loads(body) if body else {}
        except asyncio.TimeoutError:
            raise StoreError(self._words(f"no answer in {CALL_TIMEOUT_S:g} s")) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise StoreError(self._words(str(error) or type(error).__name__)) from None
        return status, _part({"found": found}, "found")

    async def _connected(self) -> aiohttp.ClientSession:
        """The session; a new one if the cluster's CA has been replaced."""
        ca = self._api.read("ca.crt")
        if self._session is not None and ca != self._ca:
            await self.close()
        if self._session is None:
            self._ca = ca
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=ca)),
                timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_S),
            )
        return self._session

    def _check(self, status: int, found: dict[str, Any]) -> None:
        """Check that the answer is a ConfigMap.

        Raises:
            StoreError: the API server has refused or failed.
        """
        if status in (200, 201):
            return
        parts = [str(found.get("message") or ""), HINTS.get(status, "")]
        raise StoreError(self._words("; ".join(filter(None, parts)) or "no reason", status))

    def _version(self, found: dict[str, Any]) -> int:
        text = str(_part(found, "metadata").get("resourceVersion"))
        if not text.isascii() or not text.isdecimal():
            raise StoreError(self._words(f"the resourceVersion {text!r} is no number"))
        return int(text)

    def _words(self, why: str, status: int = 0) -> str:
        return f"Kubernetes at {self._api.address}: {f'{status}, ' if status else ''}{why}"


def _part(found: dict[str, Any], name: str) -> dict[str, Any]:
    """An object within an object; an empty one if there is none."""
    part = found.get(name)
    return part if isinstance(part, dict) else {}
