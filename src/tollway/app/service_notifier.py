"""Notifications to the service manager: systemd's protocol (sd_notify(3)), for a unit with `Type=notify`.

One datagram for each state, to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is sent. A manager that does not take a datagram delays
and ends nothing.
"""

import os
import socket
from collections.abc import Mapping
from typing import Self

import structlog

_log = structlog.get_logger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"
WATCHDOG_PARTS = 3
"""Notifications within one `WatchdogSec`: one may be late, and the unit is not restarted for it."""


class ServiceNotifier:
    """The sender of notifications. `address`: of the manager's socket; None sends nothing.

    `watchdog_interval_s`: the pause between two `WATCHDOG` notifications; None where the manager expects none.
    """

    def __init__(self, *, address: str | None, watchdog_interval_s: float | None) -> None:
        self._address = address
        self.watchdog_interval_s = watchdog_interval_s
        self._is_reachable = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, *, pid: int | None = None) -> Self:
        """Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` (sd_watchdog_enabled(3)). A value that cannot be read counts as absent."""
        name = environment.get("NOTIFY_SOCKET", "")
        if not name.startswith(("/", "@")):
            return cls(address=None, watchdog_interval_s=None)
        address = f"\0{name[1:]}" if name.startswith("@") else name
        period, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        is_expected = period.isascii() and period.isdigit() and int(period) > 0
        is_ours = owner in ("", str(os.getpid() if pid is None else pid))
        interval_s = int(period) / 1e6 / WATCHDOG_PARTS if is_expected and is_ours else None
        return cls(address=address, watchdog_interval_s=interval_s)

    def notify(self, state: str) -> None:
        """Sends one state. Does not wait: a full queue of the manager loses it."""
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), self._address)
        except OSError as exc:
            if self._is_reachable:
                _log.warning("service_manager_away", state=state, error=str(exc))
            self._is_reachable = False
        else:
            self._is_reachable = True

    async def notify_watchdog(self) -> None:
        """Reports that the event loop runs."""
        self.notify(WATCHDOG)
