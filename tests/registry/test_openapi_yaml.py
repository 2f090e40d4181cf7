"""YAML with the data model of JSON: aliases and merge keys are copies within limits; tags and deep nesting are refused."""

from typing import Any

import pytest

from tollway.registry.openapi import YamlRefused, parse_yaml_object

READ: list[tuple[str, dict[str, Any]]] = [
    ("a: 1", {"a": 1}),
    ("\ufeffa: 1", {"a": 1}),
    ("{a: [1, -2.5, 1e3, 'x', \"y\"]}", {"a": [1, -2.5, 1000.0, "x", "y"]}),
    ("a: true\nb: False\nc: null\nd: ~\ne:", {"a": True, "b": False, "c": None, "d": None, "e": None}),
    ("a: yes\nb: on\nc: NO", {"a": "yes", "b": "on", "c": "NO"}),
    ("a: 2020-01-01\nb: 1:30\nc: 0o17\nd: 1_000\ne: 010\nf: .5", {
        "a": "2020-01-01", "b": "1:30", "c": "0o17", "d": "1_000", "e": "010", "f": ".5"}),
    ("200: ok\non: 1\n~: 2", {"200": "ok", "on": 1, "~": 2}),
    ("a: '1'\nb: !!str 1\nc: !!int 3", {"a": "1", "b": "1", "c": 3}),
    ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
    ("a: &here 1", {"a": 1}),
    ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
    ("a: &x 1\nb: &x 2\nc: *x", {"a": 1, "b": 2, "c": 2}),
    ("a: &x {b: &y [2], c: *y}\nd: *x", {"a": {"b": [2], "c": [2]}, "d": {"b": [2], "c": [2]}}),
    ("base: &x {a: 1, b: 2}\nc: {<<: *x, b: 3}", {"base": {"a": 1, "b": 2}, "c": {"a": 1, "b": 3}}),
    ("c: {b: 3, <<: {a: 1, b: 2}}", {"c": {"a": 1, "b": 3}}),
    ("c: {<<: [{a: 1}, {a: 2, b: 2}]}", {"c": {"a": 1, "b": 2}}),
    ("c: {'<<': {a: 1}}", {"c": {"<<": {"a": 1}}}),
    ("openapi: 3.0.1\ninfo:\n  version: 1.0\n", {"openapi": "3.0.1", "info": {"version": 1.0}}),
]  # fmt: skip


def test_reads_the_data_model_of_json() -> None:
    for text, found in READ:
        assert parse_yaml_object(text.encode()) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: *x\nb: &x 1", r"alias \*x, which names nothing before it"),
        ("a: &x [*x]", r"alias \*x, which names nothing before it"),
        ("a: {<<: 1}", "merge key"),
        ("a: {<<: [{a: 1}, 2]}", "merge key"),
        ("a: {<<: {a: 1}, <<: {b: 1}}", "repeats"),
        ("a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{name}: &{name} [{', '.join(['*' + chr(ord(name) - 1)] * 9)}]\n" for name in "bcdefghi"), "more than 65536 values"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 60 + "]", "more than 4194304 characters"),
        ("a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40, "deeper"),
        ("a: !!python/object/apply:os.system [ls]", "tags"),
        ("a: !!binary aGk=", "tags"),
        ("!mine {a: 1}", "tags"),
        ("a: 1\na: 2", "repeats"),
        ("? [a]\n: 1", "keys"),
        ("a: 1\n---\nb: 2", "one document"),
        ("- 1", "object"),
        ("", "object"),
        ("<html><body>hi</body></html>", "object"),
        ("a: 1" + "0" * 200, "number"),
        ("a: 1e999", "number"),
        ("a: [", "not YAML"),
        ("a: \x00", "not YAML"),
        ('a: "\\ud800"', "not YAML"),
        ("- " * 100, "deeper"),
        ("[" * 500_000, "deeper"),
        ('{"a":' * 100_000, "deeper"),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_refuses_yaml_beyond_json(text: str, said: str) -> None:
    with pytest.raises(YamlRefused, match=said):
        parse_yaml_object(text.encode())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: 2\na: 3", "repeats a key, at line 3, column 1"),
        ("a:\n  - !mine x", "must not use tags (!name), at line 2, column 5"),
        ("a: 1\nb:\n  c: *d", "names nothing before it, at line 3, column 6"),
        ("a: [1,\n  2", "at line 3, column 1"),
    ],
)
def test_a_refusal_of_yaml_has_its_line_and_column(text: str, place: str) -> None:
    with pytest.raises(YamlRefused) as refused:
        parse_yaml_object(text.encode())
    assert place in str(refused.value)


def test_refuses_what_is_not_utf_8() -> None:
    with pytest.raises(YamlRefused, match="UTF-8"):
        parse_yaml_object("a: é".encode("latin-1"))
