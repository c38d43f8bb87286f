"""Stub of `nvidia-smi`: one card, whose memory is in use while a process that holds it runs."""

from __future__ import annotations

import sys
from pathlib import Path

from common import BIN, misbehaviour


def main() -> None:
    wrong = misbehaviour()
    if wrong == "finds no card":
        print("No devices were found")
        sys.exit(6)
    alive = [path for path in BIN.glob("*.pid") if Path("/proc", path.read_text() or "none").exists()]
    used = 30_000 if alive or wrong == "finds the card in use" else 4
    capability = wrong.removeprefix("has capability ") if wrong.startswith("has capability") else "8.9"
    print(f"0, NVIDIA Stub, {capability}, 49140, {used}")


main()
