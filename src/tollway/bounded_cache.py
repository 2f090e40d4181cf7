"""A cache that is bounded by entries and by bytes, for keys or values whose size a caller or a provider chooses; and a dictionary that is
bounded by entries alone, for those of a fixed size.

A cache that is bounded by entries alone holds as many bytes as an attacker likes: 8,192 headers of 30 KiB are 240 MiB. Here an entry over
`entry_bytes_max` is not stored at all, and the least recently used entries go until the others fit. The bytes of an entry are counted by
its owner: those that an attacker chooses. What Python needs around an entry is bounded by the number of entries.

For one event loop. Pure: no clock; nothing expires.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dictionary of at most `entries_max` entries: a new one ends the entry that was written or moved to the end least recently."""

    __slots__ = ("_entries_max",)

    def __init__(self, *, entries_max: int) -> None:
        super().__init__()
        self._entries_max = entries_max

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._entries_max:
            self.popitem(last=False)


class BoundedCache(Generic[K, V]):
    """An LRU cache of at most `entries_max` entries and `bytes_max` bytes, each entry of at most `entry_bytes_max` bytes."""

    __slots__ = (
        "_bytes_max",
        "_entries",
        "_entries_max",
        "_entry_bytes_max",
        "_sizes",
        "find",
        "total_bytes",
        "touch",
    )

    find: Callable[[K], V | None]
    """The value of the key; None where it is not stored. The method of the dictionary itself, because each call uses it."""
    touch: Callable[[K], None]
    """Makes a stored entry the most recently used one. Raises KeyError where it is not stored."""

    def __init__(self, *, entries_max: int, bytes_max: int, entry_bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entry_bytes_max = entry_bytes_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._sizes: dict[K, int] = {}
        self.total_bytes = 0
        self.find = self._entries.get
        self.touch = self._entries.move_to_end

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V, *, size_bytes: int) -> bool:
        """Stores the value as the most recently used one, in place of an older value of the key. False, and the older value is dropped,
        where the entry is too large to store."""
        self.drop(key)
        if size_bytes > self._entry_bytes_max or size_bytes > self._bytes_max:
            return False
        self._entries[key] = value
        self._sizes[key] = size_bytes
        self.total_bytes += size_bytes
        while len(self._entries) > self._entries_max or self.total_bytes > self._bytes_max:
            self.drop(next(iter(self._entries)))
        return True

    def drop(self, key: K) -> None:
        """Has no effect where the entry is not stored."""
        if key in self._entries:
            del self._entries[key]
            self.total_bytes -= self._sizes.pop(key)
