"""Cleaning of untrusted text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.registry.text import find_refused_character


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Forecast for a city", "Forecast for a city"),
        ("  two\n lines\t here ", "two lines here"),
        ("a < b and b > c", "a < b and b > c"),
        ("if a<b", "if a"),  # not distinguishable from a tag
        ("<b>Bold</b> move", "Bold move"),
        ("<script>alert(1)</script>", "alert(1)"),
        ("<img src=x onerror=alert(1)", ""),
        ("<<b>script>alert(1)<</b>/script>", "alert(1)"),
        ("&lt;script&gt;x&amp;lt;/script&amp;gt;", "x"),
        ("<!-- hidden --> shown", "shown"),
        ("<?php x ?> y", "y"),
        ("[click](javascript:alert(1))", "click"),
        ("[click](&#106;avascript:alert`1`)", "click"),
        ("[docs](https://api.example.com/docs)", "docs (https://api.example.com/docs)"),
        ("![pixel](http://tracker.example/p.png)", "pixel (http://tracker.example/p.png)"),
        ("[a](/relative) [b](mailto:x@example.com)", "a b"),
        ("javascript:alert(1)", "alert(1)"),
        ("JaVaScRiPt : alert(1)", "alert(1)"),
        ("javajavascript:script:alert(1)", "alert(1)"),
        ("[a](b[c](d)e) [f](g((h)))", "a [f] (g((h)))"),
        ("java\u200bscript:alert(1)", "alert(1)"),
        ("data:text/html,x", "text/html,x"),
        ("Metadata: all of it", "Metadata: all of it"),
        ("data: see below", "data: see below"),
        ("safe\u202egnp.exe", "safegnp.exe"),
        ("a\u2066b\u2069c\ufeff\u00ad", "abc"),
        ("tag \U000e0041\U000e0042", "tag"),
        ("nul \x00 bell \x07", "nul bell"),
        ("half \ud800 pair", "half pair"),
        ("日本語 é 🙂", "日本語 é 🙂"),
        (7, ""),
        (None, ""),
        (["x"], ""),
    ],
)
def test_one_line(text: object, left: str) -> None:
    assert clean_line(text, 200) == left


def test_prose_keeps_its_lines() -> None:
    assert clean_prose("# Title\r\n\r\n\r\n\r\ntext  \n- a\n- b\n", 200) == "# Title\n\ntext\n- a\n- b"


def test_a_carriage_return_ends_a_line_before_anything_is_judged() -> None:
    assert clean_prose("one\rtwo\r\nthree", 200) == "one\ntwo\nthree"
    assert clean_prose("javasc\rript:alert(1)", 200) == "javasc\nript:alert(1)", "no scheme is put together"


def test_a_definition_of_a_link_is_left_out() -> None:
    assert clean_prose("see [docs]\n\n[docs]: javascript:alert(1)\nend", 200) == "see [docs]\n\nend"


def test_tags_are_words_too() -> None:
    assert clean_tags(["weather", "C#", "<script>x</script>", "<b>", "a\u202eb"]) == [
        "weather",
        "C#",
        "x",
        "ab",
    ]


def test_it_is_cut() -> None:
    assert clean_line("word " * 100, 12) == "word word w…"
    assert len(clean_prose("x" * 10_000, 1_000)) == 1_000
    assert clean_line("exactly ten", 11) == "exactly ten"


def test_no_text_takes_long() -> None:
    for text in ("[" * 500_000, "<" * 500_000, "](" * 300_000, "&amp;" * 200_000, "<a " * 200_000):
        assert len(clean_prose(text, 4_000)) <= 4_000


hostile = st.text(alphabet=st.sampled_from(list("<>&;#![]()/:ab javscriptd\u202e\u200b\n")), max_size=60)


@given(hostile)
def test_nothing_that_hides_or_runs_comes_through(text: str) -> None:
    for left in (clean_line(text, 100), clean_prose(text, 100)):
        assert find_refused_character(left, is_multiline=True) is None
        assert "javascript:" not in left
        assert not any(left[at + 1 : at + 2].isalpha() for at, char in enumerate(left) if char == "<")
