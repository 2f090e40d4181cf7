"""Results that a test expects to be there, of a type, or a refusal; each fails the test otherwise."""

from collections.abc import Awaitable
from typing import TypeVar

import pytest

from tollway.errors import Problem, Refusal

T = TypeVar("T")


def existing(value: T | None) -> T:
    assert value is not None
    return value


def of_type(kind: type[T], value: object) -> T:
    assert isinstance(value, kind), value
    return value


async def problem_of(work: Awaitable[object]) -> Problem:
    """The problem that a step is refused with."""
    with pytest.raises(Refusal) as refused:
        await work
    return refused.value.problem
