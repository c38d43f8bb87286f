from __future__ import annotations

from trainwright.environment.environment import Row
from trainwright.job.probes import FIELD_CHARACTERS, FIELDS_TRIED, plain_replies, wrapped_replies

ROW = Row(0, ({"role": "system", "content": "s"}, {"role": "user", "content": "p q"}), {"answer": "42", "unit": "m"})
OTHER = Row(1, ({"role": "user", "content": "r"},), {"answer": "7", "unit": "m"})


def test_plain_replies_are_varied_and_hold_right_and_wrong_answers() -> None:
    replies = plain_replies(ROW, OTHER)
    assert {"", "p q", "42", "m", "7"} <= set(replies)
    assert len(set(replies)) == len(replies)
    assert max(map(len, replies)) >= 100


def test_wrapped_replies_use_the_tags_of_the_source() -> None:
    replies = wrapped_replies(ROW, 'ANSWER = re.compile(r"<result>(.*?)</result>")')
    assert {"", "<result>42</result>", "<answer>42</answer>", "\\boxed{42}", "Answer: 42"} <= set(replies)
    assert len(set(replies)) == len(replies)


def test_huge_rows_give_few_replies() -> None:
    fields = {f"field{i}": str(i) for i in range(100)} | {"long": "x" * (FIELD_CHARACTERS + 1)}
    row = Row(0, ROW.messages, fields)
    assert len(plain_replies(row, row)) < 10 + 2 * FIELDS_TRIED
    assert len(wrapped_replies(row, "".join(f"<t{i}>" for i in range(1000)))) < 20 * FIELDS_TRIED
    assert not any(
        "x" * FIELD_CHARACTERS in reply for reply in plain_replies(Row(0, ROW.messages, {"f": fields["long"]}), row)
    )
