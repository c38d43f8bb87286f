"""The reward curve, as text and as a picture."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.measure import estimate
from trainwright.report.curve import HEIGHT, text_curve, write_png


def heights(lines: list[str], count: int) -> list[int]:
    """Return the height of each column in eighths of a row."""
    cells = [line.partition("│")[2] for line in lines[1:-1]]
    return [sum(" ▁▂▃▄▅▆▇█".index(row[2 * column]) for row in cells) for column in range(count)]


def test_the_curve_has_a_title_a_range_and_a_column_a_step() -> None:
    lines = text_curve([-0.5, 0.0, 0.25, 1.0], "mean reward a step")
    assert lines[0] == "mean reward a step"
    assert len(lines) == HEIGHT + 2
    assert lines[1].startswith(" +1.00 │")
    assert lines[-2].startswith(" -0.50 │")
    assert lines[-1].endswith("step 4")
    assert heights(lines, 4) == [0, 27, 40, 80]


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=60))
def test_columns_are_ordered_like_values(values: list[float]) -> None:
    columns = heights(text_curve(values, "title"), len(values))
    assert all(0 <= height <= HEIGHT * 8 for height in columns)
    for (a, one), (b, other) in zip(
        zip(values, columns, strict=True), list(zip(values, columns, strict=True))[1:], strict=False
    ):
        assert (a <= b) <= (one <= other)


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [0.3], [-0.3]])
def test_flat_curves_do_not_divide_by_zero(values: list[float]) -> None:
    assert len(text_curve(values, "title")) == HEIGHT + 2


@pytest.mark.parametrize("held_out", [[], [(0, estimate([0.1, 0.2])), (2, estimate([0.4, 0.6]))]])
def test_the_picture_is_a_png_of_a_readable_size(tmp_path: Path, held_out: list[tuple[int, object]]) -> None:
    write_png(tmp_path / "curve.png", [0.1, 0.5], [0.0, 0.4], held_out, "shift")  # type: ignore[arg-type]
    data = (tmp_path / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 600
    assert height > 300
