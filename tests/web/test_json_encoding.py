"""What hides or reorders words leaves as an escape, and means what it meant."""

import json

import pytest

from tollway.web.json import encode_visible_json


@pytest.mark.parametrize(
    "text",
    ["a\x1b[2J", "a\x9b2J", "a\u202eb\u2066", "a\u200b\ufeff", "a\U000e0041", "a\x7f", "a\u2028"],
)
def test_nothing_unseen_is_left_and_nothing_is_lost(text: str) -> None:
    content = {text: [text, {"more": text}]}
    written = encode_visible_json(content)
    assert written.isprintable()
    assert json.loads(written) == content


def test_words_are_left_as_they_are() -> None:
    assert encode_visible_json({"name": "Größe 価格 \U0001f525"}) == '{"name":"Größe 価格 \U0001f525"}'
