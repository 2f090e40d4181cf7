"""The normal form of a path and the most specific template. (The use in a call: tests/gateway/test_target.py.)"""

from dataclasses import dataclass

import pytest

from tollway.registry.paths import filter_by_method, find_most_specific, loose_path, normal_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    method: str
    path: str
    price: int = 1
    metering: None = None


@pytest.mark.parametrize(
    ("rest", "normal", "loose"),
    [
        ("", "/", "/"),
        ("/", "/", "/"),
        ("//a;b=1//c/", "/a/c", "/a/c"),
        ("/%61%2fb", "/a%2Fb", "/a/b"),
        ("/a%252Fb", "/a%252Fb", "/a/b"),
        ("/caf%c3%a9", "/caf%C3%A9", "/café"),
    ],
)
def test_normal_and_loose_form_of_a_path(rest: str, normal: str, loose: str) -> None:
    assert normal_path(rest) == normal
    assert loose_path(normal) == loose


def test_the_most_specific_template_is_picked() -> None:
    operations = [Priced(method="GET", path=path) for path in ("/{a}/{b}", "/x/{b}", "/x/y", "/{a}/y")]
    picked = {path: find_most_specific(operations, path) for path in ("/x/y", "/x/z", "/w/y", "/w/z", "/w")}
    found = [one.path if one else None for one in picked.values()]
    assert found == ["/x/y", "/x/{b}", "/{a}/y", "/{a}/{b}", None]
    assert find_most_specific(operations, "/X/Y", is_loose=True) == operations[2]


def test_head_is_priced_as_get() -> None:
    operations = [Priced(method="GET", path="/a"), Priced(method="POST", path="/a")]
    assert filter_by_method(operations, "HEAD") == operations[:1]
    assert filter_by_method(operations, "post") == operations[1:]
