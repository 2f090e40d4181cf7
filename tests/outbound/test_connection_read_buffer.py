"""The read size of a connection: larger for fast readers, very large for a few of them."""

from tollway.outbound.connection import FIRST_READ_BYTES, HEAD_READ_BYTES, LARGE_BUFFERS, ReadBuffer

BUFFER_BYTES = 64 * 1024


def grow_fully(read_buffer: ReadBuffer) -> int:
    size = read_buffer.first_size
    while (more := read_buffer.grow(size)) != size:
        size = more
    return size


def test_a_fast_reader_gets_twice_the_size_each_time() -> None:
    read_buffer, measures = ReadBuffer(BUFFER_BYTES), [FIRST_READ_BYTES]
    for _ in range(6):
        measures.append(read_buffer.grow(measures[-1]))
    assert [size // 1024 for size in measures] == [16, 32, 64, 128, 256, 256, 256]
    assert len(read_buffer.view) == LARGE_BUFFERS * BUFFER_BYTES
    assert len(read_buffer.head) == HEAD_READ_BYTES + FIRST_READ_BYTES


def test_only_so_many_have_more_than_a_buffer_until_one_gives_it_back() -> None:
    read_buffer = ReadBuffer(BUFFER_BYTES, large_max=2)
    large = [grow_fully(read_buffer) for _ in range(2)]
    assert large == [LARGE_BUFFERS * BUFFER_BYTES] * 2
    assert [grow_fully(read_buffer) for _ in range(3)] == [BUFFER_BYTES] * 3

    assert read_buffer.release_size(BUFFER_BYTES) == FIRST_READ_BYTES
    assert grow_fully(read_buffer) == BUFFER_BYTES, "that one had no large measure to give"

    assert read_buffer.release_size(large[0]) == FIRST_READ_BYTES
    assert grow_fully(read_buffer) == LARGE_BUFFERS * BUFFER_BYTES
    assert grow_fully(read_buffer) == BUFFER_BYTES


def test_a_measure_is_never_more_than_a_small_buffer() -> None:
    assert ReadBuffer(1_000).first_size == 1_000
