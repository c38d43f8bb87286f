"""The check of trained weights that come from a pod, and the files in which an evaluation pod gets them."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.students.adapter import adapter_of_bytes
from trainwright.students.architecture import QWEN3

WEIGHTS_FILE = "weights.safetensors"


def checked_files(student: str, weights: bytes) -> Mapping[str, bytes]:
    """Return the files that an inference server loads, by name; raise `ValueError` for weights that must not be loaded.

    An adapter of a Qwen3 student comes out in PEFT's layout, as vLLM reads it. Weights of another student are loaded
    into a copy of it, which checks names, shapes and values, and go out as they came.
    """
    if student in QWEN3:
        return adapter_of_bytes(weights, QWEN3[student], student).files(QWEN3[student], student)
    from trainwright.students.registry import base_student

    base_student(student).fresh().load(weights)
    return {WEIGHTS_FILE: weights}
