from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright.environment import landlock, sandbox, seccomp
from trainwright.environment.sandbox import LEVEL_VARIABLE, Sandbox, detect
from trainwright.errors import SandboxError


@pytest.fixture(autouse=True)
def nothing_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)


@pytest.fixture
def fake_probe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes the levels of the given reasons fail; the others work."""

    def fake(**reasons: str) -> None:
        monkeypatch.setattr(sandbox, "_probe", lambda level: reasons.get(level, ""))

    return fake


def test_the_best_level_comes_first(fake_probe: Callable[..., None]) -> None:
    fake_probe()
    assert detect() == detect(unsafe_no_sandbox=True) == Sandbox("full")


def test_the_reduced_level_says_how_to_get_the_full_one(fake_probe: Callable[..., None]) -> None:
    fake_probe(full="bwrap: No permissions")
    found = detect()
    assert found.level == "reduced"
    assert "install bubblewrap" in found.advice
    assert "\n" not in found.advice


def test_no_level_is_an_error_that_says_why_and_what_to_do(fake_probe: Callable[..., None]) -> None:
    fake_probe(full="bwrap is not installed", reduced="this kernel has no Landlock")
    with pytest.raises(SandboxError) as caught:
        detect()
    for words in ("bwrap is not installed", "no Landlock", "install bubblewrap", "--unsafe-no-sandbox"):
        assert words in str(caught.value)
    assert detect(unsafe_no_sandbox=True).level == "none"


def test_a_demanded_level_is_the_only_one_tried(
    fake_probe: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_probe(full="broken")
    monkeypatch.setenv(LEVEL_VARIABLE, "full")
    with pytest.raises(SandboxError, match="full: broken"):
        detect(unsafe_no_sandbox=True)
    monkeypatch.setenv(LEVEL_VARIABLE, "none")
    with pytest.raises(SandboxError, match="--unsafe-no-sandbox"):
        detect()
    monkeypatch.setenv(LEVEL_VARIABLE, "some")
    with pytest.raises(SandboxError, match="full, reduced, none"):
        detect()


def test_without_bubblewrap_the_level_is_really_reduced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect().level == "reduced"


def test_a_bubblewrap_that_fails_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv(LEVEL_VARIABLE, "full")
    with pytest.raises(SandboxError, match="Creating new namespace failed"):
        detect()


def test_a_machine_without_landlock_or_filter_has_no_reduced_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "reduced")
    with monkeypatch.context() as patch:
        patch.setattr(landlock, "abi", lambda: 0)
        with pytest.raises(SandboxError, match="Landlock"):
            detect()
    with monkeypatch.context() as patch:
        patch.setattr(seccomp, "supported", lambda: False)
        with pytest.raises(SandboxError, match="system call"):
            detect()


def test_the_server_inherits_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    environment = Sandbox("full").environment("/tmp")
    assert "API_KEY" not in environment
    assert environment["PYTHONHASHSEED"] == "0"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Make a virtual environment with two withheld packages and a module, and a link that leads to it; return them."""
    site = tmp_path / "real" / "lib" / "python3" / "site-packages"
    for name in ("package", "package_hidden", "other"):
        (site / name / "inner").mkdir(parents=True)
        (site / name / "module.py").touch()
    (tmp_path / "real" / "bin").mkdir()
    (tmp_path / "real" / "lib64").symlink_to("lib")
    (tmp_path / "link").symlink_to("real")
    (site / "single.py").touch()
    (site / "other.py").touch()
    found = [site / "package", site / "package_hidden", site / "single.py"]
    monkeypatch.setattr(sandbox, "withheld", lambda: tuple(found))
    monkeypatch.setattr(sandbox, "_prefixes", lambda: [str(tmp_path / "link"), str(tmp_path / "real")])
    return found


def test_landlock_rules_leave_the_packages_out_even_behind_links(packages: list[Path], tmp_path: Path) -> None:
    readable = [Path(path).resolve() for path, rights in sandbox._readable() if rights & landlock.READ_FILE]
    site = packages[0].parent
    assert {site / "other", site / "other.py", tmp_path / "real" / "bin"} <= set(readable)
    for package in packages:
        assert not any(package.is_relative_to(path) or path.is_relative_to(package) for path in readable)


def test_bubblewrap_covers_the_packages_under_every_name(packages: list[Path], tmp_path: Path) -> None:
    command = sandbox._bubblewrap()
    for prefix in (tmp_path / "link", tmp_path / "real"):
        bound = max(n for n, word in enumerate(command) if word == str(prefix))
        for package in packages:
            path = str(prefix / package.relative_to(tmp_path / "real"))
            covers = ["--ro-bind", "/dev/null", path] if package.is_file() else ["--tmpfs", path]
            assert command[command.index(path) - len(covers) + 1 :][: len(covers)] == covers
            assert bound < command.index(path)


def test_what_is_bound_is_the_interpreter_and_not_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = [Path(prefix) for prefix in ("/usr", *sandbox._prefixes())]
    assert any(Path(sys.prefix).is_relative_to(prefix) for prefix in prefixes)
    assert any(Path(sys.base_prefix).resolve().is_relative_to(prefix) for prefix in prefixes)
    assert not any(Path.home().is_relative_to(prefix) for prefix in prefixes)
    assert not any(one != two and one.is_relative_to(two) for one in prefixes for two in prefixes)
