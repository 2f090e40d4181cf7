"""A network of our own for one process: every address in the world is local, names are answered by a server of ours.

Linux with unprivileged user namespaces, or root. Where that is not permitted, `why_not` says so in a sentence.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--fork", "--kill-child")
_PREPARE = """
set -e
ip link set lo up
ip route add local default dev lo
ip -6 route add local default dev lo
printf 'nameserver 127.0.0.1\\noptions timeout:1 attempts:1\\n' > "$0/resolv.conf"
printf '127.0.0.1 localhost\\n::1 localhost\\n' > "$0/hosts"
printf 'hosts: files dns\\n' > "$0/nsswitch.conf"
for name in resolv.conf hosts nsswitch.conf; do mount --bind "$0/$name" "/etc/$name"; done
exec "$@"
"""
"""`local default`: whatever is dialled arrives here, so that a canary sees every address that was."""


def why_not() -> str | None:
    """Why there can be no network of our own here; None when there can."""
    try:
        tried = subprocess.run(
            [*_UNSHARE, "sh", "-c", "ip link set lo up && ip route add local default dev lo"],
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"namespaces cannot be made here: {exc}"
    told = tried.stderr.decode(errors="replace").strip()
    return None if tried.returncode == 0 else f"namespaces are not permitted here: {told or tried.returncode}"


def run_inside(program: str, *arguments: str, folder: Path, deadline_s: float) -> dict[str, Any]:
    """What a module of this folder reports, run as a program in a network of its own. It prints JSON on the last line."""
    ended = subprocess.run(
        [
            *_UNSHARE,
            "sh",
            "-c",
            _PREPARE,
            str(folder),
            sys.executable,
            "-m",
            f"tests.system.attack.{program}",
            str(folder),
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        timeout=deadline_s,
        check=False,
    )
    told = ended.stdout.decode(errors="replace").strip().splitlines()
    if ended.returncode or not told:
        raise RuntimeError(ended.stderr.decode(errors="replace")[-6000:] or f"exit code {ended.returncode}")
    report: dict[str, Any] = json.loads(told[-1])
    return report
