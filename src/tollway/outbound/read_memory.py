"""How much of an answer one read may bring, and the memory it comes into: one for all connections of an event loop, as nothing
stays in it between two calls.

A reader who is quick gets more at once, which is what a long answer's speed is made of; a few of those who are get more than a
connection's buffer. So readers who stand still hold a buffer each, and no more, however quick they were before.
"""

HEAD_READ_BYTES = 16 * 1024
"""What a read may bring beside the first measure of body, where the head comes with it."""
FIRST_READ_BYTES = 16 * 1024
LARGE_BUFFERS = 4
"""A large read brings so many buffers at once."""
LARGE_READERS_MAX = 16


class ReadBuffer:
    """`first_size`, and what `grow` gives, are measures: bytes that the next read of one connection may bring. Whoever has one
    gives it back."""

    __slots__ = ("_buffer_bytes", "_large", "_large_max", "view")

    def __init__(self, buffer_bytes: int, *, large_max: int = LARGE_READERS_MAX) -> None:
        self.view = memoryview(
            bytearray(max(HEAD_READ_BYTES + FIRST_READ_BYTES, LARGE_BUFFERS * buffer_bytes))
        )
        self._buffer_bytes = buffer_bytes
        self._large_max = large_max
        self._large = 0

    @property
    def first_size(self) -> int:
        return min(FIRST_READ_BYTES, self._buffer_bytes)

    @property
    def head(self) -> memoryview:
        """For a head, with as much of the body as comes with it: most answers are whole with their first bytes. It is not
        known yet how quick the reader is."""
        return self.view[: HEAD_READ_BYTES + self.first_size]

    def grow(self, size: int) -> int:
        """Twice as much, as far as there is room."""
        buffer_bytes, twice = self._buffer_bytes, 2 * size
        if size > buffer_bytes:
            return min(twice, LARGE_BUFFERS * buffer_bytes)
        if twice <= buffer_bytes:
            return twice
        if self._large >= self._large_max:
            return buffer_bytes
        self._large += 1
        return min(twice, LARGE_BUFFERS * buffer_bytes)

    def release_size(self, size: int) -> int:
        """The first measure, for this one."""
        if size > self._buffer_bytes:
            self._large -= 1
        return self.first_size
