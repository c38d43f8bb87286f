#!/usr/bin/env python3
"""Check configurations of random jobs with prime-rl's own code, in an interpreter that has it.

The schema test in tests/engines can't see what upstream's validators do. This can, and needs Python 3.12, no GPU:

    python3.12 -m venv checker
    checker/bin/pip install "git+https://github.com/PrimeIntellect-ai/prime-rl.git@559b447#subdirectory=packages/prime-rl-configs"
    .venv/bin/python scripts/check_prime_rl_config.py checker/bin/python

Prints how many were accepted; exits 1 when one wasn't.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trainwright.engines import job_package
from trainwright.engines.prime_rl_config import rl_config, sequence_length, server_config, toml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "engines"))
from test_prime_rl_config import place, random_job  # noqa: E402

CHECK = """
import sys
from pydantic_config import cli
from prime_rl.configs.inference import InferenceConfig
from prime_rl.configs.rl import RLConfig
failed = 0
for path in sys.argv[1:]:
    try:
        config = cli(RLConfig if path.endswith("rl.toml") else InferenceConfig, args=["@", path])
        vllm = (config.inference.vllm if config.inference else None) if path.endswith("rl.toml") else config.vllm
        assert vllm is None or vllm.enable_lora
    except BaseException as error:
        failed += 1
        print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
print(f"{len(sys.argv) - 1 - failed} of {len(sys.argv) - 1} accepted")
sys.exit(failed > 0)
"""


def main() -> None:
    """Write the configurations into a scratch folder and have them read there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="an interpreter with prime-rl-configs of commit 559b447 and verifiers")
    parser.add_argument("--jobs", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(job_package.__path__[0])
        shutil.copytree(source, Path(scratch, "trainwright_job"), ignore=shutil.ignore_patterns("__pycache__"))
        paths = []
        for seed in range(options.jobs):
            rng = random.Random(seed)
            job, own_server = random_job(rng), bool(seed % 2)
            where = place(own_server=own_server, attention=f"flash_attention_{rng.randint(2, 4)}")
            length = sequence_length(rng.randint(0, 20_000), job.max_completion_tokens)
            texts = {"rl": toml(rl_config(job, where, length, seed))}
            if own_server:
                texts["inference"] = toml(server_config(job, where, length, seed))
            for name, text in texts.items():
                paths.append(Path(scratch, f"{seed}-{name}.toml"))
                paths[-1].write_text(text)
        path = os.pathsep.join(filter(None, [scratch, os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run([options.python, "-c", CHECK, *paths], env=os.environ | {"PYTHONPATH": path}, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
