"""Evaluation requests: what the controller asks an evaluation pod, and how the answer is read.

Such a pod never ran a job's code. It gets prompts and a validated adapter; answers and grading stay in the controller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from trainwright.errors import InfraFault
from trainwright.pools.runpod.agent_client import AgentClient, JobStatus, Misbehaved
from trainwright.pools.runpod.results import fetch_artifact

ROLE = "evaluation:"
MAX_REPLY_BYTES = 64 << 20
REQUEST, ADAPTER = "request.json", "adapter"


def role_of(student: str) -> str:
    """Return the role of pods that serve a student."""
    return ROLE + student


def student_of(role: str) -> str:
    """Return the student that pods of a role serve."""
    return role.removeprefix(ROLE)


def request_files(
    adapter: Mapping[str, bytes], prompts: Sequence[str], seed: int, max_tokens: int, temperature: float
) -> dict[str, bytes]:
    """Return the files of one request; `pod_evaluate.py` reads them."""
    request = {
        "prompts": list(prompts),
        "seed": seed,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "adapter": bool(adapter),
    }
    return {REQUEST: json.dumps(request).encode(), **{f"{ADAPTER}/{name}": data for name, data in adapter.items()}}


def request_key(student: str, files: Mapping[str, bytes]) -> str:
    """Return the hash of everything that determines the replies."""
    digest = hashlib.sha256(student.encode())
    for name, data in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return f"evaluation-{digest.hexdigest()}"


async def fetch_replies(
    agent: AgentClient, attempt_id: str, status: JobStatus, count: int, patience: float
) -> list[str]:
    """Return the replies of an ended evaluation; raise `Misbehaved`: whatever goes wrong is the pod's, not a job's."""
    if status.ended != "exited" or status.exit_code != 0 or not 0 <= status.artifact_size <= MAX_REPLY_BYTES:
        log = (await agent.stream(attempt_id, "log", 4096)).decode(errors="replace")
        raise Misbehaved(f"the evaluation ended with {status.ended} {status.exit_code}: {log[-300:]}")
    try:
        return parse_replies(await fetch_artifact(agent, attempt_id, status, patience), count)
    except InfraFault as fault:
        raise Misbehaved(fault.message) from None


def parse_replies(data: bytes, count: int) -> list[str]:
    """Return one reply a prompt; raise `InfraFault` for anything else: a missing reply is never an empty one."""
    try:
        replies = json.loads(data)
    except (ValueError, RecursionError):
        raise InfraFault("bad_replies", "the evaluation pod's replies are not JSON") from None
    if not isinstance(replies, list) or len(replies) != count or not all(isinstance(reply, str) for reply in replies):
        raise InfraFault("bad_replies", f"the evaluation pod did not return {count} replies")
    return replies
