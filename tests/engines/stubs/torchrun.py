"""Stub of `torchrun` with the trainer: metrics and adapters (prime_rl/trainer/rl/train.py, trainer/lora.py)."""

from __future__ import annotations

import array
import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from common import append, configuration, hang, misbehaviour, say, wait_for

SIZES = {"Qwen/Qwen3-0.6B": (1024, 3072), "Qwen/Qwen3-1.7B": (2048, 6144)}
OUTPUT = {
    "lacks its attention": "ValueError: Flash attention 3 is only supported if the flash_attn_3 package is installed.",
    "does not fit": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.00 GiB.",
    "finds the disk full": "OSError: [Errno 28] No space left on device",
    "crashes": "AssertionError: offsets do not add up",
}


def shapes(model: str, target_modules: list[str], rank: int) -> dict[str, tuple[int, int]]:
    """Return the tensors of an adapter under prime-rl's names, which lack PEFT's prefix."""
    hidden, intermediate = SIZES[model]
    sizes = {"q_proj": (2048, hidden), "k_proj": (1024, hidden), "v_proj": (1024, hidden), "o_proj": (hidden, 2048)}
    sizes |= dict.fromkeys(("gate_proj", "up_proj"), (intermediate, hidden)) | {"down_proj": (hidden, intermediate)}
    found = {}
    for layer in range(28):
        for name in target_modules:
            block = "self_attn" if name[0] in "qkvo" else "mlp"
            outputs, inputs = sizes[name]
            path = f"model.layers.{layer}.{block}.{name}"
            found[f"{path}.lora_A.weight"] = (rank, inputs)
            found[f"{path}.lora_B.weight"] = (outputs, rank)
    return found


def broadcast(config: dict[str, Any], step: int, wrong: str) -> None:
    """Write the adapter of a step, STABLE last, and remove the one before the last."""
    lora, model = config["model"]["lora"], config["model"]["name"]
    rank = lora["rank"] + (wrong == "writes another rank")
    folder = Path(config["output_dir"], "broadcasts", f"step_{step}")
    folder.mkdir(parents=True)
    header, body, position = {"__metadata__": {"format": "pt"}}, [], 0
    for name, shape in shapes(model, lora["target_modules"], rank).items():
        value = 0.0 if "lora_B" in name and (step == 0 or wrong == "writes zeros") else 0.01
        value = math.nan if wrong == "writes NaN" else value
        data = array.array("f", [value]) * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, position + 4 * len(data)]}
        position += 4 * len(data)
        body.append(data.tobytes())
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(body))
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": rank,
        "lora_alpha": lora["alpha"],
        "lora_dropout": lora["dropout"],
        "bias": "none",
        "target_modules": sorted(lora["target_modules"]),
        "modules_to_save": None,
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter, indent=2))
    if wrong != "never finishes the last adapter" or step < config["max_steps"]:
        (folder / "STABLE").touch()
    if step >= 2:
        shutil.rmtree(folder.parent / f"step_{step - 2}")


def main() -> None:
    wrong, config = misbehaviour(), configuration()
    run, last = Path(config["output_dir"]), config["max_steps"]
    say(f"Starting RL trainer on {os.environ['CUDA_VISIBLE_DEVICES']}")
    if wrong in OUTPUT:
        sys.exit(OUTPUT[wrong])
    say(f"Starting training loop (max_steps={last})")
    broadcast(config, 0, wrong)
    for step in range(1, last + 1):
        wait_for((run / f"stub_batch_{step}").exists)
        if wrong == "runs out of memory in step 2" and step == 2:
            sys.exit(OUTPUT["does not fit"])
        if wrong == "dies in step 2" and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        broadcast(config, step, wrong)
        bad = wrong == "loses its numbers in step 2" and step == 2
        rate, loss = config["optim"]["lr"], math.nan if bad else 0.1
        append(run / "metrics.jsonl", step=step, **{"perf/peak_memory": 17.4})
        append(run / "metrics.jsonl", step=step, **{"optim/lr": rate, "optim/grad_norm": loss})
        append(run / "metrics.jsonl", step=step, **{"loss/mean": loss, "entropy/all/mean": 0.5})
        append(run / "metrics.jsonl", step=step, **{"time/step": 0.2, "time/forward_backward": 0.1})
        say(f"Step {step} | Loss {loss:.4f}", "SUCCESS")
        if bad:
            hang()
    say("RL trainer finished!", "SUCCESS")
    if wrong == "fails at its end":
        sys.exit(1)


main()
