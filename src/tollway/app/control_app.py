"""A control worker: a process that serves the control plane of a gateway, and no call. Its gateway starts it (`app/control_workers.py`).

It is the gateway's application over the same PostgreSQL without the paths that pay or settle (`web/api/misdirected.py`). It has no lease, no duty of the fleet and
no key of gas: of each gas key it keeps the address, to know what a 402 offers. Beside requests it reads what every process reads for itself: the shared time, blocked
wallets, budgets, webhook endpoints, nodes, gas prices, the tables' version; it also embeds listings for the search by meaning. It ends when its gateway does.
"""

import argparse
import asyncio
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import uvloop

from tollway.app.control_workers import NOT_READY, READY, REPORT_INTERVAL_S
from tollway.app.lifecycle import App, freeze_objects
from tollway.config.networks import NetworkSettings
from tollway.config.settings import Settings, load_settings
from tollway.errors import SettingsInvalid
from tollway.observability.telemetry import configure_logging

PARENT_GONE = 1
"""The exit code of a worker whose gateway has ended."""


class ControlApp(App):
    """The composition root of one control worker. `listener`: the descriptor of the socket that all workers share."""

    def __init__(self, settings: Settings, *, listener: int) -> None:
        super().__init__(drop_gas_keys(settings), control_listener=listener)

    async def _open(self) -> None:
        await self.database.open()
        self._stack.push_async_callback(self.database.close)
        await self.schema.prepare()
        await self.chains.open()
        self._stack.push_async_callback(self.chains.close)
        self._stack.push_async_callback(self.http_client.close)
        await self.settlement_services.open()
        self._stack.push_async_callback(self.settlement_services.close)
        await self._renew()
        tasks = await self._start_views()
        self.settlement_services.follow(tasks)
        self.reputation_services.probe(tasks)
        self.webhook_services.follow(tasks)

    async def _renew(self) -> None:
        """Reads the shared time: a control worker has no lease to renew."""
        await self.ledger.follow_clock()

    async def serve_reporting(self, reports: int) -> None:
        """Serves until `stop`, and reports to the gateway whether this worker takes requests."""
        freeze_objects()
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(self._report_readiness(reports))
            try:
                await self.server.serve()
            finally:
                reporting.cancel()

    async def _report_readiness(self, reports: int) -> None:
        await self.server.wait_up()
        while True:
            is_ready = all((await self.check_traffic()).values())
            os.write(reports, READY if is_ready else NOT_READY)
            await asyncio.sleep(REPORT_INTERVAL_S)


def drop_gas_keys(settings: Settings) -> Settings:
    """The settings with the address of each gas key in its place, and without workers of their own."""

    def drop(network: NetworkSettings) -> NetworkSettings:
        keys = tuple(key.without_key() for key in network.settlement.gas_keys)
        return replace(network, settlement=replace(network.settlement, gas_keys=keys))

    networks = tuple(drop(network) for network in settings.networks)
    return settings.model_copy(update={"networks": networks, "control_workers": 0})


def end_with_parent() -> None:
    """Ends this process at once when standard input closes: its gateway has ended. In a thread, so that an event loop that stands still does not hinder it."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(PARENT_GONE)

    threading.Thread(target=wait, name="parent", daemon=True).start()


async def run(settings: Settings, *, listener: int, reports: int) -> None:
    app = ControlApp(settings, listener=listener)
    async with app:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, app.stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, app.toggle_debug)
        await app.serve_reporting(reports)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="A control worker of `tollway gateway serve`, which starts it."
    )
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--reports", type=int, required=True)
    parser.add_argument("--config", type=Path)
    options = parser.parse_args()
    end_with_parent()
    try:
        settings = load_settings(os.environ, config=options.config)
        configure_logging(
            level=settings.log_level, style=settings.log_format, journal=os.environ.get("JOURNAL_STREAM")
        )
        uvloop.run(run(settings, listener=options.listener, reports=options.reports))
    except SettingsInvalid as exc:
        sys.exit("\n".join(f"control worker: {problem}" for problem in exc.problems))


if __name__ == "__main__":
    main()
