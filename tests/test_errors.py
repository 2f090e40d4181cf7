"""Failures: a stable code each, and words that the asker may read."""

import pytest

from tollway import errors
from tollway.errors import Code, Problem, Refusal, TollwayError

FAILURES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TollwayError)]


@pytest.mark.parametrize("failure", [cls for cls in FAILURES if cls not in (Refusal, errors.SettingsInvalid)])
def test_a_failure_without_a_text_has_the_text_of_its_class(failure: type[TollwayError]) -> None:
    problem = failure().problem
    assert problem.code in Code
    assert problem.detail.endswith(".")
    assert failure("More precisely.").problem.detail == "More precisely."


def test_a_refusal_carries_its_problem_unchanged() -> None:
    problem = Problem(code=Code.PAYMENT_PENDING, detail="Not yet.", retry_after_s=2)
    assert Refusal(problem).problem is problem
    assert str(Refusal(problem)) == "Not yet."


def test_settings_name_every_problem() -> None:
    failure = errors.SettingsInvalid(["one", "two"])
    assert failure.problems == ["one", "two"]
    assert str(failure) == "one; two"


def test_codes_are_snake_case() -> None:
    assert [code.value for code in Code] == [code.name.lower() for code in Code]
