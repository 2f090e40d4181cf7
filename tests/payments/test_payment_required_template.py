"""A filled template equals the encoded content."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tollway.payments.payment_required import JsonTemplate, TemplateSlot
from tollway.payments.wire import encode_json

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from([TemplateSlot("a"), TemplateSlot("b")])
)
CONTENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)  # fmt: skip


def put(content: Any, values: dict[str, Any]) -> Any:
    if isinstance(content, TemplateSlot):
        return values[content]
    if isinstance(content, dict):
        return {name: put(value, values) for name, value in content.items()}
    return [put(value, values) for value in content] if isinstance(content, list) else content


@given(CONTENTS, st.text(), st.lists(st.integers()))
def test_a_filled_template_equals_the_encoded_content(content: Any, first: str, second: list[int]) -> None:
    values: dict[str, Any] = {"a": first, "b": second}
    filled = {name: encode_json(value) for name, value in values.items()}
    template = JsonTemplate(content)
    assert template.fill(filled) == encode_json(put(content, values))
    assert template.count(filled) == len(template.fill(filled))


def test_a_text_equal_to_a_slots_name_is_not_a_slot() -> None:
    template = JsonTemplate({"url": TemplateSlot("url"), "name": "url", "other": '"url"'})
    assert json.loads(template.fill({"url": b"1"})) == {"url": 1, "name": "url", "other": '"url"'}
    assert template.slots == 1


def test_a_slot_may_repeat_and_unknown_values_are_ignored() -> None:
    template = JsonTemplate([TemplateSlot("a"), {"x": TemplateSlot("a")}])
    assert template.fill({"a": b"true", "b": b"never"}) == b'[true,{"x":true}]'
