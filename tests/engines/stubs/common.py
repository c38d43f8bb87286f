"""What the stub programs share: their configuration, the scenario they play, and prime-rl's habits.

Each stub stands for the program of the same name at commit 559b447 and writes what that writes into a run's folder.
`scenario.json` beside the programs says which of them misbehaves, and how. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BIN = Path(os.environ["STUB_BIN"])
NAME = Path(sys.argv[0]).stem
PATIENCE = 30.0


def misbehaviour() -> str:
    """Return what this program does wrong in the scenario, '' for nothing."""
    return str(json.loads((BIN / "scenario.json").read_text()).get(NAME, ""))


def configuration() -> dict[str, Any]:
    """Return the JSON file that the command line names after `@`."""
    content: dict[str, Any] = json.loads(Path(sys.argv[sys.argv.index("@") + 1]).read_text())
    return content


def wait_for(condition: Any) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > limit:
            sys.exit(f"{NAME}: waited in vain")
        time.sleep(0.01)


def say(text: str, level: str = "INFO") -> None:
    """Print as loguru does with colours forced."""
    print(f"\x1b[32m00:00:00\x1b[0m \x1b[1m{level:>8}\x1b[0m {text}", flush=True)


def hang() -> None:
    """Do nothing for ever, SIGTERM included, as a process that waits for a dead peer."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def leave_an_orphan() -> None:
    """Start a process that leaves its parent, group and session, ignores SIGTERM, and holds the GPU."""
    program = (
        "import os, signal, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    subprocess.run([sys.executable, "-S", "-c", program, str(BIN / "orphan.pid")], check=True)
    wait_for(lambda: (BIN / "orphan.pid").exists() and (BIN / "orphan.pid").read_text())


def append(path: Path, **row: Any) -> None:
    """Append a row of metrics; as upstream, values that are not finite are left out."""
    finite = {key: value for key, value in row.items() if not isinstance(value, float) or value - value == 0}
    with path.open("a") as file:
        file.write(json.dumps({"time": time.time(), **finite}) + "\n")


def cleanup(children: list[subprocess.Popen[bytes]]) -> None:
    """End child processes as the launcher does: SIGTERM, patience, SIGKILL."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.kill()
