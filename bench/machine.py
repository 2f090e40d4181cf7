"""The machine of a benchmark: its cores, its processes, and their CPU and memory. Linux, from /proc.

This module does not depend on Tollway.
"""

import contextlib
import ctypes
import os
import platform
import shlex
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

GATEWAY_CORE, LOAD_CORE = 0, 1
"""What is measured has the first to itself; load, upstream, databases, chain and this harness share the other."""

ROOT = Path(__file__).resolve().parent.parent
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PACKAGES = ("granian", "aiohttp", "uvloop", "httptools", "coincurve", "SQLAlchemy", "asyncpg", "starlette")
EXTRAS = {"search": "wordllama", "redis": "redis", "otel": "opentelemetry-sdk"}
"""The extras of a gateway, each by a package that it alone brings. A gateway loads them where its settings or its callers use them."""

_PR_SET_PDEATHSIG = 1


def pin(core: int) -> None:
    """Pins this process, and every process that it starts later, to one core, when the machine has so many cores."""
    if core < (os.cpu_count() or 1):
        os.sched_setaffinity(0, {core})


def prepare_child(core: int) -> Callable[[], None]:
    """Runs in a child before its program: pins it to its core, and lets the kernel kill it when its parent dies."""
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        pin(core)

    return prepare


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def list_family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.extend(map(int, task.read_text().split()))
    return found


def count_cpu_s(pids: Iterable[int]) -> float:
    """User and system time of these processes; ended ones count zero."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_S


def count_server_cpu_s(pid: int) -> float:
    """User and system time of a server with child processes: its own, that of running children, and that of ended
    ones."""
    ticks = 0.0
    for one in list_family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own two, and those of children that it has waited for
    return ticks * TICK_S


def count_busy_s(core: int) -> float:
    """The time since the start of the machine in which that core was not idle."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            fields = [int(field) for field in line.split()[1:9]]
            return (sum(fields) - fields[3] - fields[4]) * TICK_S
    return 0.0


def read_memory_kib(pid: int, field: str = "VmRSS") -> int:
    """`VmRSS`: resident memory now; `VmHWM`: its maximum since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def describe_machine(folder: Path) -> dict[str, Any]:
    """`folder`: the folder of the databases of this run."""
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {
        "cpu": ", ".join(sorted(models)) or platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "memoryMiB": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "databasesOn": find_filesystem(folder),
        "loadBefore": [round(load, 2) for load in os.getloadavg()],
    }


def find_filesystem(folder: Path) -> str:
    """The type of the file system of a folder: on tmpfs a flush does nothing."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        mounted = left.split()[4]
        if folder.resolve().is_relative_to(mounted) and len(mounted) > len(best):
            best, kind = mounted, right.split()[0]
    return kind


def describe_packages() -> dict[str, str]:
    versions = {"python": platform.python_version(), "pythonBuild": describe_build()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    versions["extras"] = ", ".join(extra for extra, name in EXTRAS.items() if is_installed(name)) or "none"
    return versions


def is_installed(name: str) -> bool:
    return any(metadata.distributions(name=name))


def describe_build() -> str:
    """The compiler of this interpreter and the options that it was configured with, without those that name a folder."""
    options = shlex.split(str(sysconfig.get_config_var("CONFIG_ARGS") or ""))
    return " ".join((platform.python_compiler(), *(option for option in options if "/" not in option)))


def describe_commit() -> dict[str, Any]:
    """The commit, and the changed files of the project. Result files do not count."""

    def git(*arguments: str) -> str:
        told = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
        return told.stdout

    changed = [line[3:] for line in git("status", "--porcelain").splitlines()]
    changed = [path for path in changed if not path.startswith("bench/results/")]
    return {
        "commit": git("rev-parse", "HEAD").strip() or None,
        "isDirty": bool(changed),
        "changed": changed[:50],
    }
