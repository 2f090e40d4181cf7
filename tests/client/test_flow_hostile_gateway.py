"""A gateway that stores every signature and denies it: the amount that it can settle stays within every limit.

Each row is its response after it has taken a signature. The chain is honest unless a test states otherwise.
"""

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.client.conftest import do, sums
from tests.kit.waits import run_threads
from tollway.client import (
    AsyncTollwayClient,
    BudgetExhausted,
    CallerFailure,
    PaymentPending,
    PaymentRefused,
    TollwayClient,
)
from tollway.client.agent_tools import AgentTools, find_tool
from tollway.client.call_io import AuthorizationState
from tollway.client.finality import FINAL_DEPTH

API, GATEWAY, CHAIN, PRICE = "api_1", "https://gateway.test", 84532, 10_000
NOW_S = 1_700_000_000
TIMEOUT_S = 90
LATER_S = NOW_S + TIMEOUT_S + 60

OPEN, RELEASED, EXPIRED, CHARGED = (
    AuthorizationState.OPEN,
    AuthorizationState.RELEASED,
    AuthorizationState.EXPIRED,
    AuthorizationState.CHARGED,
)


@dataclass
class HostileGateway:
    """Takes each signature, and answers with `word`. `taken`: what it can cash, in base units, by nonce."""

    fake: object
    word: str = "402"
    next_options: list | None = None
    """The terms from then on."""
    taken: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "node.test":
            return self.fake.handle(request)
        shown = request.headers.get("payment-signature")
        if shown is None and "x-payment-tx" not in request.headers:
            return self.fake.refuse(402, "payment_required")
        if shown is not None:
            promise = json.loads(base64.b64decode(shown))["payload"]["authorization"]
            with self.lock:
                self.taken[promise["nonce"]] = int(promise["value"])
        return self._disown()

    def _disown(self) -> httpx.Response:
        status, code, state = DENIALS[self.word]
        if self.next_options is not None:
            self.fake.options = self.next_options
        headers = {"tollway-payment-state": state}
        if code is None:
            return httpx.Response(status, text="sorry", headers=self.fake.relayed(state, status=status))
        return self.fake.refuse(status, code, headers={**headers, "retry-after": "1"})

    @property
    def can_cash(self) -> int:
        return sum(self.taken.values())


DENIALS = {
    "402": (402, "payment_verification_failed", "none"),
    "402 settlement failed": (402, "payment_settlement_failed", "released"),
    "402 asked again": (402, "payment_required", "none"),
    "402 expired": (402, "payment_expired", "none"),
    "released": (502, "upstream_unreachable", "released"),
    "released, relayed": (500, None, "released"),
    "none": (413, "payload_too_large", "none"),
    "none, relayed": (200, None, "none"),
    "503 chain": (503, "chain_unavailable", "none"),
    "503 overloaded": (503, "overloaded", "none"),
    "401": (401, "authentication_required", "none"),
    "429": (429, "rate_limited", "none"),
}


@pytest.fixture
def hostile(gateway) -> HostileGateway:
    gateway.offer_authorizations()
    return HostileGateway(fake=gateway)


@pytest.fixture
def clock():
    return [NOW_S * 1000]


@pytest.fixture
def make(make, hostile, clock):
    transport = httpx.MockTransport(hostile.handle)
    return partial(make, transport=transport, now_ms=lambda: clock[0], max_price="0.01 USDC")


async def call_often(client, times: int = 20) -> list[CallerFailure]:
    """Each call is another request: one that the gateway has not decided would be sent again with its own signature."""
    failures = []
    for number in range(times):
        try:
            await do(client.call(API, f"/{number}"))
        except CallerFailure as failure:
            failures.append(failure)
    return failures


# ---- The limits, whatever it says.


@pytest.mark.parametrize("word", DENIALS)
async def test_the_budget_holds_what_the_gateway_disowns(make, hostile, word):
    hostile.word = word
    client = make(budget="0.05 USDC")
    failures = await call_often(client)
    assert hostile.can_cash == 50_000
    assert any(isinstance(failure, BudgetExhausted) for failure in failures)
    assert sums(client.spending().total) == {"USDC": 5 * 10**16}


@pytest.mark.parametrize("word", ["503 chain", "503 overloaded"])
async def test_a_request_that_was_not_decided_is_signed_once_over_all_its_runs(make, hostile, word):
    hostile.word = word
    client = make(budget="0.05 USDC")
    for _ in range(20):
        with pytest.raises(PaymentPending):
            await do(client.call(API))
    assert (hostile.can_cash, sums(client.spending().total)) == (10_000, {"USDC": 10**16})


@pytest.mark.process
@pytest.mark.parametrize("word", DENIALS)
async def test_the_limit_of_a_session_holds_and_is_never_given_back(make, hostile, chain, clock, word):
    hostile.word = word
    client = make(session_budget="0.03 USDC")
    await call_often(client)
    clock[0], chain.finalized, chain.time_s = LATER_S * 1000, 99, LATER_S
    await call_often(client)
    assert hostile.can_cash == 30_000
    assert sums(client.spending().session) == {"USDC": 3 * 10**16}


@pytest.mark.parametrize("word", DENIALS)
@pytest.mark.parametrize("rail", ["auto", "x402"])
async def test_one_call_signs_no_more_than_its_maximum(make, hostile, chain, word, rail):
    hostile.word = word
    await call_often(make(rail=rail), times=1)
    assert (hostile.can_cash, chain.broadcasts) == (10_000, [])


@pytest.mark.parametrize(("most", "signed"), [("0.019999", 1), ("0.02", 2), ("1", 2)])
async def test_a_second_signature_of_a_call_needs_room_within_the_maximum(make, hostile, chain, most, signed):
    with pytest.raises(PaymentRefused, match=r"can still be settled until 2023-11-14T22:14:50"):
        await do(make(max_price=f"{most} USDC", rail="x402").call(API))
    assert len(hostile.taken) == signed


@pytest.mark.parametrize(
    ("next_offer", "is_paid"),
    [
        ({"amount": "10000"}, True),
        ({"amount": "10001"}, False),
        # Half of what may be paid in one currency leaves half of what may be paid in another.
        ({"token": None, "symbol": "ETH", "decimals": 18, "amount": str(10**12)}, True),
        ({"token": None, "symbol": "ETH", "decimals": 18, "amount": str(10**12 + 1)}, False),
    ],
)
async def test_a_transaction_after_an_authorisation_needs_room_too(
    make, hostile, gateway, chain, next_offer, is_paid
):
    hostile.word, hostile.next_options = "402 expired", [gateway.option(**next_offer)]
    with contextlib.suppress(CallerFailure):
        await do(make(max_price={"USDC": "0.02", "ETH": "0.000002"}).call(API))
    assert (hostile.can_cash, len(chain.broadcasts) > 0) == (10_000, is_paid)


@pytest.mark.parametrize("word", ["402", "released", "503 chain"])
async def test_an_agent_is_kept_to_the_limits(hostile, client_options, word):
    hostile.word = word
    limits = {"max_price": "0.01 USDC", "budget": "0.05 USDC", "session_budget": "0.03 USDC"}
    own = {"rpc_urls": {}, "chains": [CHAIN], "transport": httpx.MockTransport(hostile.handle)}
    client = AsyncTollwayClient(GATEWAY, **{**client_options, **limits, **own})
    tools = AgentTools.for_client(client)
    for number in range(20):
        tool = find_tool("call_api")
        await tools.run_tool(tool, {"apiId": API, "path": f"/{number}"})
    assert hostile.can_cash == 30_000
    status = await tools.run_tool(find_tool("wallet_status"), {})
    assert status.document["spent"] == {"session": {"USDC": "0.03"}, "total": {"USDC": "0.03"}}
    await client.close()


def test_twenty_threads_sign_no_more_than_the_budget(hostile, client_options):
    own = {"rpc_urls": {}, "chains": [CHAIN], "transport": httpx.MockTransport(hostile.handle)}
    with TollwayClient(GATEWAY, **{**client_options, **own}, budget="0.05 USDC") as client:
        run_threads([lambda: asyncio.run(call_often(client, times=3))] * 20)
    assert hostile.can_cash == 50_000


SPENDERS = """
import os, sys
from pathlib import Path

import httpx

sys.path.insert(0, sys.argv[2])
from conftest import FakeChain, FakeGateway, KEY
from test_flow_hostile_gateway import HostileGateway

from tollway.client import CallerFailure, Patience, TollwayClient, Wallet

def spend():
    fake = FakeGateway(chain=FakeChain())
    fake.offer_authorizations()
    hostile = HostileGateway(fake=fake, word="402")
    os.read(all_are_forked, 1)
    with TollwayClient(
        "https://gateway.test", wallet=Wallet.from_key(KEY), chains=[84532], store_path=Path(sys.argv[1]),
        budget="0.05 USDC", patience=Patience(poll_s=0.001, wait_s=0.02), transport=httpx.MockTransport(hostile.handle),
    ) as client:
        for _ in range(4):
            try:
                client.call("api_1")
            except CallerFailure:
                pass
    os.write(1, b"%d\\n" % hostile.can_cash)  # in one piece: ten processes write here

all_are_forked, forking = os.pipe()
spenders = []
for _ in range(10):
    spenders.append(os.fork())
    if spenders[-1] == 0:
        os.close(forking)
        spend()
        os._exit(0)
os.close(forking)
assert [os.waitpid(pid, 0)[1] for pid in spenders] == [0] * 10
"""


@pytest.mark.process
def test_ten_processes_sign_no_more_than_the_budget(store_path):
    ran = subprocess.run(
        [sys.executable, "-c", SPENDERS, str(store_path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    sums = [int(line) for line in ran.stdout.splitlines()]
    assert (len(sums), sum(sums)) == (10, 50_000)


# ---- What the chain says later.


async def test_a_budget_is_free_again_once_the_chain_shows_the_nonces_unused(make, hostile, chain, clock):
    hostile.word = "released"
    client = make(budget="0.05 USDC")
    await call_often(client, times=6)
    first = set(hostile.taken)
    clock[0], chain.finalized, chain.time_s = LATER_S * 1000, 99, LATER_S
    await call_often(client, times=1)
    assert len(set(hostile.taken) - first) == 1
    assert [signed.state for signed in client.authorizations()] == [EXPIRED] * 5 + [RELEASED]
    assert sums(client.spending().total) == {"USDC": 10**16}


@pytest.mark.parametrize("word", ["503 chain", "503 overloaded"])
async def test_a_budget_is_free_again_after_an_outage_that_ended_no_call(make, hostile, chain, clock, word):
    hostile.word = word
    client = make(budget="0.05 USDC")
    failures = await call_often(client, times=6)
    abandoned = client.authorizations()[0]
    assert client.abandon(abandoned.name())
    assert [type(failure) for failure in failures] == [PaymentPending] * 5 + [BudgetExhausted]
    clock[0] = (LATER_S + 10**8) * 1000  # the clock of this machine alone ends nothing
    told = [type(failure) for failure in await call_often(client)]
    assert told == [BudgetExhausted, *[PaymentPending] * 4, *[BudgetExhausted] * 15]
    chain.finalized, chain.time_s, chain.used = 99, LATER_S, {abandoned.nonce}
    with pytest.raises(PaymentPending):
        await do(client.call(API, "/new"))
    assert [signed.state for signed in client.authorizations()] == [CHARGED] + [EXPIRED] * 4 + [OPEN]
    assert sums(client.spending().total) == {"USDC": 2 * 10**16}


async def test_an_open_authorisation_that_was_settled_pays_its_request_and_no_other_is_signed(
    make, hostile, chain, clock
):
    """The budget of another request reads the chain. The request itself is sent again with what has paid it."""
    hostile.word = "503 overloaded"
    client = make(budget="0.02 USDC")
    await call_often(client, times=2)
    clock[0], chain.finalized, chain.time_s = LATER_S * 1000, 99, LATER_S
    first, _ = client.authorizations()
    chain.used = {first.nonce}
    await call_often(client, times=3)
    assert [signed.state for signed in client.authorizations()] == [CHARGED, EXPIRED, OPEN]
    sent = len(hostile.taken)
    with pytest.raises(PaymentPending):
        await do(make(budget="1 USDC").call(API, "/0"))
    assert len(hostile.taken) == sent


async def test_a_request_that_outlived_its_authorisation_is_signed_anew_by_the_word_of_the_chain_alone(
    make, hostile, chain, clock
):
    hostile.word = "503 chain"
    client = make(budget="0.05 USDC")
    await call_often(client, times=1)
    hostile.word, clock[0] = "402 expired", LATER_S * 1000
    chain.finalized, chain.time_s = 99, NOW_S
    for _ in range(3):  # each repeat sends the same one, also after a restart
        client = make(budget="0.05 USDC")
        with pytest.raises(PaymentRefused, match="Repeat the same request after that") as caught:
            await do(client.call(API, "/0"))
        assert (caught.value.is_retryable, len(hostile.taken)) == (True, 1)
    chain.time_s = LATER_S
    with pytest.raises(PaymentRefused, match="can still be settled") as caught:  # it denies the new one, too
        await do(client.call(API, "/0"))
    assert (caught.value.is_retryable, len(hostile.taken)) == (False, 2)
    assert [signed.state for signed in client.authorizations()] == [EXPIRED, RELEASED]


async def test_a_released_authorisation_that_was_settled_is_charged(make, hostile, chain, clock):
    hostile.word = "402"
    client = make(budget="0.02 USDC")
    await call_often(client, times=2)
    chain.used = {bytes.fromhex(next(iter(hostile.taken)).removeprefix("0x"))}
    clock[0], chain.finalized, chain.time_s = LATER_S * 1000, 99, LATER_S
    await call_often(client)
    assert [signed.state for signed in client.authorizations()] == [CHARGED, EXPIRED, RELEASED]
    assert (hostile.can_cash, sums(client.spending().total)) == (30_000, {"USDC": 2 * 10**16})


NOT_YET = {
    "the clock of this machine is earlier": {"now_s": NOW_S + TIMEOUT_S - 1},
    "the final block is earlier": {"time_s": NOW_S + TIMEOUT_S - 1},
    "the node knows no final block": {"finalized": None},
    "the node is away": {"is_away": True},
    "the token knows no such question": {"state": "0x"},
    "the token answers something else": {"state": "0x" + "00" * 31 + "02"},
}


@pytest.mark.parametrize("name", NOT_YET)
async def test_until_then_it_counts(make, hostile, chain, clock, name):
    change = {"now_s": LATER_S, "time_s": LATER_S, "finalized": 99, **NOT_YET[name]}
    client = make(budget="0.02 USDC")
    await call_often(client)
    clock[0], chain.time_s, chain.finalized = change["now_s"] * 1000, change["time_s"], change["finalized"]
    chain.is_away, chain.authorization_state = change.get("is_away", False), change.get("state")
    await call_often(client)
    assert (hostile.can_cash, sums(client.spending().total)) == (20_000, {"USDC": 2 * 10**16})


async def test_without_a_node_it_counts_for_ever(make, hostile, clock):
    client = make(budget="0.02 USDC", rpc_urls={}, chains=[CHAIN])
    await call_often(client)
    clock[0] = (LATER_S + 10**8) * 1000
    await call_often(client)
    assert (hostile.can_cash, sums(client.spending().total)) == (20_000, {"USDC": 2 * 10**16})


async def test_a_node_without_old_states_is_read_at_its_head(make, hostile, chain, clock):
    client = make(budget="0.02 USDC")
    await call_often(client)
    clock[0], chain.finalized, chain.time_s, chain.is_pruned = LATER_S * 1000, 99, LATER_S, True
    await call_often(client, times=1)
    assert (hostile.can_cash, sums(client.spending().total)) == (30_000, {"USDC": 10**16})


async def test_a_node_without_final_blocks_is_read_far_below_its_head(make, hostile, chain, clock):
    client = make(budget="0.02 USDC")
    await call_often(client)
    clock[0], chain.time_s = LATER_S * 1000, LATER_S
    for chain.head, can_cash in ((FINAL_DEPTH - 1, 20_000), (FINAL_DEPTH, 30_000)):
        await call_often(client, times=1)
        assert hostile.can_cash == can_cash
