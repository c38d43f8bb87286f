"""Seeds: one function, the same everywhere, different for every purpose."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from trainwright.seeds import derive_seed

PARTS = st.lists(st.integers() | st.text(st.characters(exclude_characters="\x1f", codec="utf-8")), min_size=1)


@given(PARTS)
def test_a_seed_fits_torch_and_sqlite(parts: list[int | str]) -> None:
    assert 0 <= derive_seed(*parts) < 2**63


@given(PARTS, PARTS)
def test_other_parts_give_another_seed(one: list[int | str], other: list[int | str]) -> None:
    same = [str(part) for part in one] == [str(part) for part in other]
    assert (derive_seed(*one) == derive_seed(*other)) == same


def test_neither_order_nor_grouping_is_lost() -> None:
    assert len({derive_seed(1, 23), derive_seed(12, 3), derive_seed(123), derive_seed(23, 1)}) == 4


def test_another_process_derives_the_same_seed() -> None:
    code = "from trainwright.seeds import derive_seed; print(derive_seed(0, 'task', 3))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert int(printed) == derive_seed(0, "task", 3)
