"""The settings that hold for every test of the suite."""

from __future__ import annotations

from hypothesis import settings

from tests.kit.compiled_statements import share_compiled_statements

pytest_plugins = ("tests.suite_run", "tests.kit.session_processes")

# A property test draws the same examples in every run, and a slow machine fails none of them. Modules that name settings of their own take these
# as their defaults, because pytest loads this file before any test module.
settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.register_profile("drawn", derandomize=False, deadline=None, database=None)
settings.load_profile("suite")

share_compiled_statements()
