"""Characters that hide or reorder text are escaped, and the value of the JSON stays."""

import json

import pytest

from tollway.web.http.json import encode_visible_json


@pytest.mark.parametrize(
    "text",
    ["a\x1b[2J", "a\x9b2J", "a\u202eb\u2066", "a\u200b\ufeff", "a\U000e0041", "a\x7f", "a\u2028"],
)
def test_invisible_characters_are_escaped_and_the_value_stays(text: str) -> None:
    content = {text: [text, {"more": text}]}
    written = encode_visible_json(content)
    assert written.isprintable()
    assert json.loads(written) == content


def test_visible_text_is_not_escaped() -> None:
    assert encode_visible_json({"name": "Größe 価格 \U0001f525"}) == '{"name":"Größe 価格 \U0001f525"}'
