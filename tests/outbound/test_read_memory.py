"""What one read may bring: more for those who are quick, much for a few of them."""

from tollway.outbound.read_memory import FIRST_READ_BYTES, HEAD_READ_BYTES, LARGE_BUFFERS, ReadMemory

BUFFER_BYTES = 64 * 1024


def grow_fully(memory: ReadMemory) -> int:
    measure = memory.first
    while (more := memory.grow(measure)) != measure:
        measure = more
    return measure


def test_a_quick_reader_gets_twice_as_much_each_time() -> None:
    memory, measures = ReadMemory(BUFFER_BYTES), [FIRST_READ_BYTES]
    for _ in range(6):
        measures.append(memory.grow(measures[-1]))
    assert [measure // 1024 for measure in measures] == [16, 32, 64, 128, 256, 256, 256]
    assert len(memory.view) == LARGE_BUFFERS * BUFFER_BYTES
    assert len(memory.head) == HEAD_READ_BYTES + FIRST_READ_BYTES


def test_only_so_many_have_more_than_a_buffer_until_one_gives_it_back() -> None:
    memory = ReadMemory(BUFFER_BYTES, large_max=2)
    large = [grow_fully(memory) for _ in range(2)]
    assert large == [LARGE_BUFFERS * BUFFER_BYTES] * 2
    assert [grow_fully(memory) for _ in range(3)] == [BUFFER_BYTES] * 3

    assert memory.give_back(BUFFER_BYTES) == FIRST_READ_BYTES
    assert grow_fully(memory) == BUFFER_BYTES, "that one had no large measure to give"

    assert memory.give_back(large[0]) == FIRST_READ_BYTES
    assert grow_fully(memory) == LARGE_BUFFERS * BUFFER_BYTES
    assert grow_fully(memory) == BUFFER_BYTES


def test_a_measure_is_never_more_than_a_small_buffer() -> None:
    assert ReadMemory(1_000).first == 1_000
