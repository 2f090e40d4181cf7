"""What a chain can do to a payment channel while and after its calls are served: what the caller sees, what the ledger says, and what is in the contract.

The chain is one of its own, because the tests move its clock. A deposit is good for hours of that clock.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import Reply
from tests.kit.gateway_process import poll
from tests.kit.signed_calls import send_dearly, unmined
from tests.system.live.channel_listing import (
    PRICE,
    UNCLAIMED,
    ChannelListing,
    OwnChannel,
    find_offer,
    fresh_salt,
    open_channel_listing,
    read_receipt,
)
from tollway.chain.abi_words import compute_selector
from tollway.chain.channel_contract import SETTLED_TOPIC, SETTLEMENT_CONTRACT, encode_config, encode_settle
from tollway.chain.signer import GasKey
from tollway.ids import ZERO_ADDRESS, Address, TxHash
from tollway.ledger.channels import ChannelState
from tollway.payments.channel_wire import ChannelReason
from tollway.sandbox.chain import START_ETH_WEI, Contract, load_artifact

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEPOSIT = 10 * PRICE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unclaimed_listing(own_chain_cluster: Any) -> AsyncIterator[ChannelListing]:
    async with open_channel_listing(own_chain_cluster, **UNCLAIMED) as stall:
        yield stall


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def claiming_listing(own_chain_cluster: Any) -> AsyncIterator[ChannelListing]:
    async with open_channel_listing(own_chain_cluster) as stall:
        yield stall


@pytest_asyncio.fixture(loop_scope="module")
async def unclaimed(unclaimed_listing: ChannelListing) -> AsyncIterator[ChannelListing]:
    """No voucher is public."""
    await unclaimed_listing.wait_offered()
    yield unclaimed_listing
    unclaimed_listing.line.mend()


@pytest_asyncio.fixture(loop_scope="module")
async def claiming(claiming_listing: ChannelListing) -> AsyncIterator[ChannelListing]:
    """Each call is claimed at once."""
    await claiming_listing.wait_offered()
    yield claiming_listing
    claiming_listing.line.mend()


# ---- A deposit on its way.


def assert_undecided(reply: Reply) -> None:
    assert (reply.status, reply.code) == (503, "payment_outcome_unknown"), reply.body
    assert not reply.asks_for_money
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert reply.json["paymentState"] == "held"
    assert reply.json["call"].endswith(reply.json["callId"])


async def drop(own: OwnChannel, tx_hash: TxHash) -> None:
    await own.stall.driver.rpc("anvil_dropTransaction", str(tx_hash))


async def use_nonce_elsewhere(own: OwnChannel, tx_hash: TxHash) -> None:
    """Other software with the same gas key sends a dearer transaction with that nonce."""
    sent = await own.stall.read_transaction(tx_hash)
    key = GasKey.parse(own.stall.gas.private_key)
    signed = key.sign(
        chain_id=own.stall.driver.chain_id,
        nonce=int(sent["nonce"], 16),
        to=key.address,
        calldata=b"",
        gas=21_000,
        max_fee_wei=2 * int(sent["maxFeePerGas"], 16),
        tip_wei=2 * int(sent["maxFeePerGas"], 16),
    )
    await own.stall.driver.rpc("eth_sendRawTransaction", "0x" + signed.raw.hex())


async def send_as_stranger(own: OwnChannel, tx_hash: TxHash) -> None:
    """A stranger sends the same call at a higher price, so that it comes first and the gateway's transaction reverts."""
    sent = await own.stall.read_transaction(tx_hash)
    stranger = own.stall.cluster.playground.account("stranger")
    calldata = bytes.fromhex(sent["input"][2:])
    await send_dearly(own.stall.cluster, stranger, SETTLEMENT_CONTRACT, calldata)


async def fall_behind(own: OwnChannel, tx_hash: TxHash) -> None:
    own.stall.line.lag(3)


DEPOSIT_FAULTS: dict[str, Callable[[OwnChannel, TxHash], Awaitable[None]]] = {
    "dropped by the pool": drop,
    "replaced by another transaction of the gas key": use_nonce_elsewhere,
    "sent first by a stranger": send_as_stranger,
    "in a block that the node of the gateway does not have": fall_behind,
}


@pytest.mark.parametrize("strike", DEPOSIT_FAULTS.values(), ids=DEPOSIT_FAULTS)
async def test_a_deposit_is_undecided_until_it_is_mined_and_counts_once(
    unclaimed: ChannelListing, strike: Callable[[OwnChannel, TxHash], Awaitable[None]]
) -> None:
    own = await unclaimed.open_channel()
    before = await own.wallet_units()
    async with asyncio.TaskGroup() as group, unmined(unclaimed.driver):
        task = group.create_task(own.deposit(DEPOSIT))
        await strike(own, await unclaimed.wait_pending())
        assert_undecided(await task)
    unclaimed.line.mend()

    last = await own.insist(lambda: own.deposit(DEPOSIT))

    assert (last.status, last.headers.get("Idempotency-Replayed"), own.seen) == (200, "true", 1), last.body
    assert await own.states() == ["charged"]
    assert (await own.escrow(), await own.count_deposits()) == ((DEPOSIT, 0), 1)
    assert before - await own.wallet_units() == DEPOSIT
    assert (await own.spend(2 * PRICE)).status == 200
    await unclaimed.check_ledger()


async def test_a_deposit_that_reverts_holds_its_channel_until_its_authorisation_has_expired(
    unclaimed: ChannelListing,
) -> None:
    """The wallet spends its money first. The authorisation is public, so it is not over before it has expired."""
    own = (await unclaimed.open_channel()).signs(valid_before=await unclaimed.now_s() + 600)
    stranger = unclaimed.cluster.playground.account("stranger")
    token = unclaimed.cluster.playground.token
    everything = token.artifact.function("transfer").encode((str(stranger.address), await own.wallet_units()))
    async with asyncio.TaskGroup() as group, unmined(unclaimed.driver):
        task = group.create_task(own.deposit(DEPOSIT))
        await unclaimed.wait_pending()
        await send_dearly(unclaimed.cluster, own.wallet, token.address, everything)
        assert_undecided(await task)
    assert (await own.states(), await own.escrow()) == (["held"], (0, 0))

    await unclaimed.pass_time(600 + 60)
    await own.wait_states("released")

    assert (own.seen, await own.count_deposits()) == (1, 0)
    assert (await own.read()).reserved_call is None
    refused = await own.deposit(DEPOSIT)
    assert (refused.status, refused.json["reason"]) == (402, ChannelReason.EXPIRED)
    await unclaimed.check_ledger()


async def test_a_token_that_keeps_a_fee_takes_no_deposit(unclaimed: ChannelListing) -> None:
    own = await unclaimed.open_channel()
    async with proxied_token(unclaimed.cluster, fee=1):
        refused = await own.deposit(DEPOSIT)
        assert (refused.status, refused.json["reason"]) == (402, ChannelReason.DEPOSIT_SIMULATION_FAILED)
    assert (own.seen, await own.states(), await own.escrow()) == (0, [], (0, 0))
    assert await unclaimed.pending() == []


# ---- A chain that changes its mind.


async def test_a_deposit_that_leaves_the_chain_takes_the_newest_calls_with_it(
    unclaimed: ChannelListing,
) -> None:
    own = await unclaimed.open_channel()
    await own.fill(5 * PRICE, calls=2)
    more = own.signs(deposit_salt=fresh_salt())
    await more.fill(4 * PRICE, calls=5, before=2)
    assert await own.escrow() == (9 * PRICE, 0)
    async with unmined(unclaimed.driver):
        await unclaimed.driver.reorg(1)
        assert await own.escrow() == (5 * PRICE, 0)
        await own.wait_states(*["charged"] * 5, *["reorged"] * 2)
        refused = await own.spend(8 * PRICE)
        assert (refused.status, refused.json["reason"]) == (402, ChannelReason.CUMULATIVE_MISMATCH)
        state = find_offer(refused)["extra"]["channelState"]
        assert (state["balance"], state["chargedCumulativeAmount"]) == (str(5 * PRICE), str(7 * PRICE))
        await poll(unclaimed.pending, what="the deposit sent again")
    await own.wait_states(*["charged"] * 7)
    assert (await own.escrow(), own.seen) == ((9 * PRICE, 0), 7)
    assert (await own.spend(8 * PRICE)).status == 200
    await unclaimed.check_ledger()


async def test_a_deposit_of_others_counts_when_it_is_needed(unclaimed: ChannelListing) -> None:
    """The wallet opens its channel and raises its balance by transactions that the gateway has not sent."""
    own = await unclaimed.open_channel()
    await own.deposit_directly(PRICE)
    assert (await own.spend(PRICE)).status == 200
    exceeding = await own.spend(2 * PRICE)
    assert (exceeding.status, exceeding.json["reason"]) == (402, ChannelReason.CUMULATIVE_MISMATCH)
    await own.deposit_directly(PRICE)
    assert (await own.spend(2 * PRICE)).status == 200
    assert (await own.states(), await own.escrow()) == (["charged", "charged"], (2 * PRICE, 0))
    assert (await own.read()).balance_units == 2 * PRICE


# ---- Claims.


async def copy_claim(own: OwnChannel, tx_hash: TxHash) -> None:
    await send_as_stranger(own, tx_hash)


async def settle_first(own: OwnChannel, tx_hash: TxHash) -> None:
    """Before there is anything to settle."""
    config, stranger = own.signer.config, own.stall.cluster.playground.account("stranger")
    calldata = encode_settle(receiver=config.receiver, token=config.token)
    await send_dearly(own.stall.cluster, stranger, SETTLEMENT_CONTRACT, calldata)


async def drop_and_send_again(own: OwnChannel, tx_hash: TxHash) -> None:
    sent = await own.stall.driver.rpc("eth_getRawTransactionByHash", str(tx_hash))
    await drop(own, tx_hash)
    assert await own.stall.pending() == []
    await own.stall.driver.rpc("eth_sendRawTransaction", sent)


CLAIM_FAULTS: dict[str, Callable[[OwnChannel, TxHash], Awaitable[None]]] = {
    "a stranger sends the same claim first": copy_claim,
    "a stranger settles first": settle_first,
    "the pool drops it": drop_and_send_again,
}


@pytest.mark.parametrize("strike", CLAIM_FAULTS.values(), ids=CLAIM_FAULTS)
async def test_a_claim_pays_the_provider_once(
    claiming: ChannelListing, strike: Callable[[OwnChannel, TxHash], Awaitable[None]]
) -> None:
    own, before = await claiming.open_channel(), await claiming.earned()
    await own.deposit_directly(DEPOSIT)
    async with unmined(claiming.driver):
        assert (await own.spend(PRICE)).status == 200
        await strike(own, await claiming.wait_pending())
        assert (await own.spend(2 * PRICE)).status == 200
    await claiming.wait_earned(before + 2 * PRICE)
    await poll(lambda: is_claimed(own, 2 * PRICE), what="the end of the claims")
    assert (await own.escrow(), await own.states()) == ((DEPOSIT, 2 * PRICE), ["charged", "charged"])
    public = await own.spend(2 * PRICE)
    assert (public.status, public.json["reason"]) == (402, ChannelReason.BELOW_CLAIMED)
    assert find_offer(public)["extra"]["voucherState"]["signedMaxClaimable"] == str(2 * PRICE)
    assert (await own.spend(3 * PRICE)).status == 200
    await claiming.wait_earned(before + 3 * PRICE)
    await claiming.check_ledger()


async def is_claimed(own: OwnChannel, base_units: int) -> bool:
    return (await own.read()).facts.total_claimed == base_units


async def test_one_bad_channel_among_thirty_takes_no_other_with_it(claiming: ChannelListing) -> None:
    """The node of the gateway is behind while a wallet takes its money out. The claim passes there and reverts on the chain; the next one leaves the bad channel out."""
    driver, before = claiming.driver, await claiming.earned()
    bad, *good = await claiming.open_channels(await claiming.cluster.wallets(30))
    async with unmined(driver):
        for own in (bad, *good):
            calldata = own.signer.encode_deposit(2 * PRICE)
            await driver.send(key=own.wallet.key, to=SETTLEMENT_CONTRACT, payload=calldata)
    await driver.set_native_balance(claiming.gas.address, 0)
    await claiming.wait_offered("batch-settlement")
    replies = await asyncio.gather(*(own.spend(PRICE) for own in (bad, *good)))
    replies.append(await bad.spend(2 * PRICE))  # the dearest channel comes first
    assert [reply.status for reply in replies] == [200] * 31
    claiming.line.is_cut = True
    await driver.set_native_balance(claiming.gas.address, START_ETH_WEI)
    await driver.mine(1)
    await bad.withdraw(2 * PRICE)
    await bad.finalize()
    sent = await claiming.count_mined()
    claiming.line.mend()
    claiming.line.lag(3)
    await poll(lambda: has_sent(claiming, sent + 2), what="a claim of 25 channels and one of five")
    assert await claiming.earned() == before + 5 * PRICE
    claiming.line.mend()

    await claiming.wait_earned(before + 29 * PRICE)

    await bad.wait_states("reorged", "reorged")
    assert await bad.escrow() == (0, 0)
    assert {await own.escrow() for own in good} == {(2 * PRICE, PRICE)}
    assert {(await own.states())[0] for own in good} == {"charged"}
    refused = await bad.spend(3 * PRICE)
    assert (refused.status, refused.json["reason"]) == (402, ChannelReason.CUMULATIVE_MISMATCH)
    assert await claiming.count_mined() == sent + 3
    await claiming.check_ledger()


async def has_sent(stall: ChannelListing, count: int) -> bool:
    return await stall.count_mined() == count


async def test_a_blocked_receiver_keeps_his_claims_and_holds_up_no_other(
    claiming: ChannelListing,
) -> None:
    """The token pays him nothing for a while."""
    other = await claiming.publish_another()
    own, neighbour = await claiming.open_channel(), await other.open_channel()
    before = await claiming.earned()
    async with proxied_token(claiming.cluster, blocked=claiming.provider.address):
        for one in (own, neighbour):
            await one.deposit_directly(DEPOSIT)
            assert (await one.spend(PRICE)).status == 200
        await other.wait_earned(PRICE)
        await poll(lambda: is_claimed(own, PRICE), what="the claim of the blocked receiver")
        assert (await own.escrow(), await claiming.earned()) == ((DEPOSIT, PRICE), before)

    async def is_served() -> bool:
        return (await own.spend(2 * PRICE)).status == 200

    await poll(is_served, what="a call for the receiver who is not blocked any more")
    await claiming.wait_earned(before + 2 * PRICE)
    assert (await own.escrow(), await own.states()) == ((DEPOSIT, 2 * PRICE), ["charged", "charged"])
    assert await neighbour.escrow() == (DEPOSIT, PRICE)
    await claiming.check_ledger()


@contextlib.asynccontextmanager
async def proxied_token(
    cluster: Any, *, blocked: Address = ZERO_ADDRESS, fee: int = 0
) -> AsyncIterator[None]:
    """Meanwhile the token moves nothing to that wallet, and keeps a fee."""
    driver, token = cluster.driver, cluster.playground.token
    proxy = Contract(artifact=load_artifact(CONTRACTS / "BlockingToken.json"), address=token.address)
    await driver.set_code(LOGIC, token.artifact.runtime_code)
    await driver.set_code(token.address, proxy.artifact.runtime_code)
    gas = cluster.playground.account("gas")
    for function, arguments in (("setBlocked", (str(blocked), True)), ("setFee", (fee,))):
        await driver.wait_receipt(await driver.transact(proxy, function, *arguments, key=gas.key))
    try:
        yield
    finally:
        await driver.set_code(token.address, token.artifact.runtime_code)


CONTRACTS = Path(__file__).parent / "contracts"
LOGIC = Address(bytes(18) + b"\xb1\x0c")
"""Where `BlockingToken` finds the code of the token."""


async def test_no_transfer_of_an_escrow_pays_a_call_as_a_transaction(claiming: ChannelListing) -> None:
    """Neither the deposit nor the settle that pays the provider."""
    own, before = await claiming.open_channel(), await claiming.earned()
    deposited = await own.insist(lambda: own.deposit(DEPOSIT))
    await claiming.wait_earned(before + PRICE)
    settled = await own.find_transaction(SETTLED_TOPIC)
    deposit = TxHash.parse(read_receipt(deposited)["transaction"])
    codes = [
        (await own.show(wallet, tx_hash)).code
        for tx_hash in (deposit, settled)
        for wallet in (own.wallet, claiming.provider)
    ]
    assert codes == ["payment_verification_failed"] * 2 + ["payer_mismatch"] * 2
    assert own.seen == 1
    assert await own.states() == ["charged"]
    await claiming.check_ledger()


# ---- Withdrawals.


async def assert_closed(own: OwnChannel, ceiling: int) -> None:
    seen = own.seen
    reply = await own.spend(ceiling)
    assert (reply.status, reply.code) == (503, "channel_busy"), reply.body
    assert (reply.json["reason"], reply.headers["Retry-After"]) == ("withdrawal_pending", "60")
    assert not reply.asks_for_money
    assert own.seen == seen


async def wait_withdrawing(own: OwnChannel) -> None:
    async def is_seen() -> bool:
        return (await own.read()).state is ChannelState.WITHDRAWING

    await poll(is_seen, what="the withdrawal in the ledger")


async def test_a_withdrawal_before_the_first_call_buys_nothing(claiming: ChannelListing) -> None:
    own = await claiming.open_channel()
    await own.deposit_directly(DEPOSIT)
    await own.withdraw(DEPOSIT)
    await assert_closed(own, PRICE)
    await own.finalize()
    assert (await own.escrow(), await own.states()) == ((0, 0), [])


@pytest.mark.parametrize("is_during", [True, False], ids=["during a call", "after a call"])
async def test_a_withdrawal_takes_only_what_no_call_has_taken(
    claiming: ChannelListing, is_during: bool
) -> None:
    own, before = await claiming.open_channel(), await claiming.earned()
    await own.fill(DEPOSIT)
    await claiming.wait_earned(before + PRICE)
    async with asyncio.TaskGroup() as group:
        if is_during:
            async with claiming.cluster.holding():
                seen = own.seen
                task = group.create_task(own.spend(2 * PRICE))
                await poll(lambda: own.seen > seen, what="a call under way")
                await own.withdraw(DEPOSIT - PRICE)
                await wait_withdrawing(own)
            assert (await task).status == 200
        else:
            assert (await own.spend(2 * PRICE)).status == 200
            await claiming.wait_earned(before + 2 * PRICE)
            await own.withdraw(DEPOSIT - 2 * PRICE)
            await wait_withdrawing(own)
    await assert_closed(own, 3 * PRICE)
    await claiming.wait_earned(before + 2 * PRICE)

    await own.finalize()

    assert (await own.escrow(), await own.states()) == ((2 * PRICE, 2 * PRICE), ["charged", "charged"])
    more = own.signs(deposit_salt=fresh_salt())
    await more.insist(lambda: reopen(more, 3 * PRICE))
    await claiming.wait_earned(before + 3 * PRICE)
    await claiming.check_ledger()


async def reopen(own: OwnChannel, ceiling: int) -> Reply:
    """The next call brings a deposit, once the ledger knows of the end of the withdrawal."""

    async def is_open() -> bool:
        return (await own.read()).state is ChannelState.OPEN

    await poll(is_open, what="the end of the withdrawal in the ledger")
    reply = await own.deposit(DEPOSIT, ceiling=ceiling)
    assert reply.status in (200, 503), reply.body
    return reply


async def test_a_withdrawal_that_wins_is_owed_and_the_next_deposit_pays_it(claiming: ChannelListing) -> None:
    """The node of the gateway is away for longer than the delay of the withdrawal."""
    own, before = await claiming.open_channel(), await claiming.earned()
    await own.fill(DEPOSIT)
    await claiming.wait_earned(before + PRICE)
    claiming.line.is_cut = True
    for number in (2, 3):
        assert (await own.spend(number * PRICE)).status == 200
    await own.withdraw(DEPOSIT - PRICE)
    await own.finalize()
    assert await own.escrow() == (PRICE, PRICE)

    claiming.line.mend()
    await own.wait_states("charged", "reorged", "reorged")
    refused = await own.spend(4 * PRICE)

    assert (refused.status, refused.json["reason"]) == (402, ChannelReason.CUMULATIVE_MISMATCH)
    assert find_offer(refused)["extra"]["channelState"]["balance"] == str(PRICE)
    assert (await claiming.earned(), own.seen) == (before + PRICE, 3)
    more = own.signs(deposit_salt=fresh_salt())
    assert (await more.insist(lambda: more.deposit(DEPOSIT, ceiling=4 * PRICE))).status == 200
    await own.wait_states("charged", "charged", "charged", "charged")
    await claiming.wait_earned(before + 4 * PRICE)
    await claiming.check_ledger()


# ---- Refunds.


async def test_a_refund_follows_a_direct_refund_of_the_receiver(unclaimed: ChannelListing) -> None:
    """It has used the nonce that the gateway knows."""
    own = await unclaimed.open_channel()
    await own.fill(DEPOSIT, calls=2)
    before = await own.wallet_units()
    calldata = encode_direct_refund(own, 3 * PRICE)
    sent = await unclaimed.driver.send(key=unclaimed.provider.key, to=SETTLEMENT_CONTRACT, payload=calldata)
    assert (await unclaimed.driver.wait_receipt(sent)).succeeded
    assert await own.wallet_units() == before + 3 * PRICE

    refunded = await own.refund(ceiling=2 * PRICE)

    assert refunded.status == 200, refunded.body
    receipt = read_receipt(refunded)
    assert (receipt["amount"], receipt["extra"]["channelState"]["refundNonce"]) == (
        str(DEPOSIT - 5 * PRICE),
        "2",
    )
    assert (await own.escrow(), await own.states()) == ((2 * PRICE, 2 * PRICE), ["charged", "charged"])
    assert await own.wallet_units() == before + DEPOSIT - 2 * PRICE
    await unclaimed.check_ledger()


async def test_a_direct_refund_that_comes_first_makes_the_other_one_fail(
    unclaimed: ChannelListing,
) -> None:
    """The receiver refunds while the refund of the gateway waits in the pool."""
    own = await unclaimed.open_channel()
    await own.fill(DEPOSIT, calls=2)
    before = await own.wallet_units()
    async with asyncio.TaskGroup() as group:
        async with unmined(unclaimed.driver):
            task = group.create_task(own.refund(ceiling=2 * PRICE))
            await unclaimed.wait_pending()
            calldata = encode_direct_refund(own, 3 * PRICE)
            await send_dearly(unclaimed.cluster, unclaimed.provider, SETTLEMENT_CONTRACT, calldata)
        refused = await task
    assert (refused.status, refused.json["reason"]) == (402, ChannelReason.REFUND_FAILED)
    assert "PAYMENT-RESPONSE" not in refused.headers
    assert (await own.escrow(), await own.states()) == ((DEPOSIT - 3 * PRICE, 0), ["charged", "charged"])
    assert await own.wallet_units() == before + 3 * PRICE
    channel = await own.read()
    assert (channel.balance_units, channel.facts.refund_nonce) == (DEPOSIT - 3 * PRICE, 1)
    assert channel.reserved_call is None
    await unclaimed.check_ledger()


def encode_direct_refund(own: OwnChannel, base_units: int) -> bytes:
    return REFUND + encode_config(own.signer.config) + base_units.to_bytes(32, "big")


REFUND = compute_selector("refund((address,address,address,address,address,uint40,bytes32),uint128)")
