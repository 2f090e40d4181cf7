"""Random bytes drawn in advance: never the same ones twice, and rarely a question to the system."""

import os

import pytest

from tollway.app.runtime import POOL_BYTES, RandomPool


class Source:
    """A counter, so that every drawn byte is distinguishable."""

    def __init__(self) -> None:
        self.draws: list[int] = []

    def draw(self, size: int) -> bytes:
        self.draws.append(size)
        return bytes([len(self.draws)]) * size


def test_bytes_are_drawn_some_hundred_names_at_a_time() -> None:
    source = Source()
    entropy = RandomPool(source.draw)
    for _ in range(POOL_BYTES // 10):
        assert len(entropy.take_bytes(10)) == 10
    assert source.draws == [POOL_BYTES]
    entropy.take_bytes(10)
    assert source.draws == [POOL_BYTES, POOL_BYTES]


def test_what_does_not_fit_any_more_is_drawn_whole() -> None:
    source = Source()
    entropy = RandomPool(source.draw)
    entropy.take_bytes(POOL_BYTES - 1)
    assert entropy.take_bytes(2) == b"\x02\x02"
    assert len(entropy.take_bytes(2 * POOL_BYTES)) == 2 * POOL_BYTES


def test_no_bytes_are_given_out_twice() -> None:
    entropy = RandomPool()
    taken = [entropy.take_bytes(16) for _ in range(1_000)]
    assert len(set(taken)) == len(taken)


@pytest.mark.process
def test_a_forked_child_does_not_repeat_its_parent() -> None:
    entropy = RandomPool()
    entropy.take_bytes(16)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, entropy.take_bytes(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 16) != entropy.take_bytes(16)
