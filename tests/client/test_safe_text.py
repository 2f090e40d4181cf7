"""Removal of hidden and control characters from untrusted text."""

import json

import pytest

from tollway.client.safe_text import (
    NESTING_MAX,
    bound_document,
    format_json,
    format_value,
    plain,
    plain_document,
    plain_line,
)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("plain text, ä, 東京, 🙂", "plain text, ä, 東京, 🙂"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("a\x1b[2Jb\u202ec\n", "a\ufffd[2Jb\ufffdc\n"),
        ("title\x1b]0;pwned\x07", "title\ufffd]0;pwned\ufffd"),
        ("over\rwritten", "over written"),
        ("csi \x9b31m", "csi \ufffd31m"),
        ("line\u2028paragraph\u2029next\x85line", "line paragraph next line"),
        ("zero\u200bwidth\ufeffjoin\u00adhyphen", "zero\ufffdwidth\ufffdjoin\ufffdhyphen"),
        ("tags\U000e0041\U000e0042", "tags\ufffd\ufffd"),
        ("selectors\ufe01\U000e0101", "selectors"),
        ("fillers\u3164\u115f\u2800\u034f", "fillers\ufffd\ufffd\ufffd\ufffd"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("[red]markup[/red]", "[red]markup[/red]"),
        ("", ""),
    ],
)
def test_hiding_and_rewriting_characters_are_marked(told: str, shown: str) -> None:
    assert plain(told) == shown


def test_a_line_is_one_line() -> None:
    assert plain_line(" a\n\n b\tc\u2028d \x1b") == "a b c d \ufffd"


def test_every_text_of_a_document_is_plain_and_the_rest_as_it_was() -> None:
    told = {
        "na\x1bme": ["\u202ex", {"deep": "\x07"}],
        "price": "0.01",
        "n": 3,
        "f": 0.5,
        "no": None,
        "yes": True,
    }
    assert plain_document(told) == {
        "na\ufffdme": ["\ufffdx", {"deep": "\ufffd"}],
        "price": "0.01",
        "n": 3,
        "f": 0.5,
        "no": None,
        "yes": True,
    }


def test_values_below_the_maximum_depth_are_left_out() -> None:
    bomb: object = "x"
    for _ in range(10_000):
        bomb = [bomb]
    depth, shown = 0, plain_document(bomb)
    while isinstance(shown, list):
        depth, shown = depth + 1, shown[0]
    assert (depth, shown) == (NESTING_MAX, None)


TRICKS = "a\x1b[2J\u202eb\x07\x7f\x9b\u2066\U000e0041\ufe0f\u2028\u00a0\ud800"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_the_same_value_and_harmless_on_a_terminal(indent: int | None) -> None:
    document = {TRICKS: [TRICKS, 1, 0.5, None, True, {"n": "ä 東京"}], "plain": "x\ny\t"}
    text = format_json(document, indent=indent)
    assert json.loads(text) == document
    assert "ä 東京" in text
    assert all(character.isprintable() or character == "\n" for character in text)
    assert plain(text) == text


def test_a_value_without_a_json_form_is_null() -> None:
    odd = {"a": float("nan"), "b": [float("inf"), -float("inf"), 10**5_000], "c": 7}
    assert json.loads(format_json(odd)) == {"a": None, "b": [None, None, None], "c": 7}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (7, "7"),
        (0.5, "0.5"),
        (True, "true"),
        ("a\x1bb", "a\ufffdb"),
        ({"a": ["\x1b"]}, '{"a":["\\u001b"]}'),
        (float("nan"), "null"),
        ([10**5_000], "[null]"),
        ("x" * 5_000, "x" * 3_999 + "…"),
    ],
)
def test_a_value_is_shown_whatever_its_type(value: object, shown: str) -> None:
    assert format_value(value) == shown


def test_a_document_is_bounded_and_marked() -> None:
    assert bound_document({"a": ["x", 1, None], "n": float("nan")}, characters_max=1_000) == (
        {"a": ["x", 1, None], "n": None},
        False,
    )
    bomb: object = "x"
    for _ in range(10_000):
        bomb = [bomb]
    for value in (bomb, ["x"] * 5_000, {str(number): number for number in range(5_000)}, "\x1b" * 5_000):
        kept, is_cut = bound_document(value, characters_max=1_000)
        assert is_cut
        assert len(json.dumps(kept, ensure_ascii=False)) < 2_000
