"""Settlement by a facilitator: the requests to it, and that its reports decide nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import close_of
from tests.kit.payer import CHAIN, PAY_TO, USDC, AuthorizationSigner
from tests.kit.settlement import (
    HASTY,
    LISTING,
    ScriptedFacilitator,
    SettlementHarness,
    facilitator_at,
    settlement_rules,
)
from tests.kit.upstream import LoopbackUpstream, hang_up, plain, run_upstream, say_nothing
from tests.kit.waits import until
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.ids import Address
from tollway.ledger.records import CallState, Cover
from tollway.limits import DEFAULT_LIMITS, KIB
from tollway.payments.facilitator import FacilitatorClient, HttpFacilitatorTransport
from tollway.payments.gas import CHECKS_UNTIL_STALE
from tollway.payments.settlement import NotSettled, Settled, Undecided

ELSEWHERE = Address(b"\xee" * 20)


def open_scene(
    line: ScriptedFacilitator, *, block_time_s: float = 0.01, depth: int = 1, **limits: Any
) -> SettlementHarness:
    rules = settlement_rules(gas_keys=(), facilitator=facilitator_at(), block_time_s=block_time_s)
    facilitator = FacilitatorClient(facilitator_at(), line)
    return SettlementHarness(
        rules=rules,
        limits=replace(HASTY, **limits),
        facilitators={CHAIN: facilitator},
        confirmations=((0, depth),),
    )


async def test_requests_have_the_x402_shape_and_the_configured_headers() -> None:
    line = ScriptedFacilitator()
    facilitator, payer = (
        FacilitatorClient(facilitator_at("https://f.example/x402/"), line),
        AuthorizationSigner(),
    )
    assert await facilitator.verify(payer.authorize(), USDC, timeout_s=90) is None
    await facilitator.settle(payer.authorize(), USDC, timeout_s=90)
    (verify_url, verified, verify_headers), (settle_url, settled, settle_headers) = line.requests
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
async def test_an_unclear_response_raises_chain_unavailable(junk: object) -> None:
    line = ScriptedFacilitator()
    line.answers = {"verify": junk, "settle": junk}
    facilitator = FacilitatorClient(facilitator_at(), line)
    with pytest.raises(ChainUnavailable):
        await facilitator.verify(AuthorizationSigner().authorize(), USDC, timeout_s=90)
    assert await facilitator.settle(AuthorizationSigner().authorize(), USDC, timeout_s=90) is None


async def test_an_authorisation_that_the_facilitator_refuses_is_refused_before_the_call() -> None:
    line = ScriptedFacilitator()
    line.answers["verify"] = {"isValid": False, "invalidReason": "blocked\nwallet"}
    async with open_scene(line) as harness:
        refused = await harness.check(harness.payer().authorize())
        assert isinstance(refused, Problem)
        assert (refused.code, refused.reason) == (Code.PAYMENT_VERIFICATION_FAILED, "blockedwallet")
        line.answers["verify"] = {"isValid": True}
        covered = await harness.check(harness.payer().authorize())
        assert isinstance(covered, Cover)


async def test_the_chain_proves_the_settlement() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        line.settling = call = await harness.claim()
        assert isinstance(await call.settle(), Settled)
        assert await call.read_state() is CallState.CONSUMED


async def test_waits_as_long_as_the_required_depth_takes() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line, block_time_s=20.0, depth=2) as harness:
        line.settling = call = await harness.claim()
        settling = asyncio.get_running_loop().create_task(call.settle())
        await until(lambda: harness.chain.requests["find_authorization_use", CHAIN] >= 2)
        assert not settling.done()
        harness.chain.bury(CHAIN, 1)
        assert isinstance(await settling, Settled)


@pytest.mark.parametrize(
    "answer", [{"success": False, "errorReason": "x", "transaction": ""}, ChainUnavailable("away"), b"?"]
)
async def test_a_transfer_counts_for_every_report_of_the_facilitator(answer: object) -> None:
    line = ScriptedFacilitator()
    line.answers["settle"] = answer
    async with open_scene(line) as harness:
        line.settling = call = await harness.claim()
        assert isinstance(await call.settle(), Settled)


@pytest.mark.parametrize("is_success", [True, False])
async def test_a_missing_transfer_is_undecided_for_every_report_of_the_facilitator(is_success: bool) -> None:
    line = ScriptedFacilitator()
    line.answers["settle"] = {"success": is_success, "transaction": "0x" + "12" * 32}
    async with open_scene(line) as harness:
        call = await harness.claim()
        assert await call.settle() == Undecided()
        assert await call.read_state() is CallState.SETTLING


async def test_the_ledger_is_written_before_the_facilitator_settles() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        call = await harness.claim()
        states: list[CallState] = []
        post = line.post

        async def watch(*arguments: Any, **options: Any) -> bytes:
            states.append(await call.read_state())
            return await post(*arguments, **options)

        line.post = watch  # type: ignore[method-assign]  # the fake's own hook
        await call.settle()
        assert states == [CallState.SETTLING]


@pytest.mark.parametrize("trouble", ["no money", "refused", "expired"])
async def test_a_refused_simulation_at_the_head_is_undecided_and_not_sent(trouble: str) -> None:
    """The facilitator got the authorisation before the call and may have sent it: only the token's state decides."""
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        payer = harness.payer(balance=0 if trouble == "no money" else 10**9)
        call = await harness.claim(payer)
        if trouble == "refused":
            harness.chain.refuse_transfer(CHAIN, payer.address, payer.nonce)
        if trouble == "expired":
            harness.chain.mine(CHAIN, time=payer.valid_before)
        assert await call.settle() == Undecided()
        assert await call.read_state() is CallState.SETTLING
        assert line.settle_requests == []


async def test_a_transfer_after_a_refused_simulation_pays_the_call() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        call = await harness.leave_orphaned(harness.payer(balance=0))
        call.land()
        await harness.settlement_recovery.run_once()
        held = await harness.ledger.find_authorized_call(call.authorization.key)
        assert held is not None
        assert held.transfer is not None


async def test_a_nonce_used_for_another_payment_fails_the_settlement() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        call = await harness.claim()
        call.land(payee=ELSEWHERE)
        assert isinstance(await call.settle(), NotSettled)
        assert await call.read_state() is CallState.RELEASED


async def test_a_call_without_an_outcome_is_never_sent_to_the_facilitator() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        call = await harness.claim(
            harness.payer(valid_before=harness.now_ms // 1000 + 2 * HASTY.unknown_hold_s)
        )
        await harness.ledger.close(close_of(call.claim, CallState.UNKNOWN))
        harness.pass_time(HASTY.unknown_hold_s)
        await harness.settlement_recovery.run_once()
        assert line.requests == []
        assert await call.read_state() is CallState.UNKNOWN


async def test_recovery_requests_the_settlement_again_at_an_interval() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        call = await harness.claim()
        await call.settle()
        await call.mark_orphaned()
        for _ in range(3):
            await harness.settlement_recovery.run_once()
        assert len(line.settle_requests) == 2
        line.settling = call
        harness.pass_time(31)
        for _ in range(2):
            await harness.settlement_recovery.run_once()
        assert len(line.settle_requests) == 3
        assert await call.read_state() is CallState.CONSUMED


# ---- A facilitator that does not respond.


def is_offered(harness: SettlementHarness) -> bool:
    return harness.settlement.is_offered(USDC, 10_000, LISTING)


@pytest.mark.parametrize(("status", "offered"), [(200, True), (401, True), (404, True), (None, False)])
async def test_nothing_is_offered_before_the_first_response(status: int | None, offered: bool) -> None:
    line = ScriptedFacilitator()
    line.status = status
    async with open_scene(line) as harness:
        assert (
            is_offered(harness),
            harness.settlement.is_reachable(CHAIN),
        ) == (offered, offered)


async def test_a_dead_facilitator_withdraws_the_rail_until_a_probe_succeeds() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        line.answers["verify"], line.status = ChainUnavailable("away"), None
        with pytest.raises(ChainUnavailable):
            await harness.check(harness.payer().authorize())
        assert not is_offered(harness)
        assert not harness.settlement.is_reachable(
            CHAIN
        )  # an outage must not make callers pay in another way
        await harness.gas_budget.refresh()
        assert not is_offered(harness)
        line.status = 200
        await harness.gas_budget.refresh()
        assert is_offered(harness)


async def test_a_facilitator_that_responds_again_is_offered_at_once() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        good, line.answers["verify"] = line.answers["verify"], ChainUnavailable("away")
        with pytest.raises(ChainUnavailable):
            await harness.check(harness.payer().authorize())
        line.answers["verify"] = good
        assert isinstance(await harness.check(harness.payer().authorize()), Cover)
        assert is_offered(harness)


@pytest.mark.parametrize("answer", [b"?", {"isValid": False, "invalidReason": "x"}, {"isValid": "yes"}])
async def test_the_result_of_one_payment_withdraws_nothing(answer: object) -> None:
    """A caller whose payment makes the facilitator fail must not close the rail for others."""
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        line.answers["verify"] = answer
        with contextlib.suppress(ChainUnavailable):
            await harness.check(harness.payer().authorize())
        assert is_offered(harness)


async def test_a_slow_settlement_withdraws_nothing() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        line.answers["settle"] = ChainUnavailable("away")
        assert await (await harness.claim()).settle() == Undecided()
        assert is_offered(harness)


async def test_a_healthy_facilitator_is_not_probed() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        assert line.looks == ["https://facilitator.example/supported"]
        await harness.gas_budget.refresh()
        assert len(line.looks) == 1


async def test_a_probe_has_a_deadline() -> None:
    line = ScriptedFacilitator()
    line.is_silent = True
    async with open_scene(line, rpc_deadline_s=0.01) as harness:
        assert not is_offered(harness)


async def test_an_unavailable_chain_withdraws_the_rail_of_the_facilitator() -> None:
    line = ScriptedFacilitator()
    async with open_scene(line) as harness:
        harness.pass_time(CHECKS_UNTIL_STALE * harness.limits.gas_refresh_s + 1)
        assert not is_offered(harness)
        await harness.gas_budget.refresh()
        assert is_offered(harness)


# ---- The transport to a facilitator: bounded in time and size, without proxies and redirects, and without foreign error texts.


HEADERS = (("Authorization", "Bearer hush"),)


@pytest.fixture
async def upstream() -> AsyncIterator[LoopbackUpstream]:
    async with run_upstream() as upstream:
        yield upstream


@pytest.fixture
async def line() -> AsyncIterator[HttpFacilitatorTransport]:
    limits = replace(DEFAULT_LIMITS, facilitator_deadline_s=0.2, facilitator_response_bytes_max=KIB)
    line = HttpFacilitatorTransport(limits=limits)
    await line.open()
    yield line
    await line.close()


async def test_posts_json_with_the_given_headers(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    upstream.answer = plain(b'{"isValid": true}')
    assert await line.post(upstream.url + "/verify", b"{}", headers=HEADERS) == b'{"isValid": true}'
    (arrived,) = upstream.arrived
    assert (arrived.method, arrived.target, bytes(arrived.body)) == ("POST", "/verify", b"{}")
    assert arrived.find("Authorization") == "Bearer hush"
    assert arrived.find("Content-Type") == "application/json"


async def test_returns_the_body_of_a_refusal(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    upstream.answer = plain(b'{"success": false}', status=402)
    assert await line.post(upstream.url, b"{}", headers=()) == b'{"success": false}'


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_server_error_raises(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, status: int
) -> None:
    upstream.answer = plain(b'{"isValid": true}', status=status)
    with pytest.raises(ChainUnavailable):
        await line.post(upstream.url, b"{}", headers=())
    with pytest.raises(ChainUnavailable):
        await line.fetch_status(upstream.url, headers=())


@pytest.mark.parametrize("status", [200, 204, 302, 401, 404])
async def test_fetch_status_returns_the_status_of_a_get(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, status: int
) -> None:
    upstream.answer = plain(b"", status=status)
    assert await line.fetch_status(upstream.url + "/supported", headers=HEADERS) == status
    (arrived,) = upstream.arrived
    assert (arrived.method, arrived.target) == ("GET", "/supported")
    assert arrived.find("Authorization") == "Bearer hush"


async def test_fetch_status_raises_without_a_response(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    for trouble in (hang_up, say_nothing):
        upstream.answer = trouble
        with pytest.raises(ChainUnavailable):
            await line.fetch_status(upstream.url, headers=())


async def test_follows_no_redirect_and_keeps_no_cookie(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    upstream.answer = plain(b"", status=307, headers=(f"Location: {upstream.url}/there", "Set-Cookie: a=b"))
    assert await line.post(upstream.url + "/here", b"{}", headers=()) == b""
    assert await line.post(upstream.url + "/here", b"{}", headers=()) == b""
    assert [arrived.target for arrived in upstream.arrived] == ["/here", "/here"]
    assert upstream.arrived[1].find("Cookie") is None


async def test_uses_no_proxy_of_the_environment(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert await line.post(upstream.url, b"{}", headers=()) == b"ok"


@pytest.mark.parametrize("size", [KIB, KIB + 1])
async def test_a_response_has_a_maximum_size(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, size: int
) -> None:
    upstream.answer = plain(b"x" * size)
    if size == KIB:
        assert len(await line.post(upstream.url, b"{}", headers=())) == KIB
        return
    with pytest.raises(ChainUnavailable):
        await line.post(upstream.url, b"{}", headers=())


@pytest.mark.parametrize("answer", [hang_up, say_nothing])
async def test_a_hanging_facilitator_is_unavailable_and_gets_one_request(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, answer: object
) -> None:
    upstream.answer = answer  # type: ignore[assignment]  # one of the answerers
    with pytest.raises(ChainUnavailable) as told:
        await line.post(upstream.url, b"{}", headers=HEADERS)
    assert len(upstream.arrived) == 1
    assert "hush" not in str(told.value)
    assert upstream.url not in str(told.value)


async def test_a_refused_connection_is_unavailable(line: HttpFacilitatorTransport) -> None:
    with pytest.raises(ChainUnavailable):
        await line.post("http://127.0.0.1:9/verify", b"{}", headers=())
