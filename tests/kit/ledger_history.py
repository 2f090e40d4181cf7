"""What the histories of a ledger share: steps drawn from a seed, each of them applied to every given ledger, whose outcomes must be equal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.contracts.test_metered_calls import METERING, usage_of
from tests.kit.ledger_records import close_of, finish_of, wait_finished
from tollway.ledger.ledger import Claim, Claimed
from tollway.ledger.records import CallState

Gateways = Sequence[Any]
"""The gateways of one ledger."""

AUDITED_EACH = 10


class Step(NamedTuple):
    kind: str
    number: int


def draw_steps(seed: int, kinds: Sequence[str], *, length: int) -> list[Step]:
    random = Random(seed)
    return [Step(random.choice(kinds), random.randrange(1_000)) for _ in range(length)]


@dataclass(slots=True, kw_only=True)
class Run:
    """A call that may still change. `owner`: the number of the gateway that runs it."""

    claim: Claim
    owner: int
    epoch: int = 1


@dataclass(slots=True, kw_only=True)
class LedgerHistory:
    """A step is the method of its kind, such as `_end`. A history adds its own steps, and `check`, its laws after each step."""

    ledgers: Sequence[Gateways]
    name: str
    runs: dict[str, Run] = field(default_factory=dict)

    async def walk(self, steps: Sequence[Step]) -> None:
        for number, step in enumerate(steps):
            await getattr(self, f"_{step.kind}")(step.number)
            await self.check(f"{self.name}, step {number}: {step}")
            if number % AUDITED_EACH == 0:
                await self.audit()

    async def check(self, where: str) -> None:
        raise NotImplementedError

    async def audit(self) -> None:
        for gateways in self.ledgers:
            assert (await gateways[0].audit()).wrong == ()

    # ---- Steps.

    async def _claim(self, number: int, **fields: Any) -> None:
        raise NotImplementedError

    async def _stream(self, number: int) -> None:
        await self._claim(number, price_units=20, price="0.00002", metering=METERING)

    async def _close(self, run: Run, number: int, *, paid_by_chain: CallState) -> None:
        """Ends a forwarding call. `paid_by_chain`: the end of a call by authorisation that is not released."""
        after = (CallState.CONSUMED, CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN)[number % 4]
        if run.claim.authorization is not None and after is CallState.CONSUMED:
            after = paid_by_chain
        fields: dict[str, Any] = {"epoch": run.epoch, "is_metered": run.claim.metering is not None}
        if after is CallState.UNKNOWN:
            fields["upstream_status"] = None
        if run.claim.metering is not None and after is CallState.CONSUMED and number % 3 == 0:
            fields["finish"] = finish_of(run.claim, epoch=run.epoch, usage=usage_of(number % 20))
        await self._each(run.owner, "close", close_of(run.claim, after, **fields))

    async def _measure(self, number: int) -> None:
        for run in self.runs.values():
            record = await self.ledgers[0][0].find_call(run.claim.call_id)
            if record.is_unmeasured:
                finish = finish_of(run.claim, epoch=run.epoch, usage=usage_of(number % 20))
                for gateways in self.ledgers:
                    gateways[run.owner].finish(finish)
                    await wait_finished(gateways[0], run.claim.call_id)
                return

    async def _open_again(self, run: Run | None, owner: int, *, now_ms: int) -> None:
        if run is None or run.claim.authorization is not None:
            return
        outcomes = await self._each(owner, "reopen", run.claim.call_id, epoch=run.epoch, now_ms=now_ms)
        if isinstance(outcomes[0], Claimed):
            run.epoch, run.owner = run.epoch + 1, owner

    # ---- Every ledger.

    async def _claim_each(self, claims: Sequence[Claim], owner: int) -> list[Any]:
        """A claim for each ledger, of one call."""
        return [
            await gateways[owner].claim(claim) for gateways, claim in zip(self.ledgers, claims, strict=True)
        ]

    async def _each(self, owner: int, method: str, *values: Any, **options: Any) -> list[Any]:
        """Calls a method of that gateway of each ledger."""
        return equal(
            [await getattr(gateways[owner], method)(*values, **options) for gateways in self.ledgers]
        )


def equal(outcomes: list[Any]) -> list[Any]:
    assert outcomes == [outcomes[0]] * len(outcomes)
    return outcomes
