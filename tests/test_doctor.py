"""What `trainwright doctor` finds on this machine, and on others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright import doctor
from trainwright.errors import SandboxError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_command_prints_what_this_machine_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainwright.cli", "doctor"]
    environment = os.environ | {"TRAINWRIGHT_CACHE": str(tmp_path / "cache"), "TINKER_API_KEY": "tml-secret"}
    page, machine = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True, env=environment).stdout
        for more in ([], ["--json"])
    )
    found = json.loads(machine)
    assert found["cores"] == os.cpu_count()
    assert found["torch"]["version"] in page
    assert found["sandbox"]["level"] in ("full", "reduced", "")
    assert set(found["tiers"]) == {"nano", "small", "full"}
    assert "TINKER_API_KEY" in page
    assert "secret" not in page + machine


def test_a_machine_without_a_sandbox_fits_no_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SandboxError("no sandbox for the jobs' code")

    monkeypatch.setattr("trainwright.environment.sandbox.detect", refuse)
    found = doctor.examine()
    assert found["sandbox"]["level"] == ""
    assert all("a sandbox" in tier["lacks"] for tier in found["tiers"].values())


def test_a_broken_torch_is_a_finding_and_no_crash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    doctor.print_examination(as_json=False)
    shown = capsys.readouterr().out
    assert "does not work: " in shown
    assert "tier nano    no: a torch that imports" in shown


def test_programs_keys_and_a_card_make_the_full_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in doctor.PRIME_RL_PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    card = {"name": "A card", "memory_gib": 24.0, "capability": "8.9"}
    monkeypatch.setattr(doctor, "_gpu", lambda: {"cards": [card]})
    monkeypatch.setattr(doctor, "EXTRAS", {"tinker": ("json",), "runpod": ("nothing_of_that_name",)})
    found = doctor.examine()
    assert found["prime_rl"]["folder"] == str(tmp_path)
    assert found["tiers"]["full"]["lacks"] == []
    (tmp_path / "rl").unlink()
    assert doctor.examine()["prime_rl"]["missing"] == ["rl"]
    doctor.print_examination(as_json=False)
    assert "A card (24.0 GiB)" in capsys.readouterr().out


def test_a_cache_that_can_t_be_made_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "file"))
    found: dict[str, Any] = doctor.examine()
    assert "can't be made" in found["cache"]["error"]
    assert "a cache folder" in found["tiers"]["nano"]["lacks"]
