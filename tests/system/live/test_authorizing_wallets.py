"""Contract wallets that pay by authorisation (ERC-1271) at a real gateway, deployed or not yet (ERC-6492). A normal wallet
is served. A hostile one is refused or pays, costs the operator a bounded amount of gas, and delays no other payer."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.stock_clients import ONE_OF_EACH_DIALECT, StockClient
from tests.clients.stock_clients import pay as pay_as_stock_client
from tests.kit.authorization_payer import DIALECTS, RECEIPTS, V2, AuthorizationPayer, Header
from tests.kit.gateway_cluster import API, PRICE_UNITS, GatewayCluster
from tests.kit.gateway_process import poll
from tests.kit.signed_calls import transfers_of
from tests.kit.undeployed_wallets import (
    UndeployedWallet,
    install_multicall,
    plan_open_wallet,
    plan_owned_wallet,
)
from tollway.chain.multicall import MULTICALL3
from tollway.chain.tokens import encode_transfer_with_authorization
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.settlement_recovery import EXPIRY_SLACK_S, REVERTED_MAX
from tollway.payments.settlement_rules import WALLET_BUDGET_DIVISOR
from tollway.sandbox.chain import Contract, load_artifact

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTRACTS = Path(__file__).parent / "contracts"
SIMULATION_FAILED = "invalid_exact_evm_transaction_simulation_failed"
BAD_SIGNATURE = "invalid_exact_evm_payload_signature"
FACTORY_REFUSED = "eip6492_factory_not_allowed"
RUBBISH = b"whatever"
AT_ONCE = 20
FAILED_CALLS = 3
BUDGET_ETH = Decimal("0.002")
GAS_PRICE_MAX_WEI = 5 * 10**9
"""More than anvil ever asks for here."""
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    cluster: GatewayCluster
    gateway: Any
    gas: Any
    provider: Any
    api_id: str
    owned_factory: Contract | None = None
    open_factory: Contract | None = None

    async def standing(self, name: str, *arguments: object) -> Contract:
        """A new contract."""
        artifact = load_artifact(CONTRACTS / f"{name}.json")
        return await self.cluster.driver.deploy(artifact, *arguments, key=self.provider.key)

    async def funded(self, wallet: Address) -> None:
        token, driver = self.cluster.playground.token, self.cluster.driver
        minted = await driver.transact(token, "mint", str(wallet), 10**9, key=self.provider.key)
        assert (await driver.wait_receipt(minted)).succeeded

    async def customer(self, name: str | None = None) -> AuthorizationPayer:
        """A plain wallet, or one of those contracts; its signatures are made by its owner's key."""
        owner = await self.cluster.wallet()
        payer = None
        if name is not None:
            arguments = (str(owner.address),) if name == "OwnedWallet" else ()
            payer = (await self.standing(name, *arguments)).address
            await self.funded(payer)
        return AuthorizationPayer(
            cluster=self.cluster, gateway=self.gateway, api_id=self.api_id, signer=owner, payer=payer
        )

    async def newcomer(self, name: str = "OwnedWallet", *arguments: object, by: str = "create") -> "Newcomer":
        """A funded wallet that is not deployed. Its factory is on the gateway's list."""
        owner, driver = await self.cluster.wallet(), self.cluster.driver
        assert self.owned_factory is not None
        assert self.open_factory is not None
        if name == "OwnedWallet" and by == "create":
            wallet = await plan_owned_wallet(driver, self.owned_factory, owner.address)
        else:
            arguments = (str(owner.address),) if name == "OwnedWallet" else arguments
            wallet = await plan_open_wallet(driver, self.open_factory, name, *arguments, by=by)
        await self.funded(wallet.address)
        payer = AuthorizationPayer(
            cluster=self.cluster,
            gateway=self.gateway,
            api_id=self.api_id,
            signer=owner,
            payer=wallet.address,
        )
        return Newcomer(harness=self, wallet=wallet, payer=payer)

    async def sold(self) -> Any:
        """The last call in the history of its provider."""
        calls = await self.cluster.history(self.gateway, self.provider, "&role=provider")
        return calls[0]

    async def count_sent(self) -> int:
        """The number of transactions of the gas key, pending ones included."""
        count = await self.cluster.driver.rpc("eth_getTransactionCount", str(self.gas.address), "pending")
        return int(count, 16)

    async def gas_left_wei(self) -> int:
        return await self.cluster.driver.fetch_native_balance(self.gas.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A wallet without code, and its owner, who signs for it."""

    harness: Harness
    wallet: UndeployedWallet
    payer: AuthorizationPayer

    def show(self, quote: Any, dialect: str = V2, *, inner: bytes | None = None, **wrapper: Any) -> Header:
        """The header of a wrapped signature. `inner`: instead of the owner's; `wrapper`: other fields of the wrapper."""
        signed = self.payer.sign(quote, dialect)
        fields = {name: getattr(signed, name) for name in ("valid_after", "valid_before", "nonce")}
        inner = signed.signature if inner is None else inner
        return self.payer.show(quote, dialect, **fields, signature=self.wallet.wrap(inner, **wrapper))

    async def pay(self, path: str, dialect: str = V2, **shown: Any) -> Any:
        return await self.payer.call(path, [self.show(await self.payer.quote(path), dialect, **shown)])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(
    own_chain_cluster: GatewayCluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Harness]:
    gas, provider = await own_chain_cluster.wallets(2)
    driver = own_chain_cluster.driver
    await install_multicall(driver, key=provider.key)
    owned, opened = [
        await driver.deploy(load_artifact(CONTRACTS / f"{name}.json"), key=provider.key)
        for name in ("OwnedWalletFactory", "OpenFactory")
    ]
    config = tmp_path_factory.mktemp("factories") / "tollway.toml"
    config.write_text(
        f'[[networks]]\npreset = "sandbox"\nwallet_factories = ["{owned.address}", "{opened.address}"]\n'
    )
    settings = {
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TOLLWAY_CONFIG": str(config),
        "TEST_LIMIT_SWEEP_INTERVAL_S": "0.05",
    }
    async with own_chain_cluster.gateway(settings=settings) as gateway:
        api_id = await own_chain_cluster.publish(gateway, provider)
        yield Harness(
            cluster=own_chain_cluster,
            gateway=gateway,
            gas=gas,
            provider=provider,
            api_id=api_id,
            owned_factory=owned,
            open_factory=opened,
        )


def fresh_path() -> str:
    return f"/echo/wallet-{next(_NUMBERS)}"


# ---- Those that are served.


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_wallet_pays_by_its_owners_signature(harness: Harness, dialect: str) -> None:
    payer, path = await harness.customer("OwnedWallet"), fresh_path()
    before = await payer.balance()
    reply = await payer.pay(path, dialect)
    assert (reply.status, reply.state) == (200, "charged"), reply.body
    assert RECEIPTS[dialect] in reply.headers
    assert await payer.balance() == before - PRICE_UNITS
    assert harness.cluster.provider.count(path) == 1


async def test_a_wallet_does_not_pay_by_another_keys_signature(harness: Harness) -> None:
    payer, path = await harness.customer("OwnedWallet"), fresh_path()
    stranger = await harness.cluster.wallet()
    sent = await harness.count_sent()
    reply = await replace(payer, signer=stranger).pay(path)
    assert (reply.status, reply.json["reason"]) == (402, SIMULATION_FAILED)
    assert (harness.cluster.provider.count(path), await harness.count_sent()) == (0, sent)


@pytest.mark.parametrize(
    "signature", [b"\x00", RUBBISH, bytes(65), b"\xff" * 4_096], ids=["1", "8", "65", "4096"]
)
async def test_a_wallet_that_accepts_everything_spends_its_own_balance_once(
    harness: Harness, signature: bytes
) -> None:
    payer, path = await harness.customer("YesWallet"), fresh_path()
    before = await payer.balance()
    header = payer.show(await payer.quote(path), V2, signature=signature)

    replies = await asyncio.gather(*(payer.call(path, [header]) for _ in range(AT_ONCE)))

    assert [reply.status for reply in replies].count(200) == 1
    assert not any(reply.asks_for_money for reply in replies)
    assert harness.cluster.provider.count(path) == 1
    assert await payer.balance() == before - PRICE_UNITS


@pytest.mark.parametrize("is_owner", [True, False])
async def test_of_an_account_that_delegates_its_contract_decides(harness: Harness, is_owner: bool) -> None:
    """EIP-7702: the contract decides about the signature of the own key, as with the real token."""
    payer, path = await harness.customer(), fresh_path()
    owner = payer.signer if is_owner else await harness.cluster.wallet()
    contract = await harness.standing("OwnedWallet", str(owner.address))
    await harness.cluster.driver.set_code(payer.address, bytes.fromhex("ef0100") + contract.address)
    reply = await payer.pay(path)
    if is_owner:
        assert (reply.status, reply.state) == (200, "charged"), reply.body
    else:
        assert (reply.status, reply.json["reason"]) == (402, SIMULATION_FAILED)
        assert "own code refuses the signature" in reply.json["detail"]
        served = await replace(payer, signer=owner, payer=payer.address).pay(path)
        assert served.status == 200
    assert harness.cluster.provider.count(path) == 1


# ---- Those that are refused.


@pytest.mark.parametrize(
    "name", ["GasBurnerWallet", "ReturnBombWallet", "RevertingWallet", "MisalignedWallet", "ShortWallet"]
)
async def test_a_hostile_wallet_is_refused_and_costs_no_gas(harness: Harness, name: str) -> None:
    payer, path = await harness.customer(name), fresh_path()
    before = await payer.balance(), await harness.count_sent(), await harness.gas_left_wei()
    reply = await payer.pay(path, signature=RUBBISH)
    assert (reply.status, reply.code) == (402, "payment_verification_failed")
    assert (reply.json["reason"], reply.state) == (SIMULATION_FAILED, "none")
    assert harness.cluster.provider.count(path) == 0
    assert (await payer.balance(), await harness.count_sent(), await harness.gas_left_wei()) == before


async def test_a_wallet_that_needs_more_gas_than_its_answer_may_take_is_refused(harness: Harness) -> None:
    """The transfer would succeed, because the token forwards all gas of the transaction; but the operator pays for
    that gas."""
    payer, path = await harness.customer("ThirstyWallet"), fresh_path()
    before = await payer.balance(), await harness.count_sent(), await harness.gas_left_wei()
    reply = await payer.pay(path, signature=RUBBISH)
    assert (reply.status, reply.code) == (402, "payment_verification_failed"), reply.body
    assert (reply.json["reason"], reply.state) == (BAD_SIGNATURE, "none")
    assert harness.cluster.provider.count(path) == 0
    assert (await payer.balance(), await harness.count_sent(), await harness.gas_left_wei()) == before


async def test_hostile_wallets_delay_no_other_payer(harness: Harness) -> None:
    burner, bomber = await harness.customer("GasBurnerWallet"), await harness.customer("ReturnBombWallet")
    honest, path = await harness.customer(), fresh_path()

    async def annoy(payer: AuthorizationPayer) -> set[int]:
        return {(await payer.pay(fresh_path(), signature=RUBBISH)).status for _ in range(AT_ONCE)}

    async def buy() -> list[int]:
        return [(await honest.pay(path)).status for _ in range(AT_ONCE)]

    crowd = [annoy(payer) for payer in (burner, bomber) for _ in range(4)]
    bought, *refused = await asyncio.gather(buy(), *crowd)
    assert bought == [200] * AT_ONCE
    assert all(statuses == {402} for statuses in refused)
    assert harness.gateway.is_running


# ---- Those that are not deployed yet.


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_first_payment_deploys_the_wallet_in_its_transaction(
    harness: Harness, dialect: str
) -> None:
    newcomer, path = await harness.newcomer(), fresh_path()
    before, sent = await newcomer.payer.balance(), await harness.count_sent()

    reply = await newcomer.pay(path, dialect)

    assert (reply.status, reply.state) == (200, "charged"), reply.body
    assert RECEIPTS[dialect] in reply.headers
    assert await newcomer.payer.balance() == before - PRICE_UNITS
    assert await newcomer.wallet.has_code()
    assert await harness.count_sent() == sent + 1
    (tx_hash,) = await transfers_of(harness.cluster, newcomer.wallet.address)
    transaction = await harness.cluster.driver.rpc("eth_getTransactionByHash", str(tx_hash))
    assert (Address.parse(transaction["to"]), int(transaction["value"], 16)) == (MULTICALL3, 0)
    assert (await harness.sold())["payment"]["transaction"] == str(tx_hash)

    later = await newcomer.pay(path, dialect)  # its client wraps the signature until it notices
    plain = await newcomer.payer.pay(path, dialect)
    assert (later.status, plain.status) == (200, 200), later.body
    assert await newcomer.payer.balance() == before - 3 * PRICE_UNITS
    assert harness.cluster.provider.count(path) == 3


async def test_unmodified_clients_pay_with_a_wallet_that_is_not_deployed(harness: Harness) -> None:
    """One of each dialect; their accounts wrap signatures as viem's smart accounts do."""

    async def pay(client: StockClient) -> None:
        newcomer, path = await harness.newcomer(), fresh_path()
        wallet = newcomer.wallet
        told = await pay_as_stock_client(
            client.script,
            f"{harness.gateway.public_url}{API}/gateway/{harness.api_id}{path}",
            key=newcomer.payer.signer.private_key,
            undeployed_wallet={
                "address": str(wallet.address),
                "factory": str(wallet.factory),
                "calldata": "0x" + wallet.calldata.hex(),
            },
        )
        assert (told.status, told.error) == (200, None), told
        assert [str(one) for one in await transfers_of(harness.cluster, wallet.address)] == [told.transaction]
        assert await wallet.has_code()

    for client in ONE_OF_EACH_DIALECT:
        await pay(client)


async def test_first_payments_at_once_deploy_the_wallet_once(harness: Harness) -> None:
    newcomer, path = await harness.newcomer(), fresh_path()
    before, sent = await newcomer.payer.balance(), await harness.count_sent()
    replies = await asyncio.gather(*(newcomer.pay(path) for _ in range(5)))
    assert [(reply.status, reply.code) for reply in replies] == [(200, None)] * 5, [
        reply.body for reply in replies
    ]
    assert await newcomer.payer.balance() == before - 5 * PRICE_UNITS
    assert await harness.count_sent() == sent + 5, "no transaction was in vain"


async def test_one_wrapped_signature_pays_one_call(harness: Harness) -> None:
    newcomer, path = await harness.newcomer(), fresh_path()
    before = await newcomer.payer.balance()
    header = newcomer.show(await newcomer.payer.quote(path))
    replies = await asyncio.gather(*(newcomer.payer.call(path, [header]) for _ in range(AT_ONCE)))
    assert [reply.status for reply in replies].count(200) == 1
    assert not any(reply.asks_for_money for reply in replies)
    assert len(await transfers_of(harness.cluster, newcomer.wallet.address)) == 1
    assert await newcomer.payer.balance() == before - PRICE_UNITS


async def test_a_wallet_that_is_deployed_during_its_call_pays_all_the_same(harness: Harness) -> None:
    newcomer, path = await harness.newcomer(), fresh_path()
    before = await newcomer.payer.balance()
    async with asyncio.TaskGroup() as group, harness.cluster.holding():
        calling = group.create_task(newcomer.pay(path))
        await poll(lambda: harness.cluster.provider.count(path), what="the call")
        await newcomer.wallet.deploy(key=harness.provider.key)
    assert calling.result().status == 200, calling.result().body
    assert await newcomer.payer.balance() == before - PRICE_UNITS


async def test_another_factory_is_not_called_and_the_refusal_names_it(harness: Harness) -> None:
    newcomer, path = await harness.newcomer(), fresh_path()
    foreign = await harness.standing("OwnedWalletFactory")
    sent = await harness.count_sent()
    reply = await newcomer.pay(path, factory=foreign.address)
    assert (reply.status, reply.code, reply.state) == (402, "payment_verification_failed", "none"), reply.body
    assert reply.json["reason"] == FACTORY_REFUSED
    assert str(foreign.address) in reply.json["detail"]
    assert str(newcomer.wallet.factory) in reply.json["detail"]
    assert (harness.cluster.provider.count(path), await harness.count_sent()) == (0, sent)
    assert not await newcomer.wallet.has_code()
    await newcomer.wallet.deploy(key=harness.provider.key)
    assert (await newcomer.pay(path, factory=foreign.address)).status == 200, "and once it stands it pays"


@pytest.mark.parametrize(
    ("name", "by", "shown"),
    [
        ("OwnedWallet", "create", {"inner": bytes(65)}),
        ("OwnedWallet", "create", {"inner": b"no format of it"}),
        ("OwnedWallet", "create", {"calldata": b"what is that"}),
        ("YesWallet", "createWithLongAnswer", {"inner": RUBBISH}),
        ("GasBurnerWallet", "create", {"inner": RUBBISH}),
        ("ReturnBombWallet", "create", {"inner": RUBBISH}),
        ("RevertingWallet", "create", {"inner": RUBBISH}),
    ],
)
async def test_a_deployment_that_does_not_pay_is_refused_and_costs_no_gas(
    harness: Harness, name: str, by: str, shown: dict[str, Any]
) -> None:
    newcomer, path = await harness.newcomer(name, by=by), fresh_path()
    before = await newcomer.payer.balance(), await harness.count_sent(), await harness.gas_left_wei()
    reply = await newcomer.pay(path, **shown)
    assert (reply.status, reply.code, reply.state) == (402, "payment_verification_failed", "none"), reply.body
    assert reply.json["reason"] == SIMULATION_FAILED, reply.body
    assert harness.cluster.provider.count(path) == 0
    after = await newcomer.payer.balance(), await harness.count_sent(), await harness.gas_left_wei()
    assert after == before
    assert not await newcomer.wallet.has_code()


async def test_a_factory_deploys_nothing_for_a_wallet_with_a_key(harness: Harness) -> None:
    """Its own signature is good, and the call deploys another wallet at the operator's cost."""
    payer, other, path = await harness.customer(), await harness.newcomer(), fresh_path()
    sent = await harness.count_sent()
    reply = await replace(other, payer=payer).pay(path)
    assert (reply.status, reply.json["reason"]) == (402, BAD_SIGNATURE), reply.body
    assert (harness.cluster.provider.count(path), await harness.count_sent()) == (0, sent)
    assert not await other.wallet.has_code()
    assert (await payer.pay(path)).status == 200


async def test_a_factory_that_uses_the_authorisation_itself_is_refused(harness: Harness) -> None:
    """The payment would be made within the call of the factory: the transfer after it reverts, and so does everything."""
    newcomer, path = await harness.newcomer("YesWallet", by="create"), fresh_path()
    quote = await newcomer.payer.quote(path)
    signed = newcomer.payer.sign(quote, V2)
    token = harness.cluster.playground.token.address
    for payee in (signed.payee, newcomer.payer.signer.address):
        inside = encode_transfer_with_authorization(
            payer=signed.payer,
            payee=payee,
            base_units=signed.base_units,
            valid_after=signed.valid_after,
            valid_before=signed.valid_before,
            nonce=signed.nonce,
            signature=RUBBISH,
        )
        wrapped = newcomer.wallet.wrap(
            RUBBISH, calldata=newcomer.wallet.calling(harness.open_factory, token, inside)
        )
        fields = {name: getattr(signed, name) for name in ("valid_after", "valid_before", "nonce")}
        reply = await newcomer.payer.call(path, [newcomer.payer.show(quote, V2, **fields, signature=wrapped)])
        assert (reply.status, reply.json["reason"]) == (402, SIMULATION_FAILED), reply.body
    assert harness.cluster.provider.count(path) == 0


async def test_a_factory_that_fails_only_in_its_block_burns_little(harness: Harness) -> None:
    """It passes every simulation and burns all gas in the block: the response is withheld, and no more gas is spent."""
    newcomer, path = await harness.newcomer("YesWallet", by="createUnlessItCosts"), fresh_path()
    before, sent, gas_left_wei = (
        await newcomer.payer.balance(),
        await harness.count_sent(),
        await harness.gas_left_wei(),
    )
    reply = await newcomer.pay(path, inner=RUBBISH)
    assert (reply.status, reply.code, reply.state) == (503, "payment_outcome_unknown", "held"), reply.body
    assert not reply.asks_for_money

    async def has_given_up() -> bool:
        return await harness.count_sent() >= sent + REVERTED_MAX

    await poll(has_given_up, what="the last try")
    assert await harness.count_sent() == sent + REVERTED_MAX
    assert harness.cluster.provider.count(path) == 1
    assert await newcomer.payer.balance() == before
    assert not await newcomer.wallet.has_code()
    burnt_wei = gas_left_wei - await harness.gas_left_wei()
    assert 0 < burnt_wei <= REVERTED_MAX * DEFAULT_LIMITS.deployment_gas_max * GAS_PRICE_MAX_WEI
    honest = await harness.newcomer()
    assert (await honest.pay(fresh_path())).status == 200, "another factory, and another wallet"


# ---- Those that change their mind.


async def test_a_wallet_that_refuses_at_the_head_gets_no_response_and_pays_nothing(harness: Harness) -> None:
    """The wallet accepts before the call, so the provider is called; its response is dropped."""
    payer = await harness.customer("FickleWallet")
    wallet = Contract(artifact=load_artifact(CONTRACTS / "FickleWallet.json"), address=payer.address)
    before, sent = await payer.balance(), await harness.count_sent()
    path = fresh_path()
    header = payer.show(await payer.quote(path), V2, signature=RUBBISH)

    async with asyncio.TaskGroup() as group, harness.cluster.holding():
        calling = group.create_task(payer.call(path, [header]))
        await poll(lambda: harness.cluster.provider.count(path), what="the call")
        await harness.cluster.driver.transact(wallet, "refuse", key=harness.provider.key)
    reply = calling.result()

    assert (reply.status, reply.code, reply.state) == (402, "payment_settlement_failed", "released"), (
        reply.body
    )
    assert "PAYMENT-RESPONSE" in reply.headers
    assert (await payer.balance(), await harness.count_sent()) == (before, sent)
    assert (await harness.sold())["payment"]["state"] == "released"


async def test_a_wallet_that_pays_only_where_it_does_not_count_gets_nothing_and_burns_little(
    harness: Harness,
) -> None:
    """The wallet accepts in the simulation and burns all gas in its block. The outcome is open until the
    authorisation has expired on the chain: until then the response is withheld and no more gas is spent."""
    payer, path = await harness.customer("TwoFacedWallet"), fresh_path()
    before, sent, gas_left_wei = (
        await payer.balance(),
        await harness.count_sent(),
        await harness.gas_left_wei(),
    )
    header = payer.show(await payer.quote(path), V2, signature=RUBBISH)

    reply = await payer.call(path, [header])

    assert (reply.status, reply.code, reply.state) == (503, "payment_outcome_unknown", "held"), reply.body
    assert not reply.asks_for_money

    async def has_given_up() -> bool:
        return await harness.count_sent() >= sent + REVERTED_MAX

    await poll(has_given_up, what="the last try")
    again = await payer.call(path, [header])
    assert (again.status, again.code, again.state) == (503, "payment_outcome_unknown", "held")
    assert harness.cluster.provider.count(path) == 1
    assert await payer.balance() == before
    assert await harness.count_sent() == sent + REVERTED_MAX
    burnt_wei = gas_left_wei - await harness.gas_left_wei()
    assert 0 < burnt_wei <= REVERTED_MAX * DEFAULT_LIMITS.settlement_gas_max * GAS_PRICE_MAX_WEI


async def test_what_was_never_paid_is_dropped_once_it_has_expired(own_chain_cluster: GatewayCluster) -> None:
    """The call ends a while after the expiry by the clock of the chain. Its response is never delivered."""
    gas, provider = await own_chain_cluster.wallets(2)
    settings = {
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TEST_LIMIT_SWEEP_INTERVAL_S": "0.05",
        "TEST_LIMIT_SETTLEMENT_ATTEMPTS_MAX": "1",
    }
    async with own_chain_cluster.gateway(settings=settings) as gateway:
        api_id = await own_chain_cluster.publish(gateway, provider)
        harness = Harness(
            cluster=own_chain_cluster, gateway=gateway, gas=gas, provider=provider, api_id=api_id
        )
        payer, path = await harness.customer("TwoFacedWallet"), fresh_path()
        before, quote = await payer.balance(), await payer.quote(path)
        valid_before = payer.sign(quote, V2).valid_before
        header = payer.show(quote, V2, valid_before=valid_before, signature=RUBBISH)
        reply = await payer.call(path, [header])
        assert (reply.status, reply.state) == (503, "held"), reply.body

        async def is_released() -> bool:
            return bool((await harness.sold())["payment"]["state"] == "released")

        try:
            await set_clock(harness, valid_before + EXPIRY_SLACK_S - 1)
            assert not await is_released()
            await set_clock(harness, valid_before + EXPIRY_SLACK_S)
            await poll(is_released, what="the release")
            late = await payer.call(path, [header])
        finally:
            await set_clock(harness, int(time.time()))

        assert (late.status, late.code) == (402, "payment_expired")
        assert (await harness.sold())["id"] == reply.json["callId"]
        assert harness.cluster.provider.count(path) == 1
        assert await payer.balance() == before


async def set_clock(harness: Harness, moment_s: int) -> None:
    """Sets the clock of the chain: of its head and of the next block."""
    await harness.cluster.driver.rpc("evm_setTime", moment_s)
    await harness.cluster.driver.mine(1)


async def test_wallets_with_code_stop_at_their_part_of_a_listing_s_gas_budget_and_others_go_on(
    own_chain_cluster: GatewayCluster, tmp_path: Path
) -> None:
    """Calls of hostile wallets on a listing of the same provider use gas of the operator: at most a part of the
    listing's gas budget, and plain wallets still pay by authorisation there."""
    gas, provider, buyer = await own_chain_cluster.wallets(3)
    config = tmp_path / "tollway.toml"
    config.write_text(f'[[networks]]\npreset = "sandbox"\nlisting_gas_budget = "{BUDGET_ETH}"\n')
    settings = {
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TOLLWAY_CONFIG": str(config),
        "TEST_LIMIT_GAS_REFRESH_S": "0.05",
        "TOLLWAY_LIMIT_ERC1271_GAS": str(DEFAULT_LIMITS.settlement_gas_max),
    }
    async with own_chain_cluster.gateway(settings=settings) as gateway:
        apis = [
            await own_chain_cluster.publish(gateway, provider, name=f"Number {number}") for number in range(2)
        ]
        harness = Harness(
            cluster=own_chain_cluster, gateway=gateway, gas=gas, provider=provider, api_id=apis[0]
        )
        hostile = await harness.customer("ThirstyWallet")
        gas_left_wei = await harness.gas_left_wei()

        async def is_refused() -> bool:
            reply = await hostile.pay(fresh_path(), signature=RUBBISH)
            return reply.status == 402 and reply.json["reason"] == "wallet_gas_budget"

        await poll(is_refused, what="the end of the budget")

        assert "PAYMENT-REQUIRED" in (await hostile.call("/echo")).headers
        spent_wei = gas_left_wei - await harness.gas_left_wei()
        most_of_one_wei = DEFAULT_LIMITS.settlement_gas_max * GAS_PRICE_MAX_WEI
        assert 0 < spent_wei <= int(BUDGET_ETH * 10**18) // WALLET_BUDGET_DIVISOR + most_of_one_wei
        for api_id in apis:
            honest = AuthorizationPayer(
                cluster=own_chain_cluster, gateway=gateway, api_id=api_id, signer=buyer
            )
            assert (await honest.pay("/echo")).status == 200


async def test_a_wallet_that_never_pays_uses_up_its_failure_budget(
    own_chain_cluster: GatewayCluster,
) -> None:
    """A call that ends undecided counts as a failed call of the wallet and of the client address."""
    gas, provider = await own_chain_cluster.wallets(2)
    settings = {
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TOLLWAY_LIMIT_FAILED_CALLS_PER_WINDOW": str(FAILED_CALLS),
    }
    async with own_chain_cluster.gateway(settings=settings) as gateway:
        api_id = await own_chain_cluster.publish(gateway, provider)
        harness = Harness(
            cluster=own_chain_cluster, gateway=gateway, gas=gas, provider=provider, api_id=api_id
        )
        path, sent = fresh_path(), await harness.count_sent()
        replies = []
        for _ in range(FAILED_CALLS):
            payer = await harness.customer("TwoFacedWallet")
            replies += [await payer.pay(path, signature=RUBBISH)]
        assert [reply.code for reply in replies] == ["payment_outcome_unknown"] * FAILED_CALLS
        refused = await payer.pay(path, signature=RUBBISH)
        assert (refused.status, refused.code) == (429, "failed_call_budget_exhausted"), refused.body
        assert harness.cluster.provider.count(path) == FAILED_CALLS
        assert await harness.count_sent() <= sent + REVERTED_MAX * FAILED_CALLS
