"""The suite itself: each test file has one class, each suite runs what it says, slow files start first, and no command hides a failure."""

import ast
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from tests.kit.waits import until
from tests.suite import CLASS_NAMES, CLASSES, OWN_TARGETS, SUITES, TESTS, class_of, list_test_files
from tests.suite_run import (
    DURATIONS,
    LISTED_S,
    HiddenPackages,
    merge_durations,
    pytest_runtest_protocol,
    read_durations,
)
from tollway.observability.telemetry import configure_logging

ROOT = TESTS.parent
MAKEFILE = (ROOT / "Makefile").read_text()
SIDE_BY_SIDE = ROOT / ".ci" / "side_by_side"
NEEDS_A_SERVER = frozenset({"postgres", "system/live"})


def test_every_test_file_has_a_class() -> None:
    assert [file for file in list_test_files() if class_of(file) not in CLASS_NAMES] == []


def test_every_row_is_about_files_and_changes_a_class() -> None:
    """A row for a file that exists and whose folder has another class, or for a folder with test files."""
    files = list_test_files()
    wrong = []
    for row, name in CLASSES.items():
        if row in files:
            above = next(
                (CLASSES[one.as_posix()] for one in Path(row).parents if one.as_posix() in CLASSES), None
            )
            if name == above:
                wrong.append(row)
        elif not any(file.startswith(f"{row}/") for file in files):
            wrong.append(row)
    assert wrong == []


def test_what_a_test_does_to_the_log_ends_with_it() -> None:
    """`tollway gateway serve` in this process configures the log; the next test of the same worker reads its own lines with `capsys`."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    test = pytest_runtest_protocol()
    next(test)
    configure_logging(stream=io.StringIO())
    structlog.contextvars.bind_contextvars(request_id="one")
    assert structlog.is_configured()
    assert (list(root.handlers), root.level) != before
    with pytest.raises(StopIteration):
        test.send(None)
    assert not structlog.is_configured()
    assert structlog.contextvars.get_contextvars() == {}
    assert (list(root.handlers), root.level) == before


def test_every_class_is_run_by_a_command() -> None:
    run = set().union(*SUITES.values())
    assert run == set(CLASS_NAMES) - {"own"}
    assert SUITES["quick"] < SUITES["test"] < SUITES["all"] == SUITES["rest"]
    assert SUITES["all"].isdisjoint(SUITES["check"])
    recipes = (ROOT / "Makefile").read_text() + (ROOT / ".ci/run").read_text()
    assert set(re.findall(r"(?:--suite |\bSUITE(?: \?)?= ?)(\w+)", recipes)) == set(SUITES)


def test_a_file_with_a_target_of_its_own_is_named_by_that_target() -> None:
    assert set(OWN_TARGETS) == {file for file in list_test_files() if class_of(file) == "own"}
    for file, target in OWN_TARGETS.items():
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
        assert recipe is not None, target
        assert f"tests/{file}" in recipe[1], file


def test_no_quick_file_needs_a_server() -> None:
    """A file with a test marked `postgres` or `live` has another class."""
    found = []
    for file in list_test_files():
        if class_of(file) == "quick":
            names = {
                node.attr
                for node in ast.walk(ast.parse((TESTS / file).read_text()))
                if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("mark")
            }
            if names & NEEDS_A_SERVER:
                found.append(file)
    assert found == []


def test_a_quick_run_hides_what_only_other_suites_install() -> None:
    """A quick file that needs numpy, itself or through a module of the gateway, fails as on a fresh clone of `make quick`."""
    finder = HiddenPackages()
    assert [finder.find_spec(name) for name in ("numpy", "playwright", "openai")] == [None] * 3
    assert all(finder.find_spec(name) for name in ("pytest", "httpx", "asyncio"))


DRAWS = re.compile(
    r"SystemRandom|derandomize|\bsecrets\.(?:rand|choice)|\brandom\.(?:rand\w+|choices?|shuffle|sample|uniform|random)\("
)
"""A draw from a generator that has no seed, or a property test that decides about its own seed."""
DRAWN_BY = {
    "conftest.py": "the profiles of the property tests",
    "kit/ledger_history.py": "the steps of a history, from its seed",
    "kit/ports.py": "a free port",
    "long/torture/conftest.py": "the seed of the long form, which is printed",
    "test_suite.py": "the pattern itself",
}


def test_every_draw_has_a_seed() -> None:
    found = set()
    for path in TESTS.rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if DRAWS.search(line)]
        if any(not re.search(r"(?:self|torture)\.random\.", line) for line in lines):
            found.add(path.relative_to(TESTS).as_posix())
    assert found - set(DRAWN_BY) == set()


SESSION_PROCESSES = "kit/session_processes.py"
STARTS_A_PROCESS_OF_A_SESSION = re.compile(r"\b(?:run_postgres|async_playwright|Forkserver)\(")
STARTED_BY = {
    "kit/databases.py": "the function itself",
    "system/browser/screenshots.py": "a program of its own",
    "system/browser/shown_gateway.py": "for that program",
    "system/transcripts/__main__.py": "a program of its own",
    "system/transcripts/families.py": "gateways under the clock of the transcripts",
}


def test_the_processes_of_a_session_are_started_by_one_plugin() -> None:
    """A fixture that a conftest imports is registered anew, and starts its process again."""
    found = set()
    for path in TESTS.rglob("*.py"):
        text = path.read_text()
        is_imported = re.search(r"^(?:from|import) tests\.kit\.session_processes", text, re.MULTILINE)
        if is_imported or STARTS_A_PROCESS_OF_A_SESSION.search(text):
            found.add(path.relative_to(TESTS).as_posix())
    assert found == {SESSION_PROCESSES, *STARTED_BY}


def test_the_durations_are_of_files_that_exist() -> None:
    durations = read_durations()
    assert set(durations) <= set(list_test_files())
    assert all(seconds >= LISTED_S for seconds in durations.values())
    assert DURATIONS.read_text() == json.dumps(dict(sorted(durations.items())), indent=0) + "\n"


def test_a_run_replaces_its_own_durations_and_forgets_files_that_are_gone() -> None:
    before = {"test_money.py": 9.0, "test_gone.py": 5.0, "test_ids.py": 2.0}
    measured = {"test_money.py": 1.04, "test_errors.py": 0.2}
    assert merge_durations(before, measured) == {"test_ids.py": 2.0, "test_money.py": 1.0}


# ---- Runs of pytest over files of a test.

PLUGIN = """
import pathlib
import tests.suite, tests.suite_run
tests.suite.TESTS = tests.suite_run.TESTS = pathlib.Path(__file__).parent
tests.suite.CLASSES.clear()
tests.suite.CLASSES.update({"test_a.py": "quick", "test_b.py": "test", "test_c.py": "all", "test_d.py": "check", "system/browser": "all"})
tests.suite_run.DURATIONS = tests.suite_run.TESTS / "durations.json"
tests.suite_run.REPEAT_S, tests.suite_run.END_S = 0.2, 5.0
pytest_plugins = ("tests.suite_run",)
"""
TEST = "def test_it(): pass\n"
STARTS = "import subprocess\ndef test_it(): subprocess.run(['true'])\n"
MARKED = """
import pytest
@pytest.mark.postgres
def test_a_rule(): pass
@pytest.mark.postgres
@pytest.mark.dialects
def test_a_difference(): pass
@pytest.mark.process
def test_a_process(): pass
"""


def run_pytest(folder: Path, *options: str, **files: str) -> str:
    """The output of pytest over these files. Its exit code is the last word."""
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "durations.json").write_text('{"test_b.py": 3.0, "test_c.py": 8.0}')
    marks = "\n".join(f"  {name}: x" for name in ("postgres", "dialects", "process"))
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{marks}\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",
            *options,
            ".",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return f"{ran.stdout}{ran.stderr}\n{ran.returncode}"


@pytest.mark.parametrize(
    ("suite", "run"),
    [("quick", "a"), ("test", "ab"), ("all", "abc"), ("rest", "bc"), ("check", "d")],
)
def test_a_suite_runs_the_files_of_its_classes(tmp_path: Path, suite: str, run: str) -> None:
    output = run_pytest(tmp_path, f"--suite={suite}", test_a=TEST, test_b=TEST, test_c=TEST, test_d=TEST)
    assert "".join(re.findall(r"test_(\w)\.py::test_it PASSED", output)) == run
    assert output.endswith("\n0")


def test_a_folder_without_a_file_of_the_suite_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "system/browser").mkdir(parents=True)
    (tmp_path / "system/browser" / "conftest.py").write_text("import a_package_that_quick_does_not_install\n")
    (tmp_path / "system/browser" / "test_e.py").write_text(TEST)
    assert run_pytest(tmp_path, "--suite=quick", test_a=TEST).endswith("\n0")
    assert "a_package_that_quick_does_not_install" in run_pytest(tmp_path, "--suite=all")


def test_without_a_suite_every_file_runs(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, test_a=TEST, test_b=TEST, test_d=STARTS)
    assert "3 passed" in output


def test_a_quick_test_starts_no_process(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "--suite=quick", test_a=STARTS)
    assert "a test of `make quick` starts a process (subprocess.Popen)" in output
    assert output.endswith("\n1")


@pytest.mark.parametrize(
    ("suite", "names"),
    [
        ("quick", {"rule", "difference"}),
        ("test", {"difference", "process"}),
        ("all", {"rule", "difference", "process"}),
        ("rest", {"process"}),
    ],
)
def test_a_suite_leaves_out_the_tests_of_other_suites(tmp_path: Path, suite: str, names: set[str]) -> None:
    output = run_pytest(tmp_path, f"--suite={suite}", test_a=MARKED)
    assert set(re.findall(r"::test_a_(\w+) PASSED", output)) == names


def test_the_slowest_files_start_first_and_stand_in_the_report(tmp_path: Path) -> None:
    slow = "import time\ndef test_it(): time.sleep(0.6)\n"
    output = run_pytest(
        tmp_path,
        *("-n1", "--dist=loadfile", "--no-loadscope-reorder"),
        test_a=TEST + "def test_two(): pass\n",
        test_b=TEST,
        test_c=slow,
    )
    assert re.findall(r"PASSED test_(\w)\.py", output) == ["c", "b", "a", "a"]
    assert re.search(r"slowest files, of \d+ s in all =+\n +0\.\d s +1 tests  test_c\.py", output)


def test_the_seed_of_the_property_tests_is_printed(tmp_path: Path) -> None:
    assert "seed of the property tests: --hypothesis-seed=7" in run_pytest(
        tmp_path, "--hypothesis-seed=7", test_a=TEST
    )


LOSES_ITS_ALARM = """
import asyncio
async def test_it():
    async def run():
        while True: await asyncio.sleep(0)
    running = [asyncio.create_task(run()) for _ in range(3)]
    await asyncio.Event().wait()
"""
HANGS_AFTER_A_FAILURE = """
import pytest, time
@pytest.fixture
def hanging():
    yield
    time.sleep(1000)
def test_it(hanging): assert False, "the rule"
"""
SWALLOWS_ITS_ALARMS = """
import time
def test_it():
    while True:
        try: time.sleep(1000)
        except BaseException: pass
"""


@pytest.mark.parametrize(
    ("text", "failures"), [(LOSES_ITS_ALARM, ["Timeout"]), (HANGS_AFTER_A_FAILURE, ["the rule", "Timeout"])]
)
def test_a_test_that_hangs_fails(tmp_path: Path, text: str, failures: list[str]) -> None:
    output = run_pytest(tmp_path, "--timeout=1", "-o", "asyncio_mode=auto", test_a=text)
    assert all(failure in output for failure in failures)
    assert output.endswith("\n1")


def test_a_test_that_swallows_its_alarms_ends_its_worker_and_the_run(tmp_path: Path) -> None:
    options = "-n1", "--dist=loadfile", "--max-worker-restart=0", "--timeout=1"
    output = run_pytest(tmp_path, *options, test_a=SWALLOWS_ITS_ALARMS)
    assert "worker 'gw0' crashed while running 'test_a.py::test_it'" in output
    assert "in test_it" in output  # its stack
    assert output.endswith("\n1")
    assert "--max-worker-restart=0" in MAKEFILE


# ---- What the documentation says of the commands.


def test_the_readme_names_both_commands_of_the_set_up_with_their_times() -> None:
    page = (ROOT / "README.md").read_text()
    section = page.split("\n## Install, and see it work\n")[1].split("\n## ")[0]
    times = dict(
        re.findall(r"^make (\w+) +# in a checkout: .*?, (\w+ (?:seconds|minutes))", section, re.MULTILINE)
    )
    assert times == {"demo": "20 seconds", "test": "nine minutes"}
    installs = dict(re.findall(r"`make (\w+)` (\w+ minutes) and [\d.]+ [MG]B", section))
    assert installs == {"demo": "two minutes", "test": "five minutes"}
    assert "Two commands are the whole set-up: `make demo` and `make test`." in MAKEFILE
    assert re.search(r"^test: .*## .* nine minutes on two quiet cores", MAKEFILE, re.MULTILINE)


def test_the_page_of_the_tests_has_each_command_and_each_class() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    rows = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))
    assert rows >= {"make quick", "make test", "make test-all", "make check", ".ci/run", "make long"}
    assert rows >= set(CLASS_NAMES)
    assert "| 9 minutes |" in page


def test_contributing_is_short() -> None:
    """Its first page is read before the first change; the rest stands in docs/testing.md."""
    assert len((ROOT / "CONTRIBUTING.md").read_text().split()) <= 400


# ---- Targets side by side.

TARGETS = """
slow: ; @sleep 0.5; echo words of slow; echo errors of slow >&2
bad: ; @echo words of bad; false
worse: ; @false
good: ; @echo words of good
hangs: ; @echo $$$$ > pid; exec sleep 100
"""


def run_targets(folder: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    (folder / "Makefile").write_text(TARGETS)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        [SIDE_BY_SIDE, *targets], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_outputs_of_targets_stand_apart_in_the_order_of_their_names(tmp_path: Path) -> None:
    ran = run_targets(tmp_path, "slow", "good")
    assert ran.returncode == 0
    assert re.findall(r"^==== make \w+$|^words of \w+$|^errors of \w+$", ran.stdout, re.MULTILINE) == [
        *("==== make slow", "words of slow", "errors of slow"),
        *("==== make good", "words of good"),
    ]


def test_each_target_that_fails_is_named_and_none_stops_another(tmp_path: Path) -> None:
    ran = run_targets(tmp_path, "bad", "good", "worse")
    assert ran.returncode == 1
    assert "words of good" in ran.stdout
    assert "==== make bad ended with 2" in ran.stdout
    assert ran.stdout.endswith("\nfailed: bad worse\n")


async def test_a_signal_ends_every_target(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(TARGETS)
    running = subprocess.Popen([SIDE_BY_SIDE, "hangs"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=60) == 130
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_gate_runs_every_suite_the_quick_one_first_and_every_target_of_its_own() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^make ([^|\n]+)", gate, re.MULTILINE) == [
        *("quick DRAWN=1", "check", "test-all SUITE=rest "),
    ]
    (targets,) = re.findall(r"^\.ci/side_by_side ([^>]*)", gate, re.MULTILINE)
    assert set(targets.split()) == set(OWN_TARGETS.values())


@pytest.mark.parametrize("failing", ["", "quick", "check", "test-all", "image-test"])
def test_the_gate_fails_where_one_of_its_parts_fails_and_prints_each(tmp_path: Path, failing: str) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    parts = ["quick", "check", "test-all", *OWN_TARGETS.values()]
    recipes = [f"{one}: ; @echo words of {one}{'; false' if one == failing else ''}" for one in parts]
    (tmp_path / "Makefile").write_text("\n".join(recipes) + "\n")
    there = tmp_path / "bin"  # the packages of the image
    there.mkdir()
    for name in ("buildah", "mmdebstrap"):
        (there / name).write_text("")
        (there / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    env["PATH"] = f"{there}:{env['PATH']}"
    ran = subprocess.run(
        [tmp_path / ".ci" / "run"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode == 0) == (not failing), ran
    reached = parts[: parts.index(failing) + 1] if failing in ("quick", "check") else parts
    assert [one for one in parts if f"words of {one}\n" in ran.stdout] == reached
