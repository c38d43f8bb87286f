"""Folders that are removed after use, also after the use of a process that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.engines.scratch import scratch

HOLD = "import sys; from pathlib import Path; from trainwright.engines.scratch import scratch\n"
HOLD += "with scratch(Path(sys.argv[1]), 'run') as folder: print(folder, flush=True); sys.stdin.read()"


def test_a_folder_is_gone_after_its_use_unless_it_is_kept(tmp_path: Path) -> None:
    with scratch(tmp_path / "work", "run") as folder:
        (folder / "file").write_text("")
        assert folder.parent == tmp_path / "work"
    with scratch(tmp_path / "work", "run", keep=True) as kept:
        (kept / "file").write_text("")
    (found,) = (tmp_path / "work").iterdir()
    assert found.name == kept.name.replace("run-", "kept-")
    assert (found / "file").exists()
    with scratch(tmp_path / "work", "run"):
        assert found.exists()


def test_the_next_one_removes_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "run-of-nobody").mkdir()
    (tmp_path / "other-thing").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with scratch(tmp_path, "run") as ours:
            assert theirs.exists()
            with scratch(tmp_path, "run"):
                assert ours.exists()
        assert not (tmp_path / "run-of-nobody").exists()
        process.kill()
    assert theirs.exists()
    with scratch(tmp_path, "run"):
        assert not theirs.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["other-thing"]


def test_a_parent_that_can_not_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), scratch(tmp_path / "file" / "work", "run"):
        pass
