"""What a run has cost, from its ledger and its pods' records."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainwright.agent.policy import Completion
from trainwright.ledger import Attempt, Ledger, Step
from trainwright.pools.runpod.records import PodRow, Records
from trainwright.report.money import Money


def test_a_run_without_a_bill_says_nothing(tmp_path: Path) -> None:
    money = Money.of(Ledger(tmp_path / "ledger.sqlite"))
    assert money.lines() == []
    assert money.summary() == {"total": 0, "agent": 0, "pods": None}


def test_tokens_and_pod_seconds_are_added_while_the_run_works(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.add_attempts([(f"train-0000-0-{one}", Attempt(0, [], Completion("x", usd=0.25))) for one in range(2)])
    ledger.commit_step(Step(0, 0.3, {"policy/usd": 0.5}, "c", 1.0))
    records, now = Records(tmp_path / "pods.sqlite"), time.time() - 3600
    pod = PodRow("p", "training", "g", "SECURE", "", 1.0, "t", now, now + 9999, now + 3600, "INTENT", now)
    records.intend(pod)
    for phase, at in (("BOOTING", 0), ("WORKING", 900), ("IDLE", 2700)):
        records.move(pod, phase, now + at)
    money = Money.of(ledger)  # the pool still holds its records
    assert money.agent == pytest.approx(1.0)
    assert money.total == pytest.approx(2.0)
    pods = money.summary()["pods"]
    assert {kind: pods[kind]["usd"] for kind in pods} == pytest.approx(
        {"working": 0.5, "booting": 0.25, "idle": 0.25, "lost": 0.0}
    )
    assert money.lines() == [
        "spent $2.00: agent $1.00; pods working $0.50, booting $0.25, idle $0.25, lost $0.00; "
        "50% of 1.00 pod-hours without a job"
    ]
    records.close()
