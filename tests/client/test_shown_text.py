"""Text of strangers without its tricks."""

import pytest

from tollway.client.shown_text import NESTING_MAX, plain, plain_document, plain_line


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
def test_what_hides_or_rewrites_is_marked(told: str, shown: str) -> None:
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


def test_what_is_nested_too_deep_is_left_out() -> None:
    bomb: object = "x"
    for _ in range(10_000):
        bomb = [bomb]
    depth, shown = 0, plain_document(bomb)
    while isinstance(shown, list):
        depth, shown = depth + 1, shown[0]
    assert (depth, shown) == (NESTING_MAX, None)
