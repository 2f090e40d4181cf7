"""One history: gateways, callers, an upstream, a chain and a database, and the events that one seed causes.

`play` draws a world and its steps from (seed, number) alone. Every outcome is recorded in order, so that two machines
can be compared, and one history replayed step by step. The part of the gateway is written here in the order of
`gateway.proxy`; the ledger decides everything about money.
"""

from collections.abc import Callable
from typing import Any

from tests.kit.ledger_records import CHAIN, PAYEE, USDC
from tests.long.simulation.history_run import HOLD_MS, LEASE_MS, Story
from tests.long.simulation.oracle import Laws, Request, need
from tests.long.simulation.provider import Provider
from tollway.ledger.claims import CreditAccount
from tollway.ledger.records import CallState


class History(Provider):
    """See `TourEvent` for what it is made with."""

    def __init__(self, seed: int, number: int, **options: Any) -> None:
        super().__init__(seed, number, **options)
        self._plot = self._draw_plot()

    def _draw_plot(self) -> tuple[list[Callable[[], Any]], list[float]]:
        wild = self._wildness
        has_auth = self._auth_share > 0
        weighted: list[tuple[float, Callable[[], Any]]] = [
            (2.2, self._show_new),
            (2.0, self._show_again),
            (0.7, self._race),
            (9.0, self._go_on),
            (0.8, self._wait),
            (0.7, self._recover),
            (0.4, self._pay),
            (0.3 + 0.5 * wild, self._leave_chain),
            (0.5, self._watch),
            (0.3, self._resolve),
            (0.6 * wild, self._kill),
            (0.4 * wild, self._come_back),
            (0.1 * wild, self._restore),
        ]
        if self.context.has_power_cuts:
            weighted.append((0.6, self._cut_power))
        if self.gateways_wanted > 1:
            weighted.append((0.7 * wild, self._stall))
        if has_auth:
            weighted += [(2.5, self._mine), (1.0, self._sweep)]
        total, sums = 0.0, []
        for weight, _ in weighted:
            total += weight
            sums.append(total)
        return [step for _, step in weighted], sums

    @property
    def requests(self) -> list[Request]:
        return self._requests

    @property
    def last_gateway(self) -> Any:
        """The gateway that remains at the end."""
        (gateway,) = self._gateways
        return gateway

    # ---- From the first step to the last.

    async def play(self, machine: Any) -> Story:
        self.machine = machine
        rows = getattr(machine, "rows", None)
        self._laws = Laws(rows, self.truth, hold_ms=HOLD_MS) if rows is not None else None
        for _ in range(self.gateways_wanted):
            await self._start()
        for _ in range(1 + int(self.random.random() * 2)):
            await self._pay()
        if self._crowd:
            await self._spend(self._crowd)
        if self._has_owner:
            await self._bind()
        steps, sums = self._plot
        for _ in range(self._steps):
            (step,) = self.random.choices(steps, cum_weights=sums)
            await step()
            if self._has_owner and self.owners.random() < 0.25:
                await self._own()
            if self._has_refunds and self.refunder.random() < 0.25:
                await self._give_back()
        await self._end()
        return self.story

    def _check_dropped(self) -> None:
        if self._laws is not None:
            for call_id in self.machine.rows.calls:
                is_wrong = self._laws.is_paid_for_nothing(call_id)
                need(not is_wrong, "an answer that was dropped is charged", call_id)

    async def _end(self) -> None:
        """After all faults, each call must have an outcome, or be held for a reason that its payer can read."""
        self._wildness = 0.0
        await self._come_back()
        self._gateways += self._stalled
        self._stalled.clear()
        for gateway in self._gateways:
            await gateway.recover(now_ms=self.machine.now_ms)  # it writes what is late
            self._check("recover")
        self._check_dropped()
        for gateway in list(self._gateways):
            await self._bury(gateway)
        self.machine.now_ms += 2 * LEASE_MS
        await self._start()
        self._check("recover")
        self.machine.now_ms += HOLD_MS + 1000
        await self._recover()
        await self._sweep()
        await self._continue()
        if self._laws is None:
            return
        self._laws.check_nothing_left()
        for call_id, call in self.machine.rows.calls.items():
            need(call.state is not CallState.FORWARDING, "a call is open for ever", call_id)
            is_left = call.state is CallState.SETTLING or (
                call.state is CallState.UNKNOWN and call.clock_releases
            )
            need(not is_left, "a call has no outcome and no reason", call_id)
        for payer in self._payers:
            (gateway,) = self._gateways
            told = sum(debt.units for debt in await gateway.debts(payer))
            need(
                told == self._laws.debt_of(CreditAccount(CHAIN, USDC, payer, PAYEE)),
                "debts do not add up",
                payer,
            )
