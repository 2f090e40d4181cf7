"""The limits of requests in flight and of memory."""

import pytest

from tollway.errors import Code, Problem
from tollway.limits import Limits
from tollway.web.http.admission import MEMORY_CHECK_INTERVAL_S, LoadShedder, read_resident_bytes


class Machine:
    def __init__(self, **limits: int) -> None:
        self.now_s = 0.0
        self.memory_bytes = 0
        self.looks = 0
        self.shedder = LoadShedder(
            limits=Limits(**limits), clock=lambda: self.now_s, read_memory_bytes=self.read_memory
        )

    def read_memory(self) -> int:
        self.looks += 1
        return self.memory_bytes


def fill(shedder: LoadShedder, count: int) -> list[Problem | None]:
    return [shedder.enter(f"address {number}") for number in range(count)]


@pytest.mark.parametrize(("most", "let_in"), [(100, 95), (20, 19), (10, 9), (1, 1)])
def test_admits_until_95_percent_of_the_requests_are_in_flight(most: int, let_in: int) -> None:
    shedder = Machine(in_flight_max=most).shedder
    entered = fill(shedder, most + 5)
    assert entered.index(next(one for one in entered if one is not None)) == let_in
    assert sum(one is None for one in entered) == let_in == shedder.running
    assert shedder.is_full()
    shedder.leave("address 0")
    assert not shedder.is_full()
    assert shedder.enter("192.0.2.9") is None


def test_a_refusal_has_a_delay_and_no_payment() -> None:
    shedder = Machine(in_flight_max=1).shedder
    shedder.enter("a")
    problem = shedder.enter("b")
    assert problem is not None
    assert (problem.code, problem.retry_after_s, problem.payment_state) == (Code.OVERLOADED, 2, "none")


def test_an_address_has_a_limit_that_leaves_others_alone() -> None:
    shedder = Machine(in_flight_per_address_max=2).shedder
    assert [shedder.enter("a"), shedder.enter("a")] == [None, None]
    problem = shedder.enter("a")
    assert problem is not None
    assert (problem.code, problem.reason, problem.retry_after_s) == (Code.OVERLOADED, "address", 1)
    assert shedder.enter("b") is None
    assert shedder.running == 3
    shedder.leave("a")
    assert shedder.enter("a") is None


@pytest.mark.parametrize(("taken", "is_full"), [(0, False), (949, False), (950, True), (2_000, True)])
def test_memory_is_full_at_95_percent(taken: int, is_full: bool) -> None:
    machine = Machine(memory_bytes_max=1_000)
    machine.memory_bytes = taken
    assert machine.shedder.is_full() is is_full
    assert (machine.shedder.enter("a") is not None) is is_full


def test_without_a_memory_limit_the_memory_is_never_read() -> None:
    machine = Machine()
    machine.memory_bytes = 10**15
    assert not machine.shedder.is_full()
    assert machine.looks == 0


def test_memory_is_read_at_an_interval_and_a_full_gateway_recovers() -> None:
    machine = Machine(memory_bytes_max=1_000)
    machine.memory_bytes = 1_000
    assert all(machine.shedder.is_full() for _ in range(100))
    assert machine.looks == 1
    machine.memory_bytes = 10
    assert machine.shedder.is_full()
    machine.now_s += MEMORY_CHECK_INTERVAL_S
    assert not machine.shedder.is_full()
    assert machine.looks == 2


def test_reads_the_memory_of_this_process() -> None:
    resident = read_resident_bytes()
    assert resident == 0 or 2**20 < resident < 2**40
