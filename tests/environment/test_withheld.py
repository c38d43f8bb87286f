"""An installation as a wheel makes it, where a job could find our packages among its libraries, and jobs that look."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import trainwright
import trainwright_hidden
from trainwright.environment import withheld as module
from trainwright.environment.sandbox import LEVEL_VARIABLE, detect
from trainwright.environment.withheld import FAMILY_GROUPS, withheld
from trainwright.errors import SandboxError

CANARY = "the_hidden_answer_is_42"

FAMILIES = """\
[trainwright.families]
one = foreign_suite.families:One
two = foreign_module:Two
"""

# The libraries that jobs need stay where they are: a second prefix of the interpreter, as `exec_prefix` may be.
DRIVER = """\
import json, sys
files, libraries, count = json.load(sys.stdin)
sys.exec_prefix = libraries
import trainwright
from trainwright.environment.client import EnvironmentServer
from trainwright.environment.sandbox import detect
assert trainwright.__file__.startswith(sys.prefix), trainwright.__file__
with EnvironmentServer(detect()) as server, server.open(files, seed=1) as environment:
    print(json.dumps([json.loads(row.messages[0]["content"]) for row in environment.rows(count)]))
"""

LOOK = """
import importlib, sysconfig
def attempt(name, act):
    try:
        return [name, repr(act())]
    except Exception as error:
        return [name, type(error).__name__]
def walk():
    for prefix in {prefixes!r}:
        for folder, _, names in os.walk(prefix):
            for name in names:
                try:
                    if {canary!r}.encode() in Path(folder, name).read_bytes():
                        yield name
                except OSError:
                    pass
found = [attempt(name, lambda: importlib.import_module(name)) for name in {modules!r}]
found += [attempt(path, lambda: open(path, "rb").read() or 1 / 0) for path in {paths!r}]
found.append(["walk", repr(list(walk()))])
found.append(["library", repr(importlib.import_module("verifiers.v1").__name__)])
"""


@dataclass(frozen=True)
class Installation:
    """A virtual environment that holds our packages, and another name for its folder, which the interpreter goes by."""

    real: Path
    link: Path

    @property
    def python(self) -> Path:
        return self.link / "bin" / "python"

    @property
    def site(self) -> Path:
        return next(self.real.glob("lib/*/site-packages"))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    root = tmp_path_factory.mktemp("installation")
    made = Installation(root / "real", root / "link")
    site = made.real / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    site.mkdir(parents=True)
    (made.real / "bin").mkdir()
    (made.real / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (made.real / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix, 'bin')}\n")
    (made.real / "lib64").symlink_to("lib")
    made.link.symlink_to("real")
    for package in (trainwright, trainwright_hidden):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("trainwright/suites", "trainwright_hidden", "foreign_suite", "foreign_suite_hidden"):
        (site / name).mkdir(exist_ok=True)
        (site / name / "canary.py").write_text(f"word = '{CANARY}'\n")
    (site / "foreign_suite" / "__init__.py").touch()
    (site / "foreign_module.py").write_text(f"word = '{CANARY}'\n")
    (site / "foreign-1.dist-info").mkdir()
    (site / "foreign-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1\n")
    (site / "foreign-1.dist-info" / "entry_points.txt").write_text(FAMILIES)
    compiled = "import compileall, sys; sys.exit(not compileall.compile_dir(sys.argv[1], quiet=1))"
    subprocess.run([made.python, "-c", compiled, site], check=True)
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return made


@pytest.mark.parametrize("level", ["full", "reduced"])
def test_a_job_neither_imports_nor_reads_them(
    level: str, installation: Installation, job: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, level)
    try:
        detect()
    except SandboxError as error:
        pytest.skip(str(error))
    names = ["trainwright", "trainwright_hidden", "foreign_suite", "foreign_suite_hidden"]
    modules = ["trainwright.suites.qwen.sort", "trainwright_hidden.sort", "foreign_suite.canary", "foreign_module"]
    modules += ["foreign_suite_hidden.canary", "trainwright.suites.canary", "trainwright.seeds"]
    site = installation.site
    files = [path for name in names for path in (site / name).rglob("*") if path.is_file() and path.stat().st_size]
    files += [site / "foreign_module.py", next((site / "__pycache__").glob("foreign_module.*.pyc"))]
    assert {path.suffix for path in files} >= {".py", ".pyc"}
    linked = [installation.link / path.relative_to(installation.real) for path in files]
    paths = [str(path) for path in (*files, *linked)]
    prefixes = [str(installation.real), str(installation.link)]
    look = LOOK.format(modules=modules, paths=paths, canary=CANARY, prefixes=prefixes)
    files_of_job = job(module=look, load="for entry in found: yield Problem(Data(prompt=json.dumps(entry)))")
    done = subprocess.run(
        [installation.python, "-c", DRIVER],
        input=json.dumps([files_of_job, sys.prefix, len(modules) + len(paths) + 2]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *found, walked, library = json.loads(done.stdout)
    assert library == ["library", "'verifiers.v1'"]
    assert walked == ["walk", "[]"]
    # Under bubblewrap the path is gone; a file has nothing in it, and a module made of that has no names.
    refused = {"PermissionError", "FileNotFoundError", "ModuleNotFoundError", "ImportError", "ZeroDivisionError"}
    assert len(found) == len(modules) + len(paths)
    assert {name: result for name, result in found if result not in refused} == {}


def test_the_packages_are_the_project_and_every_provider_of_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("far", "far_hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "far_link").symlink_to("far")
    (tmp_path / "near.py").touch()
    (tmp_path / "far-1.dist-info").mkdir()
    text = f"[{FAMILY_GROUPS[0]}]\na = far.inner:A\n[{FAMILY_GROUPS[1]}]\nb = near:b\nc = gone:C\n"
    (tmp_path / "far-1.dist-info" / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    module.withheld.cache_clear()
    try:
        found = withheld()
    finally:
        module.withheld.cache_clear()
    own = {Path(str(package.__file__)).resolve().parent for package in (trainwright, trainwright_hidden)}
    assert own <= set(found)
    assert {tmp_path.resolve() / name for name in ("far", "far_hidden", "near.py")} <= set(found)
    assert "near" not in sys.modules
    assert {point.name for group in FAMILY_GROUPS for point in entry_points(group=group)} >= {"a", "b", "c"}
