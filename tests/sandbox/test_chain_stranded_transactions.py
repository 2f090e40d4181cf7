"""A transaction that anvil left out is mined later, and one that waits for a missing nonce is not changed."""

from eth_account import Account

from tests.kit.stranded_transactions import resend_stranded, resend_stranded_once
from tests.kit.waits import until
from tollway.ids import Address
from tollway.sandbox.chain import ChainDriver

RECIPIENT = Address.parse("0x" + "11" * 20)


async def send_ahead(chain: ChainDriver, *nonces: int) -> str:
    """Sends these nonces of a new account, whose next one is 0: they are queued. Gives its address."""
    account = Account.create()
    await chain.set_native_balance(Address.parse(account.address), 10**20)
    for nonce in nonces:
        await chain.send(key=bytes(account.key), to=RECIPIENT, nonce=nonce)
    return str(account.address)


async def strand(chain: ChainDriver) -> str:
    """An account with two queued transactions, the first of which has its next nonce: no block takes either."""
    sender = await send_ahead(chain, 1, 2)
    await chain.rpc("anvil_setNonce", sender, "0x1")
    await chain.mine(1)
    assert await count_mined(chain, sender) == 1
    assert await chain.rpc("txpool_status") == {"pending": "0x0", "queued": "0x2"}
    return sender


async def count_mined(chain: ChainDriver, sender: str) -> int:
    return int(await chain.rpc("eth_getTransactionCount", sender, "latest"), 16)


async def are_mined(chain: ChainDriver, sender: str, count: int) -> bool:
    return await count_mined(chain, sender) >= count


async def test_stranded_transactions_are_sent_again_at_the_second_look(chain: ChainDriver) -> None:
    sender = await strand(chain)

    found = await resend_stranded_once(chain, frozenset())

    assert len(found) == 1
    assert await count_mined(chain, sender) == 1
    assert await resend_stranded_once(chain, found) == frozenset()
    await until(lambda: are_mined(chain, sender, 3))
    assert await resend_stranded_once(chain, frozenset()) == frozenset()


async def test_looks_go_on_for_as_long_as_the_context_is_open(chain: ChainDriver) -> None:
    sender = await strand(chain)

    async with resend_stranded(chain):
        await until(lambda: are_mined(chain, sender, 3))


async def test_a_gap_is_left_alone(chain: ChainDriver) -> None:
    sender = await send_ahead(chain, 1)

    found = await resend_stranded_once(chain, frozenset())

    assert found == frozenset()
    assert (await chain.rpc("txpool_status"))["queued"] == "0x1"
    assert await count_mined(chain, sender) == 0
