"""A machine that breaks the package on purpose and looks whether a test notices.

It copies the package, applies one breakage at a time to the copy, runs the test that is named with it, and takes the
breakage back. The test must pass before, and fail by itself (not by an error around it) with the breakage. The package
itself is never touched.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from py_compile import PycInvalidationMode

from tollway.sandbox.anvil_binary import AnvilUnavailable, find_anvil

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
RUN_DEADLINE_S = 300
TEST_DEADLINE_S, UNBROKEN_TEST_DEADLINE_S = 30.0, 120.0
"""A test that hangs without its guard fails after the first, or after as long as it takes with the guard on a busy machine."""
DID_NOT_END = 124  # what `timeout` says
_LONG_FORMS = ("ATTACK", "TORTURE")
_TOO_MUCH = ("NameError", "UnboundLocalError", "SyntaxError", "ImportError", "ModuleNotFoundError")
"""A test that fails so says nothing of the guard: the edit is wrong."""
_MORE = "the edit breaks more than the guard"
_FAILED = re.compile(r"^FAILED (.+?)(?: - (.*))?$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`place`: where the text stands, as `module:function`, `module:Class.method` or `module:NAME` below `tollway` (`module` alone:
    between them), or as the path of a file that is no module. `before` stands in that place exactly once. So an edit finds its text again when lines
    around it move."""

    place: str
    before: str
    after: str

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def name(self) -> str:
        """Within the module; empty for the module as a whole."""
        return self.place.partition(":")[2]

    @property
    def is_python(self) -> bool:
        return "/" not in self.module

    def find_file(self, package: Path) -> Path:
        if not self.is_python:
            return package / self.module
        file = package.joinpath(*self.module.split("."))
        return file.with_suffix(".py") if not file.is_dir() else file / "__init__.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """What is broken, and the test (a pytest node id from the root) that must notice it."""

    name: str
    edits: tuple[Edit, ...]
    test: str

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`said`: the test's own words when it failed, or what went wrong."""

    breakage: Breakage
    is_caught: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What pytest said."""

    code: int
    output: str

    @property
    def is_good(self) -> bool:
        return self.code == 0 and " passed" in self.output

    @property
    def failure(self) -> str | None:
        """The words of the first test that failed by itself."""
        match = _FAILED.search(self.output)
        return None if match is None else (match[2] or "failed")


def mutate(edit: Edit, package: Path) -> str:
    """The text of that file with the edit. Raises ValueError when it does not apply."""
    file = edit.find_file(package)
    if not file.is_file():
        raise ValueError(f"{edit.place}: there is no such module")
    text = file.read_text(encoding="utf-8")
    start, end = _find_span(text, edit)
    count = text.count(edit.before, start, end)
    if count != 1:
        raise ValueError(f"{edit.place}: the text to replace stands there {count} times")
    return text[:start] + text[start:end].replace(edit.before, edit.after) + text[end:]


def _find_span(text: str, edit: Edit) -> tuple[int, int]:
    """First and last place of the named function, class or constant in the text, decorators included."""
    if not edit.name:
        return 0, len(text)
    body: Sequence[ast.stmt] = _parse_source(text)
    for step in edit.name.split("."):
        found = [node for node in body if step in _list_names(node)]
        if len(found) != 1:
            raise ValueError(f"{edit.place}: the name stands there {len(found)} times")
        node = found[0]
        body = node.body if isinstance(node, ast.ClassDef) else ()
    lines = text.splitlines(keepends=True)
    first = min(node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", [])), node.lineno)
    assert node.end_lineno is not None
    return sum(map(len, lines[: first - 1])), sum(map(len, lines[: node.end_lineno]))


@lru_cache(maxsize=2)
def _parse_source(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _list_names(node: ast.stmt) -> list[str]:
    """What a statement defines: a function, a class, or constants."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def _parse_test_file(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def is_defined(test: str) -> bool:
    """Whether there is such a test: `file::test_name` or `file::TestClass::test_name`, a parameter aside."""
    file, *path = test.partition("[")[0].split("::")
    if not path or not path[-1].startswith("test_") or not (ROOT / file).is_file():
        return False
    body = _parse_test_file(ROOT / file)
    for step in path:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        found = [node for node in body if isinstance(node, kinds) and node.name == step]
        if not found:
            return False
        body = found[-1].body
    return True


class Workshop:
    """One copy of the package. One breakage stands in it at a time."""

    def __init__(self, source: Path) -> None:
        self._source = source

    def run(self, tests: Sequence[str], *, deadline_s: float = UNBROKEN_TEST_DEADLINE_S) -> Run:
        """Their short forms, with the package taken from the copy. `deadline_s`: of each test."""
        options = (
            "-q",
            "-x",
            "--tb=short",
            "-rf",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",
            f"--timeout={deadline_s}",
        )
        kept = {name: value for name, value in os.environ.items() if name not in _LONG_FORMS}
        try:
            told = subprocess.run(
                (sys.executable, "-m", "pytest", *options, *tests),
                cwd=ROOT,
                env={
                    **kept,
                    **_name_anvil(),
                    "PYTHONPATH": str(self._source),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "COLUMNS": "400",
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=RUN_DEADLINE_S,
            )
        except subprocess.TimeoutExpired:
            return Run(code=DID_NOT_END, output="it did not end")
        return Run(code=told.returncode, output=told.stdout + told.stderr)

    def judge(self, breakage: Breakage, *, deadline_s: float = TEST_DEADLINE_S) -> Verdict:
        """Its test is known to pass without it, in less than `deadline_s`."""
        package = self._source / "tollway"
        files = [edit.find_file(package) for edit in breakage.edits]
        originals = {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}
        try:
            for edit, file in zip(breakage.edits, files, strict=True):
                changed = mutate(edit, package)
                if edit.is_python:
                    compile(changed, edit.place, "exec")
                file.write_text(changed, encoding="utf-8")
            run = self.run([breakage.test], deadline_s=deadline_s)
        except SyntaxError as exc:
            return Verdict(breakage=breakage, is_caught=False, said=f"{_MORE}: {exc}")
        except ValueError as exc:
            return Verdict(breakage=breakage, is_caught=False, said=str(exc))
        finally:
            for file, text in originals.items():
                file.write_text(text, encoding="utf-8")
        return _conclude(breakage, run)


def _conclude(breakage: Breakage, run: Run) -> Verdict:
    failure = run.failure if run.code == 1 else None
    if failure is not None and not failure.startswith(_TOO_MUCH):
        return Verdict(breakage=breakage, is_caught=True, said=failure)
    if run.code < 0:  # a signal: recursion without end takes the whole process along
        return Verdict(breakage=breakage, is_caught=True, said=f"the process died of signal {-run.code}")
    if failure is not None:
        said = f"{_MORE}: {failure}"
    else:
        said = "NOT NOTICED" if run.is_good else f"pytest ended with {run.code}: {run.output[-600:]}"
    return Verdict(breakage=breakage, is_caught=False, said=said)


@cache
def _name_anvil() -> dict[str, str]:
    """The chain node of this checkout for tests that run from a copy of the package, which has no node_modules."""
    try:
        return {"TOLLWAY_ANVIL": str(find_anvil())}
    except AnvilUnavailable:
        return {}


@contextmanager
def open_workshop() -> Iterator[Workshop]:
    """Raises RuntimeError where Python would import another package than the copy."""
    with tempfile.TemporaryDirectory(prefix="tollway-breaking-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        # By hash, not by time: an edit within the same second must not go unseen.
        compile_dir(source, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        where = subprocess.run(
            (sys.executable, "-c", "import tollway; print(tollway.__file__)"),
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=True,
            timeout=TEST_DEADLINE_S,
        )
        if not where.stdout.startswith(str(source)):
            raise RuntimeError(f"the copy is not what is imported: {where.stdout}")
        yield Workshop(source)


def judge_group(workshop: Workshop, group: Sequence[Breakage]) -> Iterator[Verdict]:
    """Breakages whose tests stand in one file: without them, these run once together."""
    tests = list(dict.fromkeys(breakage.test for breakage in group))
    began_s = time.monotonic()
    are_good = workshop.run(tests).is_good
    is_browser = group[0].file.startswith("tests/system/browser/")
    least_s = UNBROKEN_TEST_DEADLINE_S if is_browser else TEST_DEADLINE_S
    deadline_s = max(least_s, time.monotonic() - began_s)
    for breakage in group:
        if are_good or (alone := workshop.run([breakage.test])).is_good:
            yield workshop.judge(breakage, deadline_s=deadline_s)
        else:
            said = alone.failure or ("skipped here" if alone.code == 0 else alone.output[-600:])
            yield Verdict(breakage=breakage, is_caught=False, said=f"without the breakage: {said}")


def judge_all(
    breakages: Sequence[Breakage], *, workers: int, show: Callable[[Verdict], None]
) -> list[Verdict]:
    """`show` hears each verdict as it falls, one at a time."""
    groups = [
        list(group) for _, group in groupby(sorted(breakages, key=lambda one: one.file), lambda one: one.file)
    ]
    waiting, verdicts, lock = iter(groups), [], threading.Lock()

    def work() -> None:
        with open_workshop() as workshop:
            while True:
                with lock:
                    group = next(waiting, None)
                if group is None:
                    return
                for verdict in judge_group(workshop, group):
                    with lock:
                        verdicts.append(verdict)
                        show(verdict)

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return verdicts
