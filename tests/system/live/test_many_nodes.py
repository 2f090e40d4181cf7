"""Several gateways on one PostgreSQL serve as one gateway: a call that began at one continues at another, a change
reaches all (within a second: `storage/catalog/test_catalog_store_cache.py`, on a clock of its own), and another gateway takes over the duties of a leader."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account
from eth_account.messages import encode_defunct

from tests.kit.authorization_payer import DIALECTS, AuthorizationPayer, Quote
from tests.kit.gateway_cluster import API, PRICE_UNITS, bound, plain
from tests.kit.gateway_process import poll
from tests.kit.signed_calls import QUICK

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]

DUTIES = ("sweeper", "watcher", "reputation", "webhooks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two gateways with one public URL, as behind one load balancer."""

    cluster: Any
    one: Any
    two: Any
    provider: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(cluster: Any) -> AsyncIterator[Pair]:
    (gas,) = await cluster.wallets(1)
    settings = {**QUICK, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key, "TEST_LIMIT_LEADER_LEASE_S": "2"}
    options = {"database_url": await cluster.make_postgres(), "settings": settings}
    async with (
        cluster.gateway(**options) as one,
        cluster.gateway(**options, public_url=one.public_url) as two,
    ):
        yield Pair(cluster=cluster, one=one, two=two, provider=await cluster.wallet())


# ---- What was begun at one goes on at another.


async def test_a_payment_presented_at_one_gateway_is_credit_at_the_other(pair: Pair) -> None:
    cluster, path = pair.cluster, "/echo/credit-there"
    caller = await cluster.wallet()
    api_id = await cluster.publish(pair.one, pair.provider)
    assert (await cluster.call(pair.one, api_id, path)).status == 402
    tx_hash = await cluster.send_tokens(caller, pair.provider.address, 2 * PRICE_UNITS)
    headers = plain(caller, tx_hash)
    replies = [
        await cluster.call(gateway, api_id, path, headers=headers)
        for gateway in (pair.two, pair.one, pair.two, pair.one)
    ]
    assert [reply.status for reply in replies] == [200, 200, 409, 409]
    assert cluster.provider.count(path) == 2


async def test_a_bound_signature_counts_once_whichever_gateway_sees_it(pair: Pair) -> None:
    cluster, path = pair.cluster, "/echo/bound-there"
    caller = await cluster.wallet()
    api_id = await cluster.publish(pair.one, pair.provider)
    tx_hash = await cluster.send_tokens(caller, pair.provider.address, 3 * PRICE_UNITS)
    headers = bound(caller, tx_hash, pair.one, api_id, path, chain_id=cluster.driver.chain_id)
    assert (await cluster.call(pair.two, api_id, path, headers=headers)).status == 200
    again = await cluster.call(pair.one, api_id, path, headers=headers)
    assert (again.status, again.code) == (401, "nonce_reused")
    assert cluster.provider.count(path) == 1


async def test_a_call_without_a_response_at_one_gateway_runs_under_its_claim_at_the_other(pair: Pair) -> None:
    """Without an idempotency key, and although the other gateway has the payment in memory."""
    cluster, path = pair.cluster, "/slow?seconds=60"
    caller = await cluster.wallet()
    api_id = await cluster.publish(pair.one, pair.provider)
    slow_id = await cluster.publish(pair.one, pair.provider, timeoutSeconds=1)
    tx_hash = await cluster.send_tokens(caller, pair.provider.address, 5 * PRICE_UNITS)
    headers = plain(caller, tx_hash)
    for gateway in (pair.two, pair.two, pair.one):
        assert (await cluster.call(gateway, api_id, "/echo/known", headers=headers)).status == 200
    seen = cluster.provider.count("/slow")
    lost = await cluster.call(pair.one, slow_id, path, headers=headers)
    again = await cluster.call(pair.two, slow_id, path, headers=headers)
    for reply in (lost, again):
        assert (reply.status, reply.code, reply.state) == (504, "upstream_timeout", "held"), reply.body
    assert again.json["callId"] == lost.json["callId"]
    assert cluster.provider.count("/slow") == seen + 2
    assert int((await cluster.payment(pair.one, caller, tx_hash))["credit"]) == PRICE_UNITS


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_challenge_of_one_gateway_is_accepted_by_the_other(pair: Pair, dialect: str) -> None:
    cluster, path = pair.cluster, f"/echo/asked-there-{DIALECTS.index(dialect)}"
    api_id = await cluster.publish(pair.one, pair.provider)
    payer = AuthorizationPayer(
        cluster=cluster, gateway=pair.two, api_id=api_id, signer=await cluster.wallet()
    )
    asked = await cluster.call(pair.one, api_id, path)
    header = payer.show(Quote.read(asked), dialect)
    paid = await cluster.call(pair.two, api_id, path, headers=[header])
    assert (paid.status, paid.state) == (200, "charged")
    again = await cluster.call(pair.one, api_id, path, headers=[header])
    assert not again.asks_for_money
    assert cluster.provider.count(path) == 1


async def test_a_session_of_one_gateway_is_valid_at_the_other(pair: Pair) -> None:
    cluster, caller = pair.cluster, await pair.cluster.wallet()

    async def ask(gateway: Any, method: str, path: str, **options: Any) -> Any:
        return await cluster.send(gateway.base_url + API + path, method=method, **options)

    wish = json.dumps({"address": str(caller.address), "chainId": cluster.driver.chain_id}).encode()
    kind = ("Content-Type", "application/json")
    invited = await ask(pair.one, "POST", "/auth/nonce", headers=[kind], content=wish)
    message = invited.json["message"]
    signature = Account.sign_message(encode_defunct(text=message), caller.key).signature.hex()
    proof = {"message": message, "signature": "0x" + signature.removeprefix("0x")}
    opened = await ask(pair.two, "POST", "/auth/session", headers=[kind], content=json.dumps(proof).encode())
    assert opened.status == 201, opened.body
    token = ("Authorization", f"Bearer {opened.json['accessToken']}")
    for gateway in (pair.one, pair.two):
        assert (await ask(gateway, "GET", "/history", headers=[token])).status == 200
    twice = await ask(pair.one, "POST", "/auth/session", headers=[kind], content=json.dumps(proof).encode())
    assert twice.status == 401
    assert (await ask(pair.one, "DELETE", "/auth/session", headers=[token])).status == 204
    assert (await ask(pair.two, "GET", "/history", headers=[token])).status == 401


async def test_a_signed_request_counts_once_whichever_gateway_sees_it(pair: Pair) -> None:
    cluster = pair.cluster
    caller = await cluster.wallet()
    headers = cluster.sign_control(pair.one, caller, "GET", "/history")
    first = await cluster.send(pair.one.base_url + API + "/history", headers=headers)
    second = await cluster.send(pair.two.base_url + API + "/history", headers=headers)
    assert (first.status, second.status) == (200, 401)


# ---- A change reaches all.


async def test_a_change_of_a_listing_reaches_the_other_gateway(pair: Pair) -> None:
    cluster = pair.cluster
    api_id = await cluster.publish(pair.one, pair.provider)

    async def ask() -> Any:
        return await cluster.call(pair.two, api_id, "/echo/changed")

    async def edit(**fields: Any) -> None:
        body = cluster.draft(**fields)
        changed = await cluster.control(pair.one, pair.provider, "PUT", f"/apis/{api_id}", body)
        assert changed.status == 200, changed.body

    async def hears(what: str, test: Any) -> None:
        await poll(test, what=what)

    async def is_code(code: str, reason: str | None = None) -> bool:
        reply = await ask()
        return bool(reply.code == code and reply.json.get("reason") == reason)

    async def asks_price(amount: str) -> bool:
        reply = await ask()
        return reply.status == 402 and reply.json["payment"]["amount"] == amount

    assert await asks_price("0.01")  # a created listing is visible at once
    await edit(pricePerRequest="0.03")
    await hears("the new price", lambda: asks_price("0.03"))
    await edit(pricePerRequest="0.03", status="paused")
    await hears("the pause", lambda: is_code("api_paused"))
    await edit(pricePerRequest="0.03")
    await hears("the resumption", lambda: asks_price("0.03"))
    exit_code, _ = await cluster.operate(pair.one, "listings", "suspend", api_id)
    assert exit_code == 0
    await hears("the suspension", lambda: is_code("api_paused", "suspended"))
    exit_code, _ = await cluster.operate(pair.one, "listings", "restore", api_id)
    assert exit_code == 0
    await hears("the restoration", lambda: asks_price("0.03"))
    assert (await cluster.control(pair.one, pair.provider, "DELETE", f"/apis/{api_id}")).status == 204
    await hears("the end", lambda: is_code("api_retired"))


async def test_a_blocked_wallet_is_blocked_at_every_gateway(pair: Pair) -> None:
    cluster = pair.cluster
    caller = await cluster.wallet()
    api_id = await cluster.publish(pair.one, pair.provider)
    tx_hash = await cluster.send_tokens(caller, pair.provider.address, 5_000 * PRICE_UNITS)

    async def is_code(gateway: Any, code: str | None) -> bool:
        reply = await cluster.call(gateway, api_id, "/echo/blocked", headers=plain(caller, tx_hash))
        return bool(reply.code == code)

    async def reaches_both(code: str | None) -> None:
        for gateway in (pair.one, pair.two):
            await poll(lambda at=gateway: is_code(at, code), what=f"{code}")

    await reaches_both(None)
    block = ("wallets", "block", str(caller.address), "--reason", "test")
    assert (await cluster.operate(pair.one, *block))[0] == 0
    await reaches_both("wallet_blocked")
    assert (await cluster.operate(pair.one, "wallets", "unblock", str(caller.address)))[0] == 0
    await reaches_both(None)


# ---- One does it for all.


def leads(gateway: Any, duty: str) -> bool:
    """Read from its log."""
    told = [line for line in gateway.read_log().splitlines() if f'"duty": "{duty}"' in line]
    changes = [line for line in told if "leadership_gained" in line or "leadership_ended" in line]
    return bool(changes) and "leadership_gained" in changes[-1]


async def find_leader(pair: Pair) -> tuple[Any, Any]:
    """A gateway that leads at least one duty, and the other one."""

    def is_everything_led() -> bool:
        return all(leads(pair.one, duty) != leads(pair.two, duty) for duty in DUTIES)

    await poll(is_everything_led, what="a leader for each duty")
    return (pair.one, pair.two) if leads(pair.one, "sweeper") else (pair.two, pair.one)


async def succeeds(successor: Any, *, after: str) -> None:
    """Returns when it leads every duty."""
    await poll(
        lambda: all(leads(successor, duty) for duty in DUTIES),
        what=f"a successor of a gateway that {after}",
    )


async def test_a_leader_is_succeeded_when_it_stalls_and_when_it_dies(pair: Pair) -> None:
    """The last test of this file, because it stops the pair."""
    first, second = await find_leader(pair)
    first.pause()
    try:
        await succeeds(second, after="stalled")
    finally:
        first.resume()
    await poll(lambda: not any(leads(first, duty) for duty in DUTIES), what="a step back")
    assert "leadership_lost" in first.read_log()
    second.kill()
    await succeeds(first, after="was killed")
