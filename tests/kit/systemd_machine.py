"""A Debian with its own systemd, booted from a file tree: process, mount, host name and control group are its own, the network is this machine's.

It needs root, `unshare` and `nsenter` (util-linux), and control groups of version 2, beside those of version 1 where a machine has both. The tree is mounted
for the machine alone, so nothing stays mounted after its end. `/proc/sys` and `/sys` cannot be written: settings of the kernel are this machine's.
"""

import contextlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

GROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where version 2 is mounted: alone, or beside version 1."""
NAMESPACES = ("--mount", "--uts", "--ipc", "--pid", "--cgroup")
BOOT_DEADLINE_S = 60.0
RUN_DEADLINE_S = 180.0
POLL_S = 0.1
# Device nodes are those of this machine: `mknod` is refused in some sandboxes. Mounts are shared, as at the boot of a machine: systemd mounts the credentials of a unit in a
# mount namespace of its own, and they must arrive in the others.
BOOT = """
echo $$ > "$1/cgroup.procs"
exec unshare --pid --mount --uts --ipc --cgroup --fork --kill-child sh -ec '
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --bind "$0/proc/sys" "$0/proc/sys"
mount -o remount,bind,ro "$0/proc/sys"
mount -t sysfs -o ro sysfs "$0/sys"
mount -t cgroup2 cgroup2 "$0/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$0/run"
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
mount -t tmpfs -o mode=755 tmpfs "$0/dev"
for name in null zero full random urandom tty; do : > "$0/dev/$name"; mount --bind "/dev/$name" "$0/dev/$name"; done
mkdir "$0/dev/pts" "$0/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$0/dev/pts"
ln -s pts/ptmx "$0/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"
cd "$0"
mkdir -p before
pivot_root . before
umount -l /before
mount --make-rshared /
exec env -i container=unshare PATH=/usr/bin:/usr/sbin /lib/systemd/systemd --system --unit=multi-user.target
' "$0"
"""


def find_group_root() -> Path | None:
    """Where control groups of version 2 are mounted; None without them."""
    return next((root for root in GROUP_ROOTS if (root / "cgroup.controllers").exists()), None)


@dataclass(kw_only=True)
class SystemdMachine:
    """A booted machine. `root`: its file tree. Starts at once; `stop` ends every process of it."""

    root: Path
    log: Path
    _process: "subprocess.Popen[bytes]" = field(init=False)
    _group: Path = field(init=False)
    _init: int = field(init=False)

    def __post_init__(self) -> None:
        group_root = find_group_root()
        assert group_root is not None
        self._group = group_root / f"tollway-units-{os.getpid()}"
        self._group.mkdir()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-ec", BOOT, str(self.root), str(self._group)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_booted()
        except BaseException:
            self.stop()
            raise

    def _wait_booted(self) -> None:
        deadline = time.monotonic() + BOOT_DEADLINE_S
        output = ""
        while output not in ("running", "degraded"):
            assert self._process.poll() is None, self.log.read_text(errors="replace")
            assert time.monotonic() < deadline, f"{output}\n{self.log.read_text(errors='replace')}"
            time.sleep(POLL_S)
            children = ""
            with contextlib.suppress(OSError):  # it ends meanwhile: the next round says so
                children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
            if children:
                self._init = int(children.split()[0])
                output = self.try_run("systemctl is-system-running").stdout.strip()

    def try_run(self, script: str) -> "subprocess.CompletedProcess[str]":
        """Runs shell commands as root of the machine, in the home folder of root."""
        enter = ["nsenter", f"--target={self._init}", *NAMESPACES]
        return subprocess.run(
            [*enter, "bash", "-c", f"set -eu -o pipefail; cd\n{script}"],
            env={"PATH": "/usr/local/bin:/usr/bin:/usr/sbin", "HOME": "/root", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_DEADLINE_S,
            check=False,
        )

    def run(self, script: str) -> str:
        """The standard output of commands that must succeed."""
        done = self.try_run(script)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit, as `systemctl show` names them."""
        lines = self.run(f"systemctl show {unit} --property={','.join(properties)}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(BOOT_DEADLINE_S)
        deadline = time.monotonic() + BOOT_DEADLINE_S
        while (self._group / "cgroup.procs").exists():
            for folder in sorted(self._group.rglob("*"), key=lambda path: -len(path.parts)):
                if folder.is_dir():
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            with contextlib.suppress(OSError):
                self._group.rmdir()
            assert time.monotonic() < deadline, f"processes are left in {self._group}"
            time.sleep(POLL_S)


def missing_programs() -> list[str]:
    """What a machine needs and is not on this one."""
    missing = [name for name in ("mmdebstrap", "unshare", "nsenter") if shutil.which(name) is None]
    return missing if find_group_root() else [*missing, "control groups of version 2"]
