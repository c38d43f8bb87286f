"""A harness that asks the model once, in the environment server's own process.

verifiers' built-in harnesses start a program a rollout, and the first of them is provisioned from a package index. The
contract of a harness is the interception endpoint, not a process (verifiers/v1/harness.py, `Harness.launch`).
"""

from __future__ import annotations

from typing import Any

import httpx
import verifiers.v1 as vf


class DirectHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """One request to the model's endpoint; no tools, no second turn."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Send the prompt; a refused request is a failed program, whose text says why."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [{"role": message.role, "content": message.content} for message in prompt]
        async with httpx.AsyncClient(timeout=None) as client:  # the rollout has its own limit
            response = await client.post(
                f"{endpoint}/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        failed = response.status_code >= 400
        return vf.ProgramResult(exit_code=int(failed), stdout="", stderr=response.text[:2000] if failed else "")
