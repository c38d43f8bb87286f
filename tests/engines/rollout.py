"""Plays rollouts of `trainwright_job` in process, with a model that is a function; run by the interpreter under test.

Reads {"rows", "socket", "count"} from stdin; prints one JSON list: what the model was sent, and the trace's reward and
errors. The one patch replaces the client that would call vLLM.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import time

import verifiers.v1 as vf
import verifiers.v1.interception.server as interception
from verifiers.v1.utils.loaders import load_taskset, resolve_env_config


class FunctionClient(vf.Client):
    """Answers with the last message in capitals."""

    def __init__(self) -> None:
        self.seen: list[list[dict]] = []

    async def get_response(self, dialect, body, sampling, session_id=None, turn=None, headers=None):
        self.seen.append(body["messages"])
        message = {"role": "assistant", "content": body["messages"][-1]["content"].upper()}
        raw = {
            "id": "x",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response

    async def close(self):
        pass


async def main() -> None:
    given = json.load(sys.stdin)
    client = FunctionClient()
    interception.resolve_client = lambda config: client
    agent = {
        "max_turns": 1,
        "harness": {"id": "trainwright-job"},
        "runtime": {"type": "subprocess"},
        "timeout": {"rollout": 60.0, "scoring": 900.0},
    }
    taskset = {"id": "trainwright-job", "rows": given["rows"], "task": {"socket": given["socket"]}}
    config = resolve_env_config({"taskset": taskset, "agent": agent})
    environment = vf.load_environment(config)
    context = vf.ModelContext(
        model="local",
        client=vf.EvalClientConfig(base_url="http://unused", api_key_var="NONE"),
        sampling=vf.SamplingConfig(),
    )
    results = []
    tasks = list(load_taskset(config.taskset))[: given["count"]]
    wire = [json.loads(task.data.model_dump_json()) for task in tasks]  # as the orchestrator sends them
    async with environment.serving():
        for data in wire:
            task = type(tasks[0])(type(tasks[0].data).model_validate(data), environment.config.taskset.task)
            episode = await environment.run_episode(task, context)
            trace = episode.traces[0]
            results.append({"reward": trace.reward, "ok": trace.ok, "errors": [str(e) for e in trace.errors]})
    version = importlib.metadata.version("verifiers")
    print(json.dumps({"version": version, "file": vf.__file__, "sent": client.seen, "results": results}))


asyncio.run(main())
