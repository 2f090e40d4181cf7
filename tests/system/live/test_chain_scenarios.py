"""The payments that `ChainScenarios` makes, read from their receipts."""

import pytest

from tollway.ids import ZERO_ADDRESS, Address, keccak256

TRANSFER = keccak256(b"Transfer(address,address,uint256)")
AUTHORIZATION_USED = keccak256(b"AuthorizationUsed(address,bytes32)")
SEEN: dict[str, dict[Address, int]] = {}
"""The balances that the first visit found."""


def transfers(receipt):
    """(token, from, to, value) of every log with the Transfer topic and the ERC-20 shape."""
    return [
        (
            log.address,
            Address(log.topics[1][12:]),
            Address(log.topics[2][12:]),
            int.from_bytes(log.payload, "big"),
        )
        for log in receipt.logs
        if log.topics[0] == TRANSFER and len(log.topics) == 3
    ]


async def test_token_payment_logs_one_transfer(scenarios, playground, caller, provider_account):
    receipt = await scenarios.pay_token(caller, provider_account.address, 10_000)
    assert transfers(receipt) == [
        (playground.token.address, caller.address, provider_account.address, 10_000)
    ]
    assert receipt.succeeded
    assert receipt.sender == caller.address


@pytest.mark.parametrize("visit", ["first", "second"])
async def test_each_test_finds_the_chain_as_it_was_before_the_others(
    scenarios, chain, playground, caller, provider_account, visit
):
    """A payment of one test is not on the chain in the next one. Wallets that a file shares may have paid before
    both."""
    balances = {
        account.address: await chain.call(playground.token, "balanceOf", str(account.address))
        for account in playground.accounts
    }
    assert SEEN.setdefault("balances", balances) == balances
    await scenarios.pay_token(caller, provider_account.address, 10_000)


async def test_native_payment_has_no_log_and_moves_value(scenarios, chain, caller, provider_account):
    before = await chain.fetch_native_balance(provider_account.address)
    receipt = await scenarios.pay_native(caller, provider_account.address, 5)
    assert await chain.fetch_native_balance(provider_account.address) == before + 5
    assert receipt.logs == ()


async def test_internal_payment_moves_value_behind_the_transaction(
    scenarios, chain, caller, provider_account
):
    before = await chain.fetch_native_balance(provider_account.address)
    receipt = await scenarios.pay_native_inside(caller, provider_account.address, 5)
    raw = await chain.rpc("eth_getTransactionByHash", str(receipt.tx_hash))
    assert await chain.fetch_native_balance(provider_account.address) == before + 5
    assert Address.parse(raw["to"]) != provider_account.address


async def test_failures_are_mined_with_status_zero(scenarios, caller, provider_account):
    assert not (await scenarios.fail(caller, 5)).succeeded
    refused = await scenarios.fail_token(caller, provider_account.address)
    assert not refused.succeeded
    assert refused.logs == ()


async def test_other_token_is_another_address(scenarios, playground, caller, provider_account):
    receipt = await scenarios.pay_other_token(caller, provider_account.address, 10_000)
    ((token, *rest),) = transfers(receipt)
    assert rest == [caller.address, provider_account.address, 10_000]
    assert token != playground.token.address


async def test_spoof_comes_from_no_token_and_moves_nothing(
    scenarios, chain, playground, caller, stranger, provider_account
):
    before = await chain.call(playground.token, "balanceOf", str(provider_account.address))
    receipt = await scenarios.spoof(
        stranger, payer=caller.address, to=provider_account.address, amount=10_000
    )
    ((token, *rest),) = transfers(receipt)
    assert rest == [caller.address, provider_account.address, 10_000]
    assert token != playground.token.address
    assert await chain.call(playground.token, "balanceOf", str(provider_account.address)) == before


async def test_bundle_holds_two_payers_and_a_way_back(scenarios, caller, stranger, provider_account):
    to = provider_account.address
    receipt = await scenarios.bundle(
        stranger, [(caller, to, 3), (stranger, to, 4), (caller, to, 5), (provider_account, caller.address, 1)]
    )
    assert [rest for _, *rest in transfers(receipt)] == [
        [caller.address, to, 3],
        [stranger.address, to, 4],
        [caller.address, to, 5],
        [to, caller.address, 1],
    ]


async def test_relay_shows_the_authorization_beside_an_ordinary_transfer(
    scenarios, caller, stranger, provider_account
):
    receipt = await scenarios.relay(stranger, caller, provider_account.address, 10_000, extra=7)
    used = [log for log in receipt.logs if log.topics[0] == AUTHORIZATION_USED]
    assert [log.topics[1][12:] for log in used] == [caller.address]
    assert [value for *_, value in transfers(receipt)] == [10_000, 7]
    assert receipt.sender == stranger.address


async def test_wallet_pays_while_its_owner_sends(scenarios, caller, provider_account):
    wallet = await scenarios.deploy("OwnedWallet", str(caller.address))
    receipt = await scenarios.pay_token_as_wallet(wallet, caller, provider_account.address, 10_000)
    assert [rest for _, *rest in transfers(receipt)] == [[wallet.address, provider_account.address, 10_000]]
    assert receipt.sender == caller.address
    assert wallet.address != ZERO_ADDRESS


async def test_mining_makes_depth_and_finality_follows(chain):
    head = int(await chain.rpc("eth_blockNumber"), 16)
    await chain.mine(5)
    assert int(await chain.rpc("eth_blockNumber"), 16) == head + 5
    finalized = await chain.rpc("eth_getBlockByNumber", "finalized", False)
    assert int(finalized["number"], 16) == head + 3
