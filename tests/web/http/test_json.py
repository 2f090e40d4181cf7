"""Bodies with one meaning are parsed, all others refused; limits protect the parser."""

import json

import pytest

from tollway.errors import Code, Refusal
from tollway.web.http.json import (
    PIECE_BYTES,
    UNKNOWN_NAMED_MAX,
    VALUES_MAX,
    find_unknown_members,
    parse_json_object,
)

UNPARSABLE = {
    "empty": b"",
    "blank": b"  \n",
    "cut short": b'{"a": ',
    "two values": b"{} {}",
    "trailing comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "comment": b'{"a": 1} // x',
    "byte-order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "overlong UTF-8": b'{"a": "\xc0\xaf"}',
    "lone surrogate": rb'{"a": "\ud800"}',
    "lone surrogate as a name": rb'{"\uDFFF": 1}',
    "lone surrogate deep inside": rb'{"a": {"b": {"c": [{"d": "\ud800"}]}}}',
    "lone surrogate as a name inside": rb'{"a": {"\uDFFF": 1}}',
    "duplicate member": b'{"a": 1, "a": 2}',
    "duplicate member by escape": rb'{"a": 1, "\u0061": 2}',
    "duplicate member deep inside": b'{"a": [{"b": 1, "b": 1}]}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "-Infinity": b'{"a": -Infinity}',
    "overflowing float": b'{"a": 1e999}',
    "huge integer": b'{"a": ' + b"9" * 129 + b"}",
    "integer beyond Python's own limit": b'{"a": ' + b"9" * 5_000 + b"}",
    "huge fraction": b'{"a": 0.' + b"1" * 200_000 + b"}",
    "leading zero": b'{"a": 01}',
    "raw control character": b'{"a": "\x01"}',
    "objects 65 deep": b'{"a":' * 65 + b"1" + b"}" * 65,
    "depth bomb of arrays": b'{"a":' + b"[" * 1_000_000,
    "depth bomb of objects": b'{"a":' * 200_000,
    "depth bomb behind strings full of brackets": b'{"x": "]]]]]]]]]]", "a":' + b"[" * 100_000,
    "unterminated string of escaped quotes": b'{"a": "' + rb"\"" * 500_000,
    "unterminated string that ends in a backslash": b'{"a": "\\',
}


@pytest.mark.parametrize("raw", UNPARSABLE.values(), ids=UNPARSABLE.keys())
def test_refuses_json_beyond_the_limits(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse_json_object(raw)
    assert refused.value.problem.code is Code.INVALID_REQUEST


@pytest.mark.parametrize("raw", [b"[]", b"null", b"1", b'"text"', b"true", b"[{}]"])
def test_refuses_json_that_is_not_an_object(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse_json_object(raw)
    assert refused.value.problem.code is Code.VALIDATION_FAILED
    assert refused.value.problem.errors[0].pointer == ""


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"{}", {}),
        (b' {"a": [1, 2.5, null, true, "\xc3\xa9"]} ', {"a": [1, 2.5, None, True, "é"]}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": "' + b"[{" * 1_000 + b'"}', {"a": "[{" * 1_000}),
        (rb'{"a": "\"[\\"}', {"a": '"[\\'}),
        (b'{"a": ' + b"9" * 128 + b"}", {"a": int("9" * 128)}),
        (b'{"a": 1, "b": {"a": 1}}', {"a": 1, "b": {"a": 1}}),
    ],
)
def test_parses_clean_json(raw: bytes, parsed: object) -> None:
    assert parse_json_object(raw) == parsed


@pytest.mark.parametrize(
    "text", [b'"]]]]", ' * 140_000, b'"' + b"]" * 1_100_000 + b'", ', rb'"\\\"[", ' * 140_000]
)
def test_a_long_text_is_searched_for_nesting_in_pieces(text: bytes) -> None:
    """Brackets in strings do not count, wherever a piece ends."""
    for depth, is_refused in ((63, False), (64, True)):
        raw = b'{"a": [' + text + b"1, " + b"[" * (depth - 1) + b"]" * (depth - 1) + b"]}"
        assert len(raw) > PIECE_BYTES
        if is_refused:
            with pytest.raises(Refusal, match="deeper than 64 levels"):
                parse_json_object(raw, values_max=10**9)
        else:
            assert parse_json_object(raw, values_max=10**9)


def test_accepts_the_deepest_allowed_nesting_and_no_deeper() -> None:
    assert parse_json_object(b'{"a":' * 64 + b"1" + b"}" * 64)
    with pytest.raises(Refusal):
        parse_json_object(b'{"a":{"b":1}}', depth_max=1)


def test_accepts_as_many_values_as_a_large_document_has_and_no_more() -> None:
    most = {"a": [0] * (VALUES_MAX - 1)}  # the two brackets count, and a comma less than there are values
    assert parse_json_object(json.dumps(most).encode()) == most
    for one_more in ({"a": [0] * VALUES_MAX}, {"a": [[]] * (VALUES_MAX // 2)}):
        with pytest.raises(Refusal) as refused:
            parse_json_object(json.dumps(one_more).encode())
        assert refused.value.problem.code is Code.INVALID_REQUEST


@pytest.mark.parametrize("value", [b"[]", b"{}", b"0", b"null", b'""'])
def test_a_flood_of_small_values_reaches_no_parser(value: bytes) -> None:
    with pytest.raises(Refusal, match="values"):
        parse_json_object(b'{"a":[' + (value + b",") * (VALUES_MAX * 2))


def test_unknown_members_are_reported_up_to_a_limit() -> None:
    many = {"known": 1, **{f"a/{number}~" + "x" * 100: 0 for number in range(10_000)}}
    errors = find_unknown_members(many, ("known",))
    assert len(errors) == UNKNOWN_NAMED_MAX
    assert errors[0].code == "unknown"
    assert errors[0].pointer == "/a~10~0" + "x" * 60
    assert find_unknown_members({"known": 1}, ("known",)) == ()
