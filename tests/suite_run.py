"""A pytest plugin: the files of one suite, the slowest first, a report of the slowest at the end, and the end of a test that hangs.

`durations.json` holds seconds of each file from the last run with `--write-durations` (`make durations`). A file that is not in it takes less than
`LISTED_S`, or is new. Under xdist the files start in the order of these seconds, so that no worker ends with a long one alone.
"""

import faulthandler
import gc
import json
import logging
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.suite import SUITES, TESTS, Suite, class_of, list_test_files

DURATIONS = TESTS / "durations.json"
LISTED_S = 0.5
SHOWN = 20
REPEAT_S = 15.0
"""Between two alarms of a test that exceeds its timeout."""
END_S = 120.0
"""After the first alarm, until the process of the test ends."""
STDERR = pytest.StashKey[int]()
TIMEOUT = pytest.StashKey[Any]()
PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"})


def read_durations() -> dict[str, float]:
    """Path of a test file below `tests` -> seconds of all its tests, one after the other."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return found


def merge_durations(before: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """The durations after a run: what it measured, and the other files that still exist."""
    merged = {name: seconds for name, seconds in before.items() if (TESTS / name).exists()} | measured
    return {name: round(seconds, 1) for name, seconds in sorted(merged.items()) if seconds >= LISTED_S}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite")
    group.addoption(
        "--suite", choices=sorted(SUITES), help="run only the files of this suite (tests/suite.py)"
    )
    group.addoption(
        "--write-durations",
        action="store_true",
        help="write the seconds of each file into tests/durations.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # what collection makes stays to the end: a look for garbage during it doubles its time
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationReport(config), "duration-report")
    config.stash[STDERR] = os.dup(2)  # a test that ends its process is captured
    if config.getoption("suite"):
        config.pluginmanager.register(ProcessRefusal(), "process-refusal")
    if config.getoption("suite") == "quick":
        sys.meta_path[sys.meta_path.index(PathFinder)] = HiddenPackages()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the files of other classes unread, and the conftest of a folder without a file of this suite."""
    suite = config.getoption("suite")
    if suite is None or TESTS not in collection_path.parents:
        return None
    if collection_path.is_dir():
        return collection_path not in find_folders(suite) or None
    return (
        is_test_file(collection_path) and class_of(name_file(collection_path)) not in SUITES[suite]
    ) or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suite = config.getoption("suite")
    left_out = [item for item in items if is_left_out(item, suite)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_left_out(item, suite)]
    if hasattr(config, "workerinput"):
        durations = read_durations()
        items.sort(key=lambda item: -durations.get(name_file(item.path), 0.0))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Each test begins with the log as it is before `configure_logging`, which a command that a test runs in this process calls."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return (yield)
    finally:
        root.handlers, root.level = handlers, level
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()


# ---- A test that hangs. One alarm is not enough: it raises in whatever runs at that moment. When that is a task beside the test, the event loop keeps the error
# in that task, and the test waits for ever.


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """The alarm repeats until the test ends. A test that swallows each of them, or waits outside Python, ends its process, with the stacks of its threads."""
    is_set = yield
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, REPEAT_S)
    faulthandler.dump_traceback_later(settings.timeout + END_S, exit=True, file=item.config.stash[STDERR])
    item.stash[TIMEOUT] = settings
    return is_set


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_cancel_timer() -> Generator[None, object, object]:
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, object, object]:
    """No alarm during the report of a failure. The rest of the test has the whole time again."""
    if call.excinfo is None or TIMEOUT not in item.stash:
        return (yield)
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        return (yield)
    finally:
        set_timer_again(item)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """The teardown has a timer too: pytest-timeout cancels that of a test that fails."""
    if isinstance(node, pytest.Item) and TIMEOUT in node.stash and not node.config.getoption("usepdb"):
        set_timer_again(node)


def set_timer_again(item: pytest.Item) -> None:
    item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[TIMEOUT])


@cache
def find_folders(suite: Suite) -> frozenset[Path]:
    """The folders with a file of a suite, and those above them."""
    files = [TESTS / file for file in list_test_files() if class_of(file) in SUITES[suite]]
    return frozenset(folder for file in files for folder in file.parents)


def is_left_out(item: pytest.Item, suite: str | None) -> bool:
    """`make quick` leaves out what starts a process, `rest` what `make quick` runs; `make test` what repeats on PostgreSQL a rule that no dialect changes."""
    names = {mark.name for mark in item.iter_markers()}
    if suite == "quick":
        return "process" in names
    if suite == "rest":
        return class_of(name_file(item.path)) == "quick" and "process" not in names
    return suite == "test" and "postgres" in names and "dialects" not in names


def is_test_file(path: Path) -> bool:
    return path.suffix == ".py" and path.name.startswith("test_") and TESTS in path.parents


def name_file(path: Path) -> str:
    return path.relative_to(TESTS).as_posix() if TESTS in path.parents else path.as_posix()


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of a test that draws at random: always the same one, except in `make test-all`, which prints the one that it has drawn."""
    drawn = pytestconfig.getoption("hypothesis_seed", None)
    return 0 if drawn is None else int(drawn)


class DurationReport:
    """Adds up the seconds of each file, in the process that reports them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_report_header(self) -> str | None:
        seed = self._config.getoption("hypothesis_seed", None)
        return None if seed is None else f"seed of the property tests: --hypothesis-seed={seed}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = name_file(self._config.rootpath / report.nodeid.partition("::")[0])
        self._seconds[name] += report.duration  # type: ignore[assignment]  # a Counter of floats
        self._tests[name] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        slowest = [row for row in self._seconds.most_common(SHOWN) if row[1] >= LISTED_S]
        if slowest:
            terminalreporter.section(f"slowest files, of {sum(self._seconds.values()):.0f} s in all")
            for name, seconds in slowest:
                terminalreporter.write_line(f"{seconds:7.1f} s  {self._tests[name]:4} tests  {name}")
        if self._config.getoption("write_durations"):
            merged = merge_durations(read_durations(), dict(self._seconds))
            DURATIONS.write_text(json.dumps(merged, indent=0) + "\n", encoding="utf-8")


def read_lock(name: str) -> frozenset[str]:
    """The distributions of `requirements/<name>.txt`."""
    lock = (Path(__file__).parents[1] / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))


class HiddenPackages(PathFinder):
    """The finder of a `make quick`: it does not find what only the other suites install, so that a file that needs it fails here as on a fresh clone."""

    def __init__(self) -> None:
        extra = read_lock("dev") - read_lock("quick")
        self._hidden = {
            module
            for module, owners in metadata.packages_distributions().items()
            if {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} <= extra
        }

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # type: ignore[override]  # of an instance
        return None if fullname in self._hidden else PathFinder.find_spec(fullname, path, target)


class ProcessRefusal:
    """Fails a test of `make quick` that starts a process, in whichever suite it runs."""

    def __init__(self) -> None:
        self._is_in_test = False
        sys.addaudithook(self._refuse)

    def _refuse(self, event: str, arguments: Any) -> None:
        if self._is_in_test and event in PROCESS_EVENTS:
            raise RuntimeError(
                f"a test of `make quick` starts a process ({event}): mark it `process`, or give its file another class"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        return (yield from self._watch(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        return (yield from self._watch(item))

    def _watch(self, item: pytest.Item) -> Any:
        """Not the teardown: after the last test of a run it ends what other files have started."""
        self._is_in_test = class_of(name_file(item.path)) == "quick" and not is_left_out(item, "quick")
        try:
            return (yield)
        finally:
            self._is_in_test = False
