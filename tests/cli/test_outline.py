"""An untrusted document as an outline: every line begins with the name of its member."""

import pytest

from tollway.cli.outline import format_outline


def lines(document: dict[str, object]) -> list[str]:
    return [line.plain for line in format_outline(document)]


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({"name": "Rain", "no": None, "empty": [], "none": {}, "quality": {"calls30d": None}}, ["name  Rain"]),
        ({"verified": True, "rate": 0.5, "n": 3}, ["verified  yes", "rate  0.5", "n  3"]),
        ({"methods": ["GET", "PUT"], "price": {"amount": "1", "currency": "USDC"}},
         ["methods  [GET, PUT]", "price  {amount: 1, currency: USDC}"]),
        ({"trust": {"verified": False, "quality": {"calls": 3}}},
         ["trust", "  verified  no", "  quality  {calls: 3}"]),
        ({"steps": ["x" * 50, "y" * 50]}, ["steps", "  - " + "x" * 50, "  - " + "y" * 50]),
        ({"operations": [{"path": "/a", "deep": {"of": ["it"]}}]},
         ["operations", "  - path  /a", "    deep", "      of  [it]"]),
        ({"eip712": {"domain": 1}, "extra": 1, "kept": 1}, ["kept  1"]),
    ],
)  # fmt: skip
def test_members_are_lines_and_nested_values_are_indented(
    document: dict[str, object], shown: list[str]
) -> None:
    assert lines(document) == shown


def test_a_text_of_many_lines_cannot_look_like_members() -> None:
    assert lines({"about": "rain\nprice  0\n\nverified  yes", "price": "1"}) == [
        "about  rain",
        "  │ price  0",
        "  │ verified  yes",
        "price  1",
    ]
    assert lines({"list": [{"about": "a\nb", "more": "x" * 70}, "c\nd"]})[1:3] == [
        "  - about  a",
        "      │ b",
    ]


def test_names_and_texts_are_without_tricks() -> None:
    shown = "\n".join(lines({"na\x1bme\n x": "\x1b]0;title\x07", "list": ["\u202e" + "a" * 70]}))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.startswith("na\ufffdme x  ")


def test_an_option_is_one_line() -> None:
    option = {
        "rail": "x402",
        "network": "eip155:8453",
        "amount": "10000",
        "symbol": "USDC",
        "decimals": 6,
        "payTo": "0x2",
    }
    assert (
        lines({"options": [option, option]})[1]
        == "  - x402: 10000 units of USDC (6 decimals) on eip155:8453 to 0x2"
    )


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
          "required": ["city"]}, "city* string, days integer"),
        ({"properties": {"unit": {"enum": ["C", "F"]}, "tags": {"type": "array", "items": {"type": "string"}}}},
         "unit C|F, tags list of string"),
        ({"properties": {"body": {"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}}},
         "body {a* string|null}"),
        ({"type": "object"}, "object"),
        (
            {
                "properties": {"body": {"$ref": "#/$defs/Order"}},
                "required": ["body"],
                "$defs": {"Order": {"properties": {"a": {"$ref": "#/$defs/A"}}}, "A": {"type": "integer"}},
            },
            "body* {a integer}",
        ),
        ({"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}, "n integer|null"),
        ({"properties": {"o": {"allOf": [{"$ref": "#/$defs/A"}]}}, "$defs": {"A": {"enum": ["x", 2]}}}, "o x|2"),
        ({"properties": {"file": {"type": "string", "contentEncoding": "base64"}}}, "file base64"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}, "a anything"),
        ({"properties": {"a": {"$ref": "#/$defs/None"}}}, "a anything"),
        ({"$ref": "#"}, "anything"),
        ({"properties": {"a": True}, "required": "a"}, "a anything"),
    ],
)  # fmt: skip
def test_a_schema_is_a_line_with_a_star_for_required_members(schema: object, told: str) -> None:
    assert lines({"inputSchema": schema}) == [f"inputSchema  {told}"]


def test_a_schema_that_references_make_long_is_cut() -> None:
    wide = {"properties": {f"p{number}": {"$ref": "#/$defs/W"} for number in range(100)}}
    (line,) = lines({"inputSchema": {**wide, "$defs": {"W": wide}}})
    assert line.count("…") >= 1
    assert len(line) < 10_000


def test_endless_nesting_ends() -> None:
    document: dict[str, object] = {"a": "x"}
    for _ in range(150):
        document = {"a": document}
    assert len(lines(document)) < 40
