"""Stub of `env-server`: finds the job's package and its rows, and stays (prime_rl/entrypoints/env_server.py)."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

from common import BIN, configuration, misbehaviour, say


def main() -> None:
    config = configuration()["env"]
    module = config["taskset"]["id"].replace("-", "_")
    if misbehaviour() == "misses the package" or importlib.util.find_spec(module) is None:
        sys.exit(f"ModuleNotFoundError: taskset 'trainwright-job' not found (tried to import {module!r}).")
    rows = [json.loads(line) for line in Path(config["taskset"]["rows"]).read_text().splitlines()]
    say(f"serving {len(rows)} rows with {config['agent']['harness']['id']}")
    (BIN / "env-server.ready").touch()  # upstream answers a health check
    time.sleep(600)


main()
