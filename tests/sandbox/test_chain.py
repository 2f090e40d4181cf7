import pytest

from tollway.ids import TxHash
from tollway.sandbox.chain import RpcRefused

pytestmark = pytest.mark.live


async def test_a_signed_transaction_is_known_by_its_hash_before_it_is_sent(chain, playground):
    caller, stranger = playground.account("caller"), playground.account("stranger")
    raw, tx_hash = await chain.sign(key=caller.key, to=stranger.address, value=1)
    assert await chain.rpc("eth_getTransactionByHash", str(tx_hash)) is None
    assert await chain.rpc("eth_sendRawTransaction", "0x" + raw.hex()) == str(tx_hash)
    receipt = await chain.wait_receipt(tx_hash)
    assert (receipt.tx_hash, receipt.succeeded, receipt.sender) == (tx_hash, True, caller.address)


async def test_a_refusal_of_the_node_is_raised_with_its_code(chain):
    with pytest.raises(RpcRefused, match="eth_noSuchMethod") as caught:
        await chain.rpc("eth_noSuchMethod")
    assert caught.value.code == -32601


async def test_a_revert_carries_its_payload(chain, playground):
    with pytest.raises(RpcRefused, match="revert") as caught:
        await chain.call(playground.token, "transfer", str(playground.account("caller").address), 1)
    assert b"transfer exceeds the balance" in caught.value.payload or b"zero address" in caught.value.payload


async def test_a_receipt_that_never_comes_ends_the_wait(chain):
    with pytest.raises(TimeoutError):
        await chain.wait_receipt(TxHash(b"\x01" * 32), deadline_s=0)


async def test_revert_restores_the_snapshot(chain, playground):
    caller, stranger = playground.account("caller"), playground.account("stranger")
    before = await chain.snapshot()
    sent = await chain.send_native(key=caller.key, to=stranger.address, value=1)
    await chain.wait_receipt(sent)
    await chain.revert(before)
    assert await chain.rpc("eth_getTransactionReceipt", str(sent)) is None
    assert await chain.fetch_native_balance(caller.address) == 10 * 10**18
    with pytest.raises((LookupError, RpcRefused)):
        await chain.revert(before)


async def test_reorg_forgets_a_transaction_or_mines_it_again_elsewhere(chain, playground):
    caller, stranger = playground.account("caller"), playground.account("stranger")
    raw, tx_hash = await chain.sign(key=caller.key, to=stranger.address, value=1)
    await chain.rpc("eth_sendRawTransaction", "0x" + raw.hex())
    first = await chain.wait_receipt(tx_hash)
    await chain.reorg(1)
    assert await chain.rpc("eth_getTransactionReceipt", str(tx_hash)) is None
    await chain.reorg(1, [(raw, 0)])
    again = await chain.wait_receipt(tx_hash)
    assert again.block_number == first.block_number
    assert again.block_hash != first.block_hash
