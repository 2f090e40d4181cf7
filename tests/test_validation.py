"""Models of request bodies: the codes, pointers and order of the errors that pydantic finds."""

from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field, PlainValidator, Strict, ValidationInfo

from tollway.errors import FieldError
from tollway.validation import (
    UNKNOWN_NAMED_MAX,
    RequestModel,
    add_value,
    check_members,
    in_range,
    read_texts,
    to_field_error,
    value_error,
)


def _check_word(word: str) -> str:
    if word == "bad":
        raise value_error("word", "must not be {bad}")
    return word


def _read_words(value: object, info: ValidationInfo) -> tuple[str, ...]:
    return read_texts(value, info, _check_word, count_max=3, length_max=5)


def _read_even(value: object, info: ValidationInfo) -> object:
    add_value(info, value)
    raise value_error("odd", "must be even")


class Body(RequestModel):
    first_name: Annotated[str, Strict(), Field(min_length=1, max_length=3)]
    count: Annotated[int, Strict(), AfterValidator(in_range(1, 9))] = 1
    kind: Literal["a", "b", "c"] = "a"
    words: Annotated[tuple[str, ...], PlainValidator(_read_words)] = ()
    number: Annotated[int, PlainValidator(_read_even)] = 0


@pytest.mark.parametrize(
    ("members", "errors"),
    [
        ({}, ["/firstName required is required"]),
        ({"firstName": 1}, ["/firstName type must be a string"]),
        ({"firstName": ""}, ["/firstName too_short must not be empty"]),
        ({"firstName": "long"}, ["/firstName too_long must have at most 3 characters"]),
        ({"firstName": "x", "count": True}, ["/count type must be an integer"]),
        ({"firstName": "x", "count": 1.0}, ["/count type must be an integer"]),
        ({"firstName": "x", "count": 0}, ["/count out_of_range must lie between 1 and 9"]),
        ({"firstName": "x", "count": 10}, ["/count out_of_range must lie between 1 and 9"]),
        ({"firstName": "x", "kind": "d"}, ["/kind unknown_value must be one of: a, b, c"]),
        ({"firstName": "x", "words": "x"}, ["/words type must be a list"]),
        ({"firstName": "x", "words": ["a"] * 4}, ["/words too_many must have at most 3 elements"]),
        (
            {"firstName": "x", "words": ["bad", "", "BAD"]},
            [
                "/words/1 too_short must not be empty",
                "/words/2 duplicate is in the list twice",
                "/words/0 word must not be {bad}",
            ],
        ),
        (
            {"count": 0, "firstname": "x", "a/b~": 1},
            [
                "/firstname unknown_field there is no such field; did you mean firstName?",
                "/a~1b~0 unknown_field there is no such field",
                "/firstName required is required",
                "/count out_of_range must lie between 1 and 9",
            ],
        ),
    ],
)
def test_an_error_has_a_pointer_a_code_and_a_detail(members: dict[str, object], errors: list[str]) -> None:
    found = [to_field_error(*error) for error in check_members(Body, members).errors]
    assert [f"{one.pointer} {one.code} {one.detail}" for one in found] == errors
    assert all(isinstance(one, FieldError) for one in found)


def test_a_valid_body_has_no_error() -> None:
    checked = check_members(Body, {"firstName": "x", "words": ["a"]})
    assert checked.errors == []
    assert checked.model is not None
    assert checked.model.words == ("a",)
    assert checked.values == {"first_name": "x", "words": ("a",)}


def test_values_of_valid_form_are_kept_beside_an_error() -> None:
    checked = check_members(Body, {"firstName": "x", "number": 3, "words": ["ok", "bad", 5], "count": 0})
    assert checked.model is None
    assert checked.values == {"first_name": "x", "number": 3, "words": ("ok", "bad")}


def test_the_first_unknown_members_become_errors() -> None:
    checked = check_members(
        Body, {"firstName": "x", **{f"{number}" * 100: 1 for number in range(100, 1_000)}}
    )
    assert len(checked.errors) == UNKNOWN_NAMED_MAX
    assert all(len(str(location[-1])) == 64 for location, _, _ in checked.errors)
