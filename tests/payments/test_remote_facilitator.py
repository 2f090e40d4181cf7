"""A facilitator by URL: what it is asked, and that its word decides nothing."""

import asyncio
import json
from typing import Any

import pytest

from tollway.errors import ChainUnavailable, Code, Problem
from tollway.ledger.authorization import Cover
from tollway.ledger.call import CallState
from tollway.payments.remote_facilitator import RemoteFacilitator
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.testing.authorization_samples import CHAIN, PAY_TO, TIMEOUT_S, USDC, Payer, requirement_of
from tollway.testing.book_samples import close_of
from tollway.testing.settling_scene import (
    HASTY,
    ClaimedCall,
    SettlingScene,
    facilitator_at,
    settlement_rules,
)


class ScriptedLine:
    """Notes what was asked; answers as told, after doing what a facilitator does."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, dict[str, str]]] = []
        self.answers: dict[str, object] = {
            "verify": {"isValid": True},
            "settle": {"success": True, "transaction": "0x" + "12" * 32},
        }
        self.settling: ClaimedCall | None = None

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        verb = url.rpartition("/")[2]
        self.asked.append((url, json.loads(content), dict(headers)))
        if verb == "settle" and self.settling is not None:
            self.settling.land()
        answer = self.answers[verb]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def open_scene(line: ScriptedLine, *, block_time_s: float = 0.01, depth: int = 1) -> SettlingScene:
    rules = settlement_rules(gas_keys=(), facilitator=facilitator_at(), block_time_s=block_time_s)
    facilitator = RemoteFacilitator(facilitator_at(), line)
    return SettlingScene(
        rules=rules, limits=HASTY, facilitators={CHAIN: facilitator}, confirmations=((0, depth),)
    )


async def test_it_is_asked_in_the_words_of_x402_with_its_own_headers() -> None:
    line = ScriptedLine()
    facilitator, payer = RemoteFacilitator(facilitator_at("https://f.example/x402/"), line), Payer()
    assert await facilitator.verify(payer.authorize(), USDC, timeout_s=90) is None
    await facilitator.settle(payer.authorize(), USDC, timeout_s=90)
    (verify_url, verified, verify_headers), (settle_url, settled, settle_headers) = line.asked
    assert (verify_url, settle_url) == ("https://f.example/x402/verify", "https://f.example/x402/settle")
    assert verify_headers == {"Authorization": "Bearer for-verify"}
    assert settle_headers == {"Authorization": "Bearer for-settle"}
    assert verified == settled
    assert verified["x402Version"] == verified["paymentPayload"]["x402Version"] == 2
    assert verified["paymentRequirements"] == verified["paymentPayload"]["accepted"]
    assert verified["paymentRequirements"] == {
        "scheme": "exact",
        "network": "eip155:84532",
        "amount": "10000",
        "asset": str(USDC.token),
        "payTo": str(PAY_TO),
        "maxTimeoutSeconds": 90,
        "extra": {"name": "USDC", "version": "2"},
    }
    assert verified["paymentPayload"]["payload"] == payer.payload()


JUNK: list[object] = [
    b"not json",
    b"[]",
    b"{}",
    {"isValid": "yes"},
    b"[" * 100_000,
    ChainUnavailable("away"),
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
async def test_an_unclear_answer_is_neither_yes_nor_no(junk: object) -> None:
    line = ScriptedLine()
    line.answers = {"verify": junk, "settle": junk}
    facilitator = RemoteFacilitator(facilitator_at(), line)
    with pytest.raises(ChainUnavailable):
        await facilitator.verify(Payer().authorize(), USDC, timeout_s=90)
    assert await facilitator.settle(Payer().authorize(), USDC, timeout_s=90) is None


async def test_what_it_would_not_settle_is_refused_before_the_call() -> None:
    line = ScriptedLine()
    line.answers["verify"] = {"isValid": False, "invalidReason": "blocked\nwallet"}
    async with open_scene(line) as scene:
        refused = await scene.settlement.check(
            scene.payer().authorize(), requirement_of(), timeout_s=TIMEOUT_S, client_address="192.0.2.1"
        )
        assert isinstance(refused, Problem)
        assert (refused.code, refused.reason) == (Code.PAYMENT_VERIFICATION_FAILED, "blockedwallet")
        line.answers["verify"] = {"isValid": True}
        covered = await scene.settlement.check(
            scene.payer().authorize(), requirement_of(), timeout_s=TIMEOUT_S, client_address="192.0.2.1"
        )
        assert isinstance(covered, Cover)


async def test_the_chain_says_that_it_settled() -> None:
    line = ScriptedLine()
    async with open_scene(line) as scene:
        line.settling = call = await scene.claim()
        assert isinstance(await scene.settlement.settle(call.order()), Settled)
        assert await call.read_state() is CallState.CONSUMED


async def test_it_is_waited_for_as_long_as_its_blocks_take() -> None:
    line = ScriptedLine()
    async with open_scene(line, block_time_s=20.0, depth=2) as scene, asyncio.timeout(10):
        line.settling = call = await scene.claim()
        settling = asyncio.get_running_loop().create_task(scene.settlement.settle(call.order()))
        while scene.chain.asked["find_authorization_use", CHAIN] < 2:
            await asyncio.sleep(0)
        assert not settling.done()
        scene.chain.bury(CHAIN, 1)
        assert isinstance(await settling, Settled)


@pytest.mark.parametrize(
    "answer", [{"success": False, "errorReason": "x", "transaction": ""}, ChainUnavailable("away"), b"?"]
)
async def test_money_that_moved_counts_whatever_it_says(answer: object) -> None:
    line = ScriptedLine()
    line.answers["settle"] = answer
    async with open_scene(line) as scene:
        line.settling = call = await scene.claim()
        assert isinstance(await scene.settlement.settle(call.order()), Settled)


@pytest.mark.parametrize("is_success", [True, False])
async def test_money_that_did_not_move_is_undecided_whatever_it_says(is_success: bool) -> None:
    line = ScriptedLine()
    line.answers["settle"] = {"success": is_success, "transaction": "0x" + "12" * 32}
    async with open_scene(line) as scene:
        call = await scene.claim()
        assert await scene.settlement.settle(call.order()) == Undecided()
        assert await call.read_state() is CallState.SETTLING


async def test_the_books_know_before_it_is_told() -> None:
    line = ScriptedLine()
    async with open_scene(line) as scene:
        call = await scene.claim()
        states: list[CallState] = []
        post = line.post

        async def watch(*arguments: Any, **options: Any) -> bytes:
            states.append(await call.read_state())
            return await post(*arguments, **options)

        line.post = watch  # type: ignore[method-assign]  # the fake's own hook
        await scene.settlement.settle(call.order())
        assert states == [CallState.SETTLING]


async def test_what_simulation_refuses_is_never_told_to_it() -> None:
    line = ScriptedLine()
    async with open_scene(line) as scene:
        call = await scene.claim(scene.payer(balance=0))
        assert isinstance(await scene.settlement.settle(call.order()), NotSettled)
        assert line.asked == []


async def test_a_call_without_an_outcome_is_never_told_to_it() -> None:
    line = ScriptedLine()
    async with open_scene(line) as scene:
        call = await scene.claim(scene.payer(valid_before=scene.now_ms // 1000 + 2 * HASTY.unknown_hold_s))
        await scene.book.close(close_of(call.claim, CallState.UNKNOWN))
        scene.pass_time(HASTY.unknown_hold_s)
        await scene.sweeper.run_once()
        assert line.asked == []
        assert await call.read_state() is CallState.UNKNOWN


async def test_the_sweeper_tells_it_again_now_and_then() -> None:
    line = ScriptedLine()
    async with open_scene(line) as scene:
        call = await scene.claim()
        await scene.settlement.settle(call.order())
        await call.set_adrift()
        for _ in range(3):
            await scene.sweeper.run_once()
        assert len(line.asked) == 2
        line.settling = call
        scene.pass_time(31)
        for _ in range(2):
            await scene.sweeper.run_once()
        assert len(line.asked) == 3
        assert await call.read_state() is CallState.CONSUMED
