"""Counts the objects that the product makes in this process while a call is served, and the functions and modules that it enters.

Counted, in every thread that starts inside `watching` and in the thread that opens `counting`:

- **Objects**: instances of classes of `tollway.*`, records, tuples with names and exceptions alike, each once, at its creation.
  A creation is seen where a constructor written in Python runs: the outermost `__init__` of the instance (also the
  generated one of a dataclass, and one that another package wrote); where a class has no such `__init__`, its outermost
  `__new__` (a `NamedTuple`; its `_make` and `_replace` too).
- **Functions**: code objects of files of `tollway` that were entered, closures and generators included, comprehensions not. One that
  was entered twice counts once.
- **Modules**: the files of these functions.
- **Moves**: how often a function of one module began a function of another, or the event loop began one. A coroutine that goes on after a wait has
  moved nowhere: how often it waits, and what runs meanwhile, is the machine's.

Objects are counted in two sums. `in_transactions`: made inside a transaction on the database, where the writer works on a whole batch; on SQLite that is
another thread. `in_call`: all others, so what the call's task makes, and what the writer makes around the batch.

Not counted: instances of classes whose only constructor is that of a built-in type (`Address` and `TxHash` are bytes with a name;
some exceptions have none of their own), members of enumerations (made at import), and whatever belongs to Python or to
another package: tuples, lists, closures, bound methods, coroutines, tasks, futures.
"""

import contextlib
import dis
import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tollway

_ROOT = str(Path(tollway.__file__).parent) + "/"
_PACKAGE = "tollway."
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_TRANSACTION_FILES = (_ROOT + "storage/engine/database.py", _ROOT + "storage/engine/postgres.py")
_TRANSACTION_FUNCTIONS = frozenset({"_write", "_read", "run_statement"})
"""Of both databases: they begin a transaction, run the work of the caller, and end it."""

Place = tuple[str, str]
"""A class, and the line that makes an instance of it."""


@dataclass(slots=True, kw_only=True)
class Creations:
    """What was made and entered between two moments."""

    in_call: "Counter[Place]" = field(default_factory=Counter)
    in_transactions: "Counter[Place]" = field(default_factory=Counter)
    functions: set[CodeType] = field(default_factory=set)
    moves: int = 0

    @property
    def sums(self) -> tuple[int, int]:
        """Objects in the call, objects in its transactions."""
        return self.in_call.total(), self.in_transactions.total()

    def count_made(self, kind: str) -> int:
        """Instances of one class in the call, by its name without `tollway.`."""
        return sum(count for (made, _), count in self.in_call.items() if made == kind)

    @property
    def modules(self) -> set[str]:
        return {code.co_filename for code in self.functions}

    @property
    def table(self) -> str:
        """For a failed assertion: every class, and every line that made an instance of it."""
        return "\n".join(
            [
                f"{len(self.functions)} functions, {len(self.modules)} modules, {self.moves} moves",
                *_list_functions(self.functions),
                *_list_creations("in the call", self.in_call),
                *_list_creations("in its transactions", self.in_transactions),
            ]
        )


def _list_functions(functions: set[CodeType]) -> Iterator[str]:
    by_module: dict[str, list[str]] = {}
    for code in functions:
        by_module.setdefault(code.co_filename.removeprefix(_ROOT), []).append(code.co_qualname)
    for module, names in sorted(by_module.items()):
        yield f"{len(names):4} {module}: " + ", ".join(sorted(names))


def _list_creations(name: str, created: "Counter[Place]") -> Iterator[str]:
    by_class: Counter[str] = Counter()
    for (kind, _), count in created.items():
        by_class[kind] += count
    yield f"{by_class.total()} objects of {len(by_class)} classes {name}"
    for kind, total in sorted(by_class.items(), key=lambda one: (-one[1], one[0])):
        places = sorted((place, count) for (made, place), count in created.items() if made == kind)
        yield f"{total:4} {kind}: " + ", ".join(f"{count} at {place}" for place, count in places)


class ObjectCounter:
    """One for a process. `watching` is entered before the gateway starts its threads, `counting` inside it as often as
    wanted."""

    def __init__(self) -> None:
        self._creations: Creations | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Threads that start inside are counted. A thread keeps its profile function for as long as it lives."""
        threading.setprofile(self._profile)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Creations]:
        creations = self._creations = Creations()
        sys.setprofile(self._profile)
        try:
            yield creations
        finally:
            sys.setprofile(None)
            self._creations = None

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        creations = self._creations
        if creations is None or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(_ROOT) and code.co_name not in _COMPREHENSIONS:
            self._note_function(creations, frame)
        kind = _find_created_class(frame, code)
        if kind is not None:
            place = (f"{kind.__module__.removeprefix(_PACKAGE)}.{kind.__qualname__}", _find_place(frame))
            sums = creations.in_transactions if _is_in_transaction(frame) else creations.in_call
            with self._lock:
                sums[place] += 1

    def _note_function(self, creations: Creations, frame: FrameType) -> None:
        code = frame.f_code
        is_move = frame.f_lasti == _find_start(code) and _find_outer_file(frame) != code.co_filename
        with self._lock:
            creations.functions.add(code)
            creations.moves += is_move


@functools.cache
def _find_start(code: CodeType) -> int:
    """Where a function begins; at each other `RESUME` a coroutine or a generator goes on."""
    return code.co_code[::2].index(dis.opmap["RESUME"]) * 2


def _find_outer_file(frame: FrameType) -> str | None:
    """The file of the innermost function of `tollway` around this one; None where other code, such as the event loop, began it."""
    outer = frame.f_back
    while outer is not None and not outer.f_code.co_filename.startswith(_ROOT):
        outer = outer.f_back
    return None if outer is None else outer.f_code.co_filename


def _find_created_class(frame: FrameType, code: CodeType) -> type | None:
    """The class of `tollway` whose instance is made in this frame; None where the frame makes none."""
    if code.co_name == "__init__":
        made = _read_first_argument(frame)
        is_ours = type(made).__module__.startswith(_PACKAGE)
        return type(made) if is_ours and not _has_outer_constructor(frame, made) else None
    # The generated `__new__` of a named tuple is a lambda.
    is_generated = code.co_filename == "<string>" and code.co_varnames[:1] == ("_cls",)
    if is_generated or code.co_name in ("__new__", "_make"):
        made = _read_first_argument(frame)
        is_ours = isinstance(made, type) and made.__module__.startswith(_PACKAGE)
        if is_ours and isinstance(made, type) and not hasattr(made.__init__, "__code__"):  # type: ignore[misc]  # only looked at
            return None if _has_outer_constructor(frame, made) else made
    return None


def _read_first_argument(frame: FrameType) -> object:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _has_outer_constructor(frame: FrameType, made: object) -> bool:
    """A constructor of the same instance called this one (`super().__init__()`)."""
    name, outer = frame.f_code.co_name, frame.f_back
    while outer is not None and outer.f_code.co_name == name:
        if _read_first_argument(outer) is made:
            return True
        outer = outer.f_back
    return False


def _is_in_transaction(frame: FrameType) -> bool:
    caller: FrameType | None = frame
    while caller is not None:
        code = caller.f_code
        if code.co_name in _TRANSACTION_FUNCTIONS and code.co_filename in _TRANSACTION_FILES:
            return True
        caller = caller.f_back
    return False


def _find_place(frame: FrameType) -> str:
    """The innermost line of `tollway` that is not a constructor itself."""
    caller = frame.f_back
    while caller is not None:
        code = caller.f_code
        if code.co_filename.startswith(_ROOT) and code.co_name != "__init__":
            return f"{code.co_filename.removeprefix(_ROOT)}:{caller.f_lineno} {code.co_qualname}"
        caller = caller.f_back
    return "outside tollway"
