"""One stream of 100 MiB: directly, through nginx and through a paid call. Throughput, time to the first byte, memory of the gateway."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from machine import forget_peak, read_memory_kib
from throughput import summarise
from upstream import BLOB_BYTES

DEADLINE_S = 60.0
READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One download. `first_byte_ms`: of the body."""

    mib_per_s: float
    first_byte_ms: float


def download(port: int, request: bytes) -> Stream:
    """A download on its own connection, opened before the timing. Raises RuntimeError when it is incomplete."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as line:
        buffer = bytearray(READ_BYTES)
        start = time.perf_counter()
        line.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            received = line.recv(READ_BYTES)
            if not received:
                raise RuntimeError(f"closed before its head: {head[:200]!r}")
            head += received
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head[:500].decode(errors="replace"))
        head, _, body = head.partition(b"\r\n\r\n")
        is_chunked = b"transfer-encoding: chunked" in head.lower()
        got = len(body)
        first = time.perf_counter() if got else 0.0
        end = body[-5:]
        while got < BLOB_BYTES or (is_chunked and end != b"0\r\n\r\n"):
            count = line.recv_into(buffer)
            if not count:
                raise RuntimeError(f"closed after {got} bytes")
            first = first or time.perf_counter()
            got += count
            end = (end + bytes(buffer[max(0, count - 5) : count]))[-5:]
        taken = time.perf_counter() - start
    return Stream(mib_per_s=BLOB_BYTES / 2**20 / taken, first_byte_ms=(first - start) * 1000)


class Streams:
    """Rounds of downloads by name, and the memory of the gateway."""

    def __init__(self, requests: Mapping[str, tuple[int, bytes]], *, gateway_pid: int) -> None:
        self._requests = requests
        self._pid = gateway_pid
        self._found: dict[str, list[Stream]] = {name: [] for name in requests}
        self._memory: dict[str, int] = {}

    def run_rounds(self, *, rounds: int, tell: Callable[[str], None]) -> None:
        for port, request in self._requests.values():
            download(port, request)
        before = read_memory_kib(self._pid)
        forget_peak(self._pid)
        for number in range(rounds):
            names = list(self._requests)
            for name in names if number % 2 == 0 else reversed(names):
                stream = download(*self._requests[name])
                self._found[name].append(stream)
                tell(
                    f"100 MiB: {name}: {stream.mib_per_s:,.0f} MiB/s, first byte {stream.first_byte_ms:.2f} ms"
                )
        self._memory = {
            "beforeKiB": before,
            "peakKiB": read_memory_kib(self._pid, "VmHWM"),
            "afterKiB": read_memory_kib(self._pid),
        }

    def tell(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            name: {
                "mibPerSecond": summarise([stream.mib_per_s for stream in streams], 1),
                "firstByteMs": summarise([stream.first_byte_ms for stream in streams]),
            }
            for name, streams in self._found.items()
        }
        return {**told, "gatewayMemory": self._memory}

    def compare(self, ours: str, theirs: str) -> dict[str, Any]:
        pairs = zip(self._found[ours], self._found[theirs], strict=True)
        return summarise([mine.mib_per_s / its.mib_per_s for mine, its in pairs])

    def tell_first_byte_added(self, ours: str, over: str) -> dict[str, Any]:
        pairs = zip(self._found[ours], self._found[over], strict=True)
        return summarise([mine.first_byte_ms - its.first_byte_ms for mine, its in pairs])

    def peak_growth_kib(self) -> int:
        return self._memory["peakKiB"] - self._memory["beforeKiB"]
