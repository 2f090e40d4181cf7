"""Limits of a gateway under test that no operator sets: shorter intervals, smaller batches.

A test names them in the environment as `TEST_LIMIT_` and the name in capitals, beside the settings. They go to `App` inside its settings, as the defaults do.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tollway.app import lifecycle
from tollway.config.settings import LIMIT_PREFIX, PREFIX, Settings, load_settings
from tollway.config.values import parse_number
from tollway.limits import FixedLimits

TEST_PREFIX = "TEST_LIMIT_"

FIXED = {limit.name: type(limit.default) for limit in fields(FixedLimits)}

INSTALL = "import os; from tests.kit.fixed_limits import install; install(os.environ)"
"""For a gateway that is started by a command line."""


def name_variable(limit: str) -> str:
    """The variable of a limit, whether an operator sets it or a test."""
    return (TEST_PREFIX if limit.lower() in FIXED else PREFIX + LIMIT_PREFIX) + limit.upper()


def load_with_fixed_limits(environment: Mapping[str, str]) -> Settings:
    return with_fixed_limits(load_settings(environment), environment)


def with_fixed_limits(settings: Settings, environment: Mapping[str, str]) -> Settings:
    given = {
        name.removeprefix(TEST_PREFIX).lower(): raw
        for name, raw in environment.items()
        if name.startswith(TEST_PREFIX)
    }
    changes = {name: parse_number(raw, FIXED[name]) for name, raw in given.items()}
    return settings.model_copy(update={"limits": replace(settings.limits, **changes)})


def install(environment: Mapping[str, str]) -> None:
    """The `App` of this process takes these limits."""
    if any(name.startswith(TEST_PREFIX) for name in environment):
        vars(lifecycle)["App"] = _limited(lifecycle.App, dict(environment))


def _limited(base: type[lifecycle.App], environment: Mapping[str, str]) -> type[lifecycle.App]:
    class LimitedApp(base):  # type: ignore[misc, valid-type]  # the class that another test kit may have installed
        def __init__(self, settings: Settings, **options: Any) -> None:
            super().__init__(with_fixed_limits(settings, environment), **options)

    return LimitedApp
