import asyncio
import enum
import importlib
import inspect
import pkgutil
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

import tollway
from tests.kit.object_counter import Creations, ObjectCounter
from tests.kit.payer import USDC
from tests.kit.waits import DEADLINE_S
from tollway.errors import Code, FieldError, Problem, Refusal
from tollway.ids import Address, CallId, TxHash
from tollway.ledger.records import KeyName
from tollway.observability.background import run_all
from tollway.outbound.http1 import HeadLimits, ResponseParser
from tollway.storage.engine.postgres import NoServerAvailable

PROBLEM = Problem(code=Code.OVERLOADED, detail="")
FIELD = FieldError(code="too_long", detail="")
NAME = KeyName(payer=Address(20), key="")
LIMITS = HeadLimits(head_bytes=1, line_bytes=1, headers=1)


def raise_refusal() -> None:
    with pytest.raises(Refusal):
        raise Refusal(PROBLEM)


def count(make: Callable[[], object]) -> Creations:
    counter = ObjectCounter()
    with counter.counting() as creations:
        make()
    return creations


@pytest.mark.parametrize(
    ("make", "made"),
    [
        (lambda: None, {}),
        (lambda: FieldError(code="", detail=""), {"errors.FieldError": 1}),
        (lambda: replace(FIELD, code="x"), {"errors.FieldError": 1}),
        (lambda: [replace(FIELD, code=text) for text in "abc"], {"errors.FieldError": 3}),
        (lambda: KeyName(payer=NAME.payer, key=""), {"ledger.records.KeyName": 1}),
        (lambda: NAME._replace(key="1"), {"ledger.records.KeyName": 1}),
        (lambda: ResponseParser("GET", LIMITS), {"outbound.http1.ResponseParser": 1}),
        (raise_refusal, {"errors.Refusal": 1}),
        (lambda: TxHash.parse("0x" + "00" * 32), {}),
        (lambda: (Code("overloaded"), CallId("x")), {}),
    ],
)
def test_each_instance_is_counted_once(make: Callable[[], object], made: dict[str, int]) -> None:
    creations = count(make)
    found = {}
    for (kind, _), number in creations.in_call.items():
        found[kind] = found.get(kind, 0) + number
    assert found == made
    assert creations.sums == (sum(made.values()), 0)


def test_a_thread_that_starts_inside_is_counted() -> None:
    counter = ObjectCounter()
    begin = threading.Event()

    def make() -> None:
        begin.wait(DEADLINE_S)
        FieldError(code="", detail="")

    with counter.watching():
        thread = threading.Thread(target=make)
        thread.start()
    with counter.counting() as creations:
        begin.set()
        thread.join(DEADLINE_S)
    assert creations.sums == (1, 0)


def test_nothing_is_counted_afterwards() -> None:
    creations = count(lambda: None)
    replace(FIELD, code="x")
    assert creations.sums == (0, 0)


def test_functions_and_modules_are_those_of_the_product() -> None:
    creations = count(lambda: [TxHash.parse("0x" + "00" * 32) for _ in range(2)])
    assert [code.co_qualname for code in creations.functions] == ["TxHash.parse"]
    assert [path.rpartition("/")[2] for path in creations.modules] == ["ids.py"]
    assert creations.moves == 2, "each was begun by another package"


def test_a_move_is_counted_where_a_function_begins_one_of_another_module() -> None:
    creations = count(lambda: [USDC.network, USDC.network])
    assert {path.rpartition("/")[2] for path in creations.modules} == {"money.py", "ids.py"}
    assert creations.moves == 4


@pytest.mark.parametrize("waits", [0, 5])
def test_a_wait_is_no_move(waits: int) -> None:
    async def wait() -> None:
        for _ in range(waits):
            await asyncio.sleep(0)

    creations = count(lambda: asyncio.run(run_all([wait])))
    assert {code.co_qualname for code in creations.functions} == {"run_all", "_catch", "_result_of"}
    assert creations.moves == 2, "the event loop begins `_catch`"


UNSEEN = {Address, TxHash, NoServerAvailable}
"""Some of what is made by the constructor of a built-in type alone."""


def test_no_record_of_the_product_is_made_unseen() -> None:
    """A class of another library's making (a struct in C) would not be counted: here it would be found."""
    unseen = set()
    for package in (
        "chain",
        "gateway",
        "identity",
        "ledger",
        "outbound",
        "payments",
        "rate_limits",
        "storage",
        "web",
    ):
        for module in pkgutil.walk_packages([f"{tollway.__path__[0]}/{package}"], f"tollway.{package}."):
            if not module.ispkg and ".migrations." not in module.name:
                unseen |= set(filter(is_unseen, vars(importlib.import_module(module.name)).values()))
    assert unseen >= UNSEEN
    records = {kind for kind in unseen if not issubclass(kind, Exception | bytes | str | dict)}
    assert not records


def is_unseen(one: object) -> bool:
    return (
        inspect.isclass(one)
        and one.__module__.startswith("tollway.")
        and not issubclass(one, enum.Enum)
        and not getattr(one, "_is_protocol", False)
        and not hasattr(one.__init__, "__code__")
        and not hasattr(one.__new__, "__code__")
    )
