"""YAML with the data model of JSON; tags, aliases and deep nesting are refused."""

from typing import Any

import pytest

from tollway.registry.openapi import YamlRefused, parse_yaml_object


@pytest.mark.parametrize(
    ("text", "found"),
    [
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
        ("openapi: 3.0.1\ninfo:\n  version: 1.0\n", {"openapi": "3.0.1", "info": {"version": 1.0}}),
    ],
)  # fmt: skip
def test_reads_the_data_model_of_json(text: str, found: dict[str, Any]) -> None:
    assert parse_yaml_object(text.encode()) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x", "aliases"),
        ("a: &x [*x]", "aliases"),
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
)
def test_refuses_yaml_beyond_json(text: str, said: str) -> None:
    with pytest.raises(YamlRefused, match=said):
        parse_yaml_object(text.encode())


def test_refuses_what_is_not_utf_8() -> None:
    with pytest.raises(YamlRefused, match="UTF-8"):
        parse_yaml_object("a: é".encode("latin-1"))
