"""Deliberate defects of the Runpod pool, each with the tests that must notice it: a test of the tests.

`python mutations.py [NAME...]` makes a copy of the package for each, breaks it, runs those tests on it and prints which
defects nobody noticed. `test_mutations.py` does the same, slowly; a defect whose text is no longer in the source fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src" / "trainwright"


@dataclass(frozen=True)
class Mutation:
    """One defect: in `file`, `good` becomes `bad`; `noticed_by` is a test file of this folder and an expression."""

    name: str
    file: str
    good: str
    bad: str
    noticed_by: tuple[str, str]


MUTATIONS = [
    Mutation(
        "a pod does not end with its lease", "pod_agent.py",
        "while (left := min(lease, deadline) - time.monotonic()) > 0:",
        "while (left := deadline - time.monotonic()) > 0:",
        ("test_pool.py", "killed_controller_delete_themselves"),
    ),
    Mutation(
        "a pod does not end with its deadline", "pod_agent.py",
        "while (left := min(lease, deadline) - time.monotonic()) > 0:",
        "while (left := lease - time.monotonic()) > 0:",
        ("test_pod_agent.py", "at_its_deadline"),
    ),
    Mutation(
        "the reaper spares twins", "reaper.py",
        "    async for one in sweep(fleet.api, pods, reason_of):",
        "    async for one in sweep(fleet.api, pods, lambda pod: overdue(pod, time.time())):",
        ("test_pool.py", "lost_create and duplicate"),
    ),
    Mutation(
        "the reaper spares pods past their deadline", "reaper.py",
        "    async for one in sweep(fleet.api, pods, reason_of):",
        "    async for one in sweep(fleet.api, pods, lambda pod: unowned(pod, records)):",
        ("test_pool.py", "stray_pod"),
    ),
    Mutation(
        "a twin outlives the run", "pool.py",
        "        await reaper.reap_last(self._fleet)\n", "",
        ("test_pool.py", "twin_goes_with_the_run"),
    ),
    Mutation(
        "a refused deletion is not repeated", "fleet.py",
        "                number += 1\n                continue\n",
        "                until = time.time()\n",
        ("test_pool.py", "deletion_is_repeated"),
    ),
    Mutation(
        "leases are not reserved", "money.py",
        "                reserved += row.reserved(now)", "                pass",
        ("test_money.py", ""),
    ),
    Mutation(
        "a row is not written before the create", "fleet.py",
        "        self.records.intend(row)\n        return row, candidate", "        return row, candidate",
        ("test_chaos.py", "killed_at_every_third_write"),
    ),
    Mutation(
        "a lost create is not looked for", "fleet.py",
        "                found = await self._find(row.name, asked)\n                if not found:\n",
        "                found: list[Pod] = []\n                if not found:\n",
        ("test_pool.py", "lost_create and drop_reply"),
    ),
    Mutation(
        "a dearer pod is kept", "fleet.py",
        "        price = max(row.usd_per_hour, pod.usd_per_hour)", "        price = row.usd_per_hour",
        ("test_pool.py", "costs_more_than_the_catalog"),
    ),
    Mutation(
        "pieces are not hashed", "agent_client.py",
        '        if response.headers.get("X-SHA256") != hashlib.sha256(data).hexdigest():', "        if False:",
        ("test_pool.py", "forged_metrics"),
    ),
    Mutation(
        "artifacts are not hashed", "agent_client.py",
        "        if hashlib.sha256(data).hexdigest() != sha256:", "        if False:",
        ("test_pod_agent.py", "another_artifact"),
    ),
    Mutation(
        "replies have no limit", "agent_client.py",
        "                    if len(data) > (MAX_JSON_BYTES if error else limit):", "                    if False:",
        ("test_chaos.py", "hostile_replies"),
    ),
    Mutation(
        "redirects are followed", "fleet.py",
        "follow_redirects=False", "follow_redirects=True",
        ("test_pool.py", "hostile_pod_can_not and redirect"),
    ),
    Mutation(
        "a renewed lease does not look at the boot id", "fleet.py",
        "        if health.boot_id != row.boot_id:", "        if False:",
        ("test_pool.py", "idle_pod_whose_container_restarted"),
    ),
    Mutation(
        "a restart is believed without a new boot id", "fleet.py",
        "            if health is not None and health.boot_id != old and not health.jobs:",
        "            if health is not None and not health.jobs:",
        ("test_pool.py", "does_not_restart_is_replaced"),
    ),
    Mutation(
        "groups share a container", "worker.py",
        'row.trust_group not in ("", work.group)', "False",
        ("test_chaos.py", "twelve_scenarios"),
    ),
    Mutation(
        "stored results are trained again", "pool.py",
        "        if known and known.result and (stored := self._stored(known)):",
        "        if False and known and (stored := self._stored(known)):",
        ("test_pool.py", "stored_result_needs_no_pod"),
    ),
    Mutation(
        "the last result of a job wins", "records.py",
        "result = ?, finished_at = ? WHERE key = ? AND result IS NULL", "result = ?, finished_at = ? WHERE key = ?",
        ("test_records.py", "first_result"),
    ),
    Mutation(
        "another job's key is taken", "pool.py",
        "        if known and known.spec != spec:", "        if False:",
        ("test_pool.py", "key_is_one_job"),
    ),
    Mutation(
        "two controllers share a folder", "records.py",
        "            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "            pass",
        ("test_pool.py", "one_process_at_a_time"),
    ),
    Mutation(
        "a command that can't work is the job's fault", "worker.py",
        'or (status.ended == "exited" and status.exit_code == INFRA_EXIT)', "or False",
        ("test_pool.py", "never_the_jobs_fault and infra"),
    ),
    Mutation(
        "a command that can't start is the job's fault", "worker.py",
        'if status.ended == "start_failed" or', "if",
        ("test_pool.py", "never_the_jobs_fault and such"),
    ),
    Mutation(
        "a GPU that changed is not noticed", "worker.py",
        "            if self._config.require_gpu and not status.gpu_ok:", "            if False:",
        ("test_pool.py", "gpu_changed"),
    ),
    Mutation(
        "weights are not checked", "results.py",
        "            await asyncio.to_thread(adapter, student, weights)", "            pass",
        ("test_pool.py", "own_fault and artifact_invalid"),
    ),
    Mutation(
        "jobs are not wiped", "worker.py",
        "        await self._wipe(attempt.id)", "        pass",
        ("test_pool.py", "leaves_nothing"),
    ),
    Mutation(
        "hidden prompts go to training pods", "pool.py",
        "role, wall = evaluation.role_of(student), self.config.times.evaluation",
        "role, wall = TRAINING, self.config.times.evaluation",
        ("test_pool.py", "hidden_prompts"),
    ),
    Mutation(
        "base and adapter are not paired", "pod_evaluate.py",
        'f"{seed}\\x1f{index}"', 'f"{os.urandom(4)}\\x1f{index}"',
        ("test_pool.py", "same_seeds"),
    ),
    Mutation(
        "a pod that is gone costs until it is missed", "fleet.py",
        "else min(time.time(), row.lease_until)", "else time.time()",
        ("test_pool.py", "days_later"),
    ),
    Mutation(
        "an empty account goes unnoticed", "renter.py",
        "if isinstance(error, NoBalance):", "if False:",
        ("test_pool.py", "final_refusal"),
    ),
]  # fmt: skip


def noticed(mutation: Mutation) -> bool:
    """Return whether the tests fail on a copy of the package with the defect."""
    with tempfile.TemporaryDirectory(prefix="trainwright-mutation-") as folder:
        shutil.copytree(SOURCE, Path(folder, "trainwright"), ignore=shutil.ignore_patterns("__pycache__"))
        Path(folder).chmod(0o755)
        path = Path(folder, "trainwright", "pools", "runpod", mutation.file)
        path.write_text(path.read_text().replace(mutation.good, mutation.bad))
        file, expression = mutation.noticed_by
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(HERE / file)]
        try:
            done = subprocess.run(
                [*command, *(["-k", expression] if expression else [])],
                env=os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
                cwd=HERE.parents[2],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True  # a test that hangs would not go unnoticed
    if done.returncode not in (0, 1):  # no such test, or pytest itself failed
        raise RuntimeError(f"{mutation.name}: pytest ended with {done.returncode}: {done.stdout[-500:]}")
    return done.returncode == 1


def main() -> None:
    """Try every defect, or those named."""
    for mutation in MUTATIONS:
        if not sys.argv[1:] or mutation.name in sys.argv[1:]:
            print(f"{'noticed' if noticed(mutation) else 'MISSED ':8} {mutation.name}", flush=True)


if __name__ == "__main__":
    main()
