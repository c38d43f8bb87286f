"""The tests notice deliberate defects. See `mutations.py`."""

from __future__ import annotations

import pytest
from mutations import MUTATIONS, SOURCE, Mutation, noticed


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_of_a_defect_is_in_the_source_once(mutation: Mutation) -> None:
    text = (SOURCE / "pools" / "runpod" / mutation.file).read_text()
    assert text.count(mutation.good) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_defect_is_noticed(mutation: Mutation) -> None:
    assert noticed(mutation)
