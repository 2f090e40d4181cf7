"""The characters of a provider's text: those that hide or reorder text are refused, those that scripts and emoji need are accepted."""

import pytest

from tollway.registry.text import drop_refused_characters, find_refused_character

CLEAN = (
    "plain words",
    "Größe, 価格, سعر, मूल्य",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # a word of Persian, which needs its joiner
    "\u0915\u094d\u200d\u0937",
    "\u2764\ufe0f\u200d\U0001f525",  # one emoji of four characters
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "<b>it is not for this rule</b>",
)
UNCLEAN = {
    "terminal escape": ("a\x1b[2Jb", "U+001B", "a[2Jb"),
    "NUL": ("a\x00b", "U+0000", "ab"),
    "bidi override": ("a\u202eb", "U+202E", "ab"),
    "bidi isolate": ("a\u2066b", "U+2066", "ab"),
    "zero width": ("a\u200bb", "U+200B", "ab"),
    "line separator": ("a\u2028b", "U+2028", "ab"),
    "half a pair": ("a\ud800b", "U+D800", "ab"),
    "tag": ("a\U000e0041b", "U+E0041", "ab"),
    "selector that spells a byte": ("a\U000e0152b", "U+E0152", "ab"),
    "unassigned and ignored": ("a\U000e0fffb", "U+E0FFF", "ab"),
    "musical control": ("a\U0001d173b", "U+1D173", "ab"),
    "row of selectors": ("a\ufe00\ufe01\ufe0fb", "U+FE01", "a\ufe00b"),
    "row of joiners": ("a\u200c\u200d\u200cb", "U+200D", "a\u200cb"),
    "selectors and joiners in turn": ("a\ufe0f\u200d\ufe0f\u200db", "U+FE0F", "a\ufe0f\u200db"),
    "row that closes when others go": ("a\ufe00\u200b\ufe01b", "U+200B", "a\ufe00b"),
}


@pytest.mark.parametrize("text", CLEAN)
def test_scripts_and_emoji_keep_what_they_need(text: str) -> None:
    assert find_refused_character(text, is_multiline=False) is None
    assert drop_refused_characters(text) == text


@pytest.mark.parametrize(("text", "named", "left"), UNCLEAN.values(), ids=UNCLEAN)
def test_characters_that_hide_or_reorder_are_named_and_dropped(text: str, named: str, left: str) -> None:
    assert find_refused_character(text, is_multiline=True) == named
    assert drop_refused_characters(text) == left
    assert find_refused_character(left, is_multiline=True) is None


def test_line_breaks_are_allowed_in_multiline_texts_only() -> None:
    assert find_refused_character("a\r\n\tb", is_multiline=True) is None
    assert find_refused_character("a\nb", is_multiline=False) == "U+000A"
    assert drop_refused_characters("a\r\n\tb") == "a\r\n\tb"
