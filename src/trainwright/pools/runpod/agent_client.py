"""The controller's end of the pod agent's protocol (`pod_agent.py`). A pod that ran a job is hostile: nothing it sends
is believed beyond what was checked here, no reply is read past its limit, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from trainwright.pools.runpod.api import checked

MAX_JSON_BYTES = 1 << 20
PIECE_BYTES = 4 << 20
STREAM_BYTES = 256 << 10
HEX = re.compile(r"[0-9a-f]{64}")


class Unreachable(Exception):
    """No answer from the agent itself: a connection error, a timeout, the proxy's own error. The pod may be fine."""


class Misbehaved(Exception):
    """The pod broke the protocol: a redirect, an endless, huge or unreadable reply, a hash that doesn't match."""


class Refused(Exception):
    """The agent refused a request: HTTP status (4xx) and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status


@dataclass(frozen=True)
class Health:
    """What the agent says of itself. `lease_seconds` and `deadline_seconds` are what is left of them."""

    boot_id: str
    lease_seconds: float
    deadline_seconds: float
    gpus: tuple[str, ...]
    jobs: Mapping[str, str]

    @classmethod
    def parse(cls, reply: Any) -> Health:
        """Return the health in a reply; raise `Misbehaved`."""
        try:
            health = cls(
                boot_id=reply["boot_id"],
                lease_seconds=finite(reply["lease_seconds"]),
                deadline_seconds=finite(reply["deadline_seconds"]),
                gpus=tuple(printable(gpu, 200) for gpu in reply["gpus"] or ())[:16],
                jobs={str(id): str(state) for id, state in reply["jobs"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Misbehaved(f"unreadable health: {error!r}") from None
        if not isinstance(health.boot_id, str) or not re.fullmatch(r"[0-9a-f]{32}", health.boot_id):
            raise Misbehaved("the boot id isn't one")
        return health


@dataclass(frozen=True)
class JobStatus:
    """How a job stands. `state` is UPLOADING, RUNNING or DONE; `ended` is exited, signal, timeout, oom, cancelled or
    start_failed. `gpu_ok` is false when the GPUs before and after the job differ or can't be queried."""

    state: str
    ended: str
    exit_code: int | None
    wall_seconds: float
    artifact_size: int
    artifact_sha256: str
    fault_code: str
    fault_message: str
    gpu_ok: bool

    @classmethod
    def parse(cls, reply: Any) -> JobStatus:
        """Return the status in a reply; raise `Misbehaved`."""
        try:
            artifact, fault = reply["artifact"], reply["fault"] or {}
            code = reply["exit_code"]
            status = cls(
                state=str(reply["state"]),
                ended=str(reply["ended"]),
                exit_code=None if code is None else int(code),
                wall_seconds=finite(reply["wall_seconds"]),
                artifact_size=-1 if artifact is None else int(artifact["size"]),
                artifact_sha256="" if artifact is None else artifact["sha256"],
                fault_code=re.sub(r"[^a-z0-9_]", "_", str(fault.get("code", "")).lower())[:64],
                fault_message=printable(str(fault.get("message", "")), 500),
                gpu_ok=reply["gpu_ok"] is True,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Misbehaved(f"unreadable job status: {error!r}") from None
        if status.state not in {"UPLOADING", "RUNNING", "DONE"}:
            raise Misbehaved(f"unknown job state {status.state[:40]!r}")
        if status.artifact_size >= 0 and not (
            isinstance(status.artifact_sha256, str) and HEX.fullmatch(status.artifact_sha256)
        ):
            raise Misbehaved("the artifact has no hash")
        return status


class AgentClient:
    """One pod's agent. Every request ends within `seconds`, which is below the proxy's limit of 100."""

    def __init__(
        self, http: httpx.AsyncClient, template: str, pod_id: str, port: int, token: str, seconds: float
    ) -> None:
        self._http = http
        self._root = template.replace("{pod_id}", checked(pod_id)).replace("{port}", str(port))
        self._headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        self._seconds = seconds

    async def health(self) -> Health:
        """Return the agent's health."""
        return Health.parse(await self._json("GET", "/health"))

    async def renew(self, seconds: float) -> Health:
        """Set the lease to end in so many seconds and return the health."""
        body = json.dumps({"seconds": seconds, "now": time.time()}).encode()
        return Health.parse(await self._json("POST", "/lease", content=body))

    async def upload(
        self, id: str, command: list[str], env: Mapping[str, str], wall_seconds: float, files: Mapping[str, bytes]
    ) -> None:
        """Declare a job and send its files; doing it twice is doing it once."""
        promises = {
            path: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files.items()
        }
        manifest = {"command": command, "env": dict(env), "wall_seconds": wall_seconds, "files": promises}
        await self._json("PUT", f"/jobs/{quote(id)}", content=json.dumps(manifest, sort_keys=True).encode())
        for path, data in files.items():
            for offset in range(0, max(len(data), 1), PIECE_BYTES):
                where = f"/jobs/{quote(id)}/files?path={quote(path, safe='')}&offset={offset}"
                await self._json("PUT", where, content=data[offset : offset + PIECE_BYTES])

    async def start(self, id: str) -> JobStatus:
        """Start a job whose files are complete; starting twice is starting once."""
        return JobStatus.parse(await self._json("POST", f"/jobs/{quote(id)}/start"))

    async def status(self, id: str) -> JobStatus:
        """Return how a job stands; raise `Refused` (404) when the agent doesn't know it."""
        return JobStatus.parse(await self._json("GET", f"/jobs/{quote(id)}"))

    async def delete(self, id: str) -> None:
        """Kill and wipe a job."""
        await self._json("DELETE", f"/jobs/{quote(id)}")

    async def stream(self, id: str, kind: str, limit: int) -> bytes:
        """Return the first `limit` bytes of a job's `log` or `metrics`, empty when there are none."""
        data = bytearray()
        while len(data) < limit:
            try:
                piece = await self._piece(id, kind, len(data), min(STREAM_BYTES, limit - len(data)))
            except Refused as refusal:
                if refusal.status == 404:
                    break
                raise
            if not piece:
                break
            data += piece
        return bytes(data)

    async def artifact(self, id: str, size: int, sha256: str) -> bytes:
        """Return the artifact of a known size and hash; raise `Misbehaved` when the bytes don't match."""
        data = bytearray()
        while len(data) < size:
            piece = await self._piece(id, "artifact", len(data), min(PIECE_BYTES, size - len(data)))
            if not piece:
                raise Misbehaved(f"the artifact ends after {len(data)} of {size} bytes")
            data += piece
        if hashlib.sha256(data).hexdigest() != sha256:
            raise Misbehaved("the artifact does not match its hash")
        return bytes(data)

    async def _piece(self, id: str, kind: str, offset: int, length: int) -> bytes:
        where = f"/jobs/{quote(id)}/stream?file={kind}&offset={offset}&length={length}"
        response, data = await self._request("GET", where, length)
        if response.headers.get("X-SHA256") != hashlib.sha256(data).hexdigest():
            raise Misbehaved(f"a piece of the {kind} does not match its hash")
        return data

    async def _json(self, method: str, path: str, content: bytes = b"") -> Any:
        _, data = await self._request(method, path, MAX_JSON_BYTES, content)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise Misbehaved(f"{method} {path}: the reply is not JSON") from None

    async def _request(self, method: str, path: str, limit: int, content: bytes = b"") -> tuple[httpx.Response, bytes]:
        """Return a successful reply of at most `limit` bytes; raise `Unreachable`, `Misbehaved` or `Refused`."""
        data = bytearray()
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._http.stream(method, self._root + path, headers=self._headers, content=content) as response,
            ):
                error = response.status_code != 200
                async for piece in response.aiter_raw():
                    data += piece
                    if len(data) > (MAX_JSON_BYTES if error else limit):
                        raise Misbehaved(f"{method} {path}: the reply is larger than {limit} bytes")
        except (httpx.HTTPError, TimeoutError) as failure:
            raise Unreachable(f"{method} {path}: {type(failure).__name__}: {failure}") from None
        if response.status_code == 200:
            return response, bytes(data)
        if 300 <= response.status_code < 400:
            raise Misbehaved(f"{method} {path}: a redirect ({response.status_code})")
        if 400 <= response.status_code < 500:
            try:
                words = printable(str(json.loads(data)["error"]), 300)
            except (ValueError, KeyError, TypeError, RecursionError):
                raise Unreachable(f"{method} {path}: {response.status_code} not from the agent") from None
            if response.status_code == 401:
                raise Misbehaved(f"{method} {path}: the agent doesn't know our token")
            raise Refused(response.status_code, words)
        raise Unreachable(f"{method} {path}: {response.status_code}")


def finite(value: Any) -> float:
    """Return a finite number; raise `ValueError`."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number


def printable(text: str, limit: int) -> str:
    """Return untrusted text with control characters replaced, cut to a length."""
    return "".join(character if character.isprintable() else " " for character in text[:limit])
