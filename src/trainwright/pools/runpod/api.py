"""Runpod's REST API v2: the calls we need, and its errors as classes named by what to do about them.

Checked against the OpenAPI document in Runpod's documentation of 2026-08-20 (`api-reference-v2/openapi.json`, marked
beta), not against the live service. The only module that speaks to the Runpod API. A create has no idempotency key
and no time to live, which is why the rest of this package exists.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

MAX_REPLY_BYTES = 16 << 20
MAX_PAGES = 50
POD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
LOOKS_LIKE_NO_CAPACITY = re.compile(
    r"capacity|could not be placed|cannot be placed|out of stock|sold out|no longer (any|available)"
    r"|(no|not enough) .{0,40}available|not available|unavailable|no (free )?(instance|machine|gpu|host)s?\b",
    re.IGNORECASE,
)


class RunpodError(Exception):
    """A call that failed: HTTP status (0 for none) and the reply's own words."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class OursToFix(RunpodError):
    """The request itself is wrong (422, or a 4xx we never expect): retrying can't help."""


class WrongKey(RunpodError):
    """The API key is refused (401)."""


class NoBalance(RunpodError):
    """The account has no money left (402): stop everything."""


class NoCapacity(RunpodError):
    """This candidate can't be placed (400): try the next. `certain` is false where a broken rule is as likely."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.certain = LOOKS_LIKE_NO_CAPACITY.search(message) is not None


class Skip(RunpodError):
    """The account may not use this candidate (403): skip it."""


class NotThere(RunpodError):
    """No such pod (404)."""


class Wait(RunpodError):
    """Too many requests (429): wait `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message, 429)
        self.seconds = seconds


class Retry(RunpodError):
    """The service or the network failed (5xx, 409, timeout, nonsense): the call may or may not have happened."""


@dataclass(frozen=True)
class Pod:
    """A pod as the API shows it. `status` is PROVISIONING, STARTING, RUNNING, EXITED, ERROR or TERMINATED."""

    id: str
    name: str
    status: str
    usd_per_hour: float
    gpu: str = ""
    cloud: str = ""
    data_center: str = ""
    created_at: str = ""

    @classmethod
    def parse(cls, entry: Any) -> Pod:
        """Return the pod in a reply; raise `Retry` when it isn't one."""
        try:
            pod = cls(
                id=entry["id"],
                name=entry["name"],
                status=entry["status"],
                usd_per_hour=float(entry["cost"]),
                gpu=(entry.get("gpu") or {}).get("id", ""),
                cloud=entry.get("cloud") or "",
                data_center=entry.get("dataCenterId") or "",
                created_at=entry.get("createdAt") or "",
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Retry(f"the API sent a pod that can't be read: {error!r}") from None
        if not isinstance(pod.id, str) or not POD_ID.fullmatch(pod.id) or not isinstance(pod.name, str):
            raise Retry("the API sent a pod with an impossible id or name")
        return pod


@dataclass(frozen=True)
class Offer:
    """A GPU type of the catalog in one cloud: price in USD an hour, stock by data centre (LOW, MEDIUM or HIGH)."""

    gpu: str
    cloud: str
    usd_per_hour: float
    memory_gb: int
    stock: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Create:
    """What a new pod shall be. `data_center` empty lets Runpod choose; the container disk is the only disk."""

    name: str
    image: str
    gpu: str
    cloud: str
    data_center: str
    min_cuda: str
    disk_gb: int
    port: int
    env: Mapping[str, str]

    def body(self) -> dict[str, Any]:
        """Return the request body; unknown fields would be refused with 422."""
        return {
            "name": self.name,
            "image": self.image,
            "gpu": {"id": self.gpu, "count": 1, "minCudaVersion": self.min_cuda},
            "cloud": self.cloud,
            "disk": self.disk_gb,
            "ports": [f"{self.port}/http"],
            "env": dict(self.env),
            **({"dataCenterIds": [self.data_center]} if self.data_center else {}),
        }


class RunpodApi:
    """A client of the API. Every call ends within `seconds`; nothing is retried here; 429 holds back later calls."""

    def __init__(self, base_url: str, key: str, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self._quiet_until = 0.0
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=seconds,
            follow_redirects=False,
            trust_env=False,
        )

    async def __aenter__(self) -> RunpodApi:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def create(self, create: Create) -> Pod:
        """Rent a pod. After `Retry` the pod may exist: list by name before trying again."""
        return Pod.parse(await self._json("POST", "/pods", json=create.body(), creating=True))

    async def pods(self) -> list[Pod]:
        """Return every pod of the account; raises rather than return half a list."""
        return [Pod.parse(entry) for entry in await self._all("/pods", "pods", {})]

    async def get(self, id: str) -> Pod:
        """Return one pod; raise `NotThere`."""
        return Pod.parse(await self._json("GET", f"/pods/{checked(id)}"))

    async def delete(self, id: str) -> bool:
        """Delete a pod for good; return whether it was still there."""
        try:
            await self._json("DELETE", f"/pods/{checked(id)}")
        except NotThere:
            return False
        return True

    async def restart(self, id: str) -> None:
        """Ask for a restart of the container, which wipes its disk. Believe it when the boot id changes."""
        await self._json("POST", f"/pods/{checked(id)}/action", json={"action": "restart"})

    async def logs(self, id: str, tail: int = 50) -> list[str]:
        """Return the last container and system log lines, untrusted text, `[]` when none can be had."""
        lines: list[str] = []
        try:
            async with (
                asyncio.timeout(min(10.0, self._seconds)),
                self._send("GET", f"/pods/{checked(id)}/logs", params={"tail": tail}) as response,
            ):
                if response.status_code == 200:
                    async for line in bounded_lines(response, 256 << 10):
                        if line.startswith("data:"):
                            lines.append(log_line(line[5:]))
        except (RunpodError, TimeoutError):  # the stream stays open after its backlog: the timeout is its normal end
            pass
        return lines[-tail:]

    async def offers(self, cloud: str, min_cuda: str) -> list[Offer]:
        """Return the GPU types that can be rented singly in a cloud now, with price and stock."""
        parameters = {
            "include": "AVAILABILITY",
            "product": "POD",
            "count": "1",
            "cloud": cloud,
            "minCudaVersion": min_cuda,
        }
        offers = []
        for entry in await self._all("/catalog/gpus", "gpus", parameters):
            try:
                if entry.get("availability", "NONE") == "NONE":
                    continue
                centers = {place["id"]: place["availability"] for place in entry.get("dataCenters") or []}
                offer = Offer(
                    gpu=entry["id"],
                    cloud=cloud,
                    usd_per_hour=float(entry["price"][cloud.lower()]),
                    memory_gb=int(entry["memory"]),
                    stock={id: level for id, level in centers.items() if level != "NONE"},
                )
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Retry(f"the API sent a catalog entry that can't be read: {error!r}") from None
            if offer.usd_per_hour > 0:
                offers.append(offer)
        return offers

    async def _all(self, path: str, name: str, parameters: dict[str, str]) -> list[Any]:
        """Return a whole list, page by page where the service pages (its August 2026 document doesn't)."""
        entries: list[Any] = []
        for _ in range(MAX_PAGES):
            reply = await self._json("GET", path, params=parameters)
            page = reply.get(name) if isinstance(reply, dict) else None
            if not isinstance(page, list):
                raise Retry(f"GET {path}: the reply has no list {name!r}")
            entries += page
            following = reply.get("pagination") or {}
            if not following.get("hasNextPage"):
                return entries
            parameters = {**parameters, "cursor": str(following.get("nextCursor"))}
        raise Retry(f"GET {path}: more than {MAX_PAGES} pages")

    async def _json(self, method: str, path: str, *, creating: bool = False, **arguments: Any) -> Any:
        """Return the reply of one call; raise the error class that says what to do."""
        try:
            async with asyncio.timeout(self._seconds), self._send(method, path, **arguments) as response:
                data = await bounded_body(response, MAX_REPLY_BYTES)
        except TimeoutError:
            raise Retry(f"{method} {path}: no whole reply within {self._seconds:g} seconds") from None
        if response.status_code in (200, 201):
            try:
                return json.loads(data)
            except (ValueError, RecursionError):
                raise Retry(f"{method} {path}: the reply is not JSON", response.status_code) from None
        if response.status_code == 204:
            return None
        error = error_of(f"{method} {path}", response, data, creating)
        if isinstance(error, Wait):
            self._quiet_until = max(self._quiet_until, time.monotonic() + error.seconds)
        raise error

    @asynccontextmanager
    async def _send(self, method: str, path: str, **arguments: Any) -> AsyncIterator[httpx.Response]:
        if (left := self._quiet_until - time.monotonic()) > 0:
            raise Wait(f"{method} {path}: the API asked for a pause", left)
        try:
            async with self._client.stream(method, path, **arguments) as response:
                yield response
        except httpx.HTTPError as error:
            raise Retry(f"{method} {path}: {type(error).__name__}: {error}") from None


def checked(id: str) -> str:
    """Return a pod id that is safe in a URL; raise `ValueError`."""
    if not POD_ID.fullmatch(id):
        raise ValueError(f"{id!r} is not a pod id")
    return id


def error_of(call: str, response: httpx.Response, data: bytes, creating: bool) -> RunpodError:
    """Return the error of a reply (RFC 9457 problem details)."""
    status = response.status_code
    try:
        problem = json.loads(data)
        words = " ".join(str(part) for part in [problem["detail"], *problem.get("errors", [])])[:500]
    except (ValueError, KeyError, TypeError, RecursionError):
        words = response.reason_phrase
    message = f"{call}: {status} {words}"
    if status == 401:
        return WrongKey(message, status)
    if status == 402:
        return NoBalance(message, status)
    if status == 403:
        return Skip(message, status)
    if status == 404:
        return NotThere(message, status)
    if status == 429:
        return Wait(message, retry_after(response))
    if creating and (status == 400 or (status >= 500 and LOOKS_LIKE_NO_CAPACITY.search(words))):
        return NoCapacity(message, status)  # users report capacity refusals as 500 too
    if status >= 500 or status == 409 or status < 400:
        return Retry(message, status)
    return OursToFix(message, status)


def retry_after(response: httpx.Response) -> float:
    """Return the seconds a 429 asks for, between 1 and 600; 5 when it doesn't say."""
    text = response.headers.get("Retry-After", "")
    return min(max(float(text), 1.0), 600.0) if re.fullmatch(r"\d{1,6}(\.\d+)?", text) else 5.0


async def bounded_body(response: httpx.Response, limit: int) -> bytes:
    """Return the whole body; raise `Retry` beyond the limit."""
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > limit:
            raise Retry(f"the reply is larger than {limit} bytes", response.status_code)
    return bytes(data)


async def bounded_lines(response: httpx.Response, limit: int) -> AsyncIterator[str]:
    """Yield the lines of a stream until it ends or the limit is reached."""
    pending, seen = b"", 0
    async for piece in response.aiter_bytes():
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
        if (seen := seen + len(piece)) > limit:
            return


def log_line(data: str) -> str:
    """Return the text of one log event, printable characters only."""
    try:
        event = json.loads(data)
        text = f"{event['source']}: {event['line']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        text = data
    return "".join(character if character.isprintable() else " " for character in text)[:500]
