"""The chain reads and transactions of settlement at a real node: authorised transfers of plain and contract wallets,
front-running, and the node's responses to a send. The token is the sandbox's; it has both overloads of EIP-3009."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from eth_account import Account

from tests.kit.payer import AUTHORIZATION_TYPES
from tollway.chain import tokens
from tollway.chain.port import AuthorizationFacts, ChainFacts, NotMined, SendFault, SendRefused
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.chain.signer import GasKey, SignedTransaction
from tollway.chain.tokens import DomainFault, find_domain_fault
from tollway.ids import Address, TxHash
from tollway.limits import Limits
from tollway.money import Asset, TokenDomain
from tollway.sandbox.chain import FundedAccount

LIMITS = Limits(rpc_deadline_s=20.0)  # long, because the machine may be busy; no test here measures time
GAS_MAX = 400_000
ALWAYS = 2**48
PAID = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """Signs authorisations as payers do, and sends their settlements as the gateway does."""

    reader: RpcReader
    chain: Any
    playground: Any
    key: GasKey
    payee: Address

    @property
    def token(self) -> Address:
        address: Address = self.playground.token.address
        return address

    def sign(
        self,
        signer: FundedAccount,
        payer: Address | None = None,
        *,
        nonce: bytes | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """The fields of an authorised transfer and its signature by `signer`'s key."""
        fields: dict[str, Any] = {
            "payer": payer or signer.address,
            "payee": self.payee,
            "base_units": PAID,
            "valid_after": 0,
            "valid_before": ALWAYS,
            "nonce": nonce or secrets.token_bytes(32),
            **changes,
        }
        message = {
            "from": str(fields["payer"]),
            "to": str(fields["payee"]),
            "value": fields["base_units"],
            "validAfter": fields["valid_after"],
            "validBefore": fields["valid_before"],
            "nonce": fields["nonce"],
        }
        domain = {
            "name": "USDC",
            "version": "2",
            "chainId": self.chain.chain_id,
            "verifyingContract": str(self.token),
        }
        signed = Account.sign_typed_data(signer.key, domain, AUTHORIZATION_TYPES, message)
        return {**fields, "signature": bytes(signed.signature)}

    async def look(self, fields: dict[str, Any], *, gas: int = GAS_MAX) -> AuthorizationFacts:
        return await self.reader.fetch_authorization(
            self.chain.chain_id,
            token=self.token,
            payer=fields["payer"],
            nonce=fields["nonce"],
            sender=self.key.address,
            calldata=tokens.encode_transfer_with_authorization(**fields),
            gas=gas,
        )

    async def carry(self, fields: dict[str, Any], **changes: Any) -> SignedTransaction:
        """The signed transaction that settles it, before it is sent."""
        chain_id = self.chain.chain_id
        fees = await self.reader.fetch_fees(chain_id)
        account = await self.reader.fetch_account(chain_id, self.key.address)
        offer = {
            "nonce": account.mined_nonce,
            "gas": GAS_MAX,
            "max_fee_wei": 2 * fees.base_fee_wei + fees.tip_wei,
            "tip_wei": fees.tip_wei,
            **changes,
        }
        calldata = tokens.encode_transfer_with_authorization(**fields)
        return self.key.sign(chain_id=chain_id, to=self.token, calldata=calldata, **offer)

    async def send(self, signed: SignedTransaction) -> SendRefused | None:
        return await self.reader.send_transaction(self.chain.chain_id, signed.raw)

    async def settle(self, fields: dict[str, Any], **changes: Any) -> ChainFacts:
        signed = await self.carry(fields, **changes)
        assert await self.send(signed) is None
        await self.chain.wait_receipt(signed.tx_hash)
        facts = await self.reader.fetch_facts(self.chain.chain_id, signed.tx_hash)
        assert isinstance(facts, ChainFacts)
        return facts

    async def find_use(self, fields: dict[str, Any], *, from_block: int = 0) -> TxHash | None:
        return await self.reader.find_authorization_use(
            self.chain.chain_id,
            token=self.token,
            payer=fields["payer"],
            nonce=fields["nonce"],
            from_block=from_block,
        )

    def is_paid(self, facts: ChainFacts, fields: dict[str, Any]) -> bool:
        asked = {name: fields[name] for name in ("payer", "payee", "base_units", "nonce")}
        return facts.succeeded and tokens.has_settled(facts.logs, token=self.token, **asked)


@pytest.fixture
def round_trips() -> list[int]:
    return []


@pytest.fixture
async def harness(anvil, chain, playground, provider_account, round_trips) -> AsyncIterator[Harness]:
    endpoints = {anvil.chain_id: ChainEndpoints(urls=(anvil.rpc_url,))}
    async with RpcReader(endpoints, limits=LIMITS, on_request=round_trips.append) as reader:
        yield Harness(
            reader=reader,
            chain=chain,
            playground=playground,
            key=GasKey.parse(playground.account("gas").private_key),
            payee=provider_account.address,
        )


@pytest.fixture
async def patient_chain(chain) -> AsyncIterator[Any]:
    """A chain that mines only on command."""
    await chain.rpc("evm_setAutomine", False)
    try:
        yield chain
    finally:
        await chain.rpc("evm_setAutomine", True)


async def test_a_plain_wallets_authorisation_is_seen_in_one_round_trip_and_settles(
    harness, round_trips, caller, chain, playground
) -> None:
    fields = harness.sign(caller)
    facts = await harness.look(fields)
    assert len(round_trips) == 1
    assert (facts.code_size, facts.is_used, facts.simulation.reverted) == (0, False, False)
    assert facts.balance == await chain.call(playground.token, "balanceOf", str(caller.address))
    assert facts.gas_estimate
    settled = await harness.settle(fields, gas=facts.gas_estimate)
    assert harness.is_paid(settled, fields)
    assert tokens.find_authorizers(settled.logs, harness.token) == {caller.address}
    receipt = await chain.rpc("eth_getTransactionReceipt", str(settled.tx_hash))
    assert settled.fee_wei == int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
    after = await harness.look(fields)
    assert (after.is_used, after.simulation.reverted, after.gas_estimate) == (True, True, None)
    assert after.balance == facts.balance - PAID


@pytest.mark.parametrize("shift", [0, 27], ids=["v of 0 or 1", "v of 27 or 28"])
async def test_both_spellings_of_v_settle(harness, caller, shift: int) -> None:
    fields = harness.sign(caller)
    signature = fields["signature"]
    fields["signature"] = signature[:64] + bytes([signature[64] - 27 + shift])
    assert harness.is_paid(await harness.settle(fields), fields)


async def test_the_overload_with_bytes_settles_a_plain_wallets_signature_too(
    harness, caller, chain, playground
) -> None:
    fields = harness.sign(caller)
    token = playground.token
    types = "(address,address,uint256,uint256,uint256,bytes32,bytes)"
    values = [
        str(fields["payer"]),
        str(fields["payee"]),
        PAID,
        0,
        ALWAYS,
        fields["nonce"],
        fields["signature"],
    ]
    gas = playground.account("gas")
    tx_hash = await chain.transact(token, "transferWithAuthorization" + types, *values, key=gas.key)
    await chain.wait_receipt(tx_hash)
    facts = await harness.reader.fetch_facts(chain.chain_id, tx_hash)
    assert harness.is_paid(facts, fields)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"base_units": 2**128}, id="more than the balance"),
        pytest.param({"valid_before": 1}, id="expired"),
        pytest.param({"valid_after": ALWAYS - 1}, id="not yet valid"),
        pytest.param({"payer": Address(b"\x11" * 20)}, id="another wallet's name"),
    ],
)
async def test_what_the_token_refuses_is_known_before_it_is_sent_and_fails_when_it_is(
    harness, caller, changes: dict[str, Any]
) -> None:
    fields = harness.sign(caller, changes.pop("payer", None), **changes)
    facts = await harness.look(fields)
    assert (facts.simulation.reverted, facts.gas_estimate, facts.is_used) == (True, None, False)
    assert b"TestUSDC" in facts.simulation.payload
    sent = await harness.settle(fields)
    assert (sent.succeeded, sent.logs) == (False, ())
    assert await harness.find_use(fields) is None
    assert not (await harness.look(fields)).is_used


async def test_one_nonce_settles_once(harness, caller) -> None:
    fields = harness.sign(caller)
    await harness.settle(fields)
    again = await harness.settle(fields)
    assert not again.succeeded
    other = harness.sign(caller, nonce=fields["nonce"], base_units=1)
    assert (await harness.look(other)).simulation.reverted


# ---- Contract wallets.


async def fund(harness: Harness, wallet: Address, caller: FundedAccount) -> None:
    minted = await harness.chain.transact(
        harness.playground.token, "mint", str(wallet), 10 * PAID, key=caller.key
    )
    await harness.chain.wait_receipt(minted)


async def test_a_well_behaved_wallet_settles_by_its_owners_signature(
    harness, scenarios, caller, stranger
) -> None:
    wallet = await scenarios.deploy("OwnedWallet", str(caller.address))
    await fund(harness, wallet.address, caller)
    fields = harness.sign(caller, wallet.address)
    facts = await harness.look(fields)
    assert facts.code_size > 0
    assert not facts.simulation.reverted
    assert harness.is_paid(await harness.settle(fields), fields)
    assert (await harness.look(harness.sign(stranger, wallet.address))).simulation.reverted


async def test_a_wallet_that_accepts_everything_pays_by_any_signature(harness, scenarios, caller) -> None:
    wallet = await scenarios.standing("YesWallet")
    await fund(harness, wallet.address, caller)
    fields = {**harness.sign(caller, wallet.address), "signature": b"whatever"}
    assert not (await harness.look(fields)).simulation.reverted
    assert harness.is_paid(await harness.settle(fields), fields)


@pytest.mark.parametrize("name", ["GasBurnerWallet", "RevertingWallet", "MisalignedWallet", "ShortWallet"])
async def test_a_wallet_that_does_not_accept_is_refused_within_the_gas_limit(
    harness, scenarios, caller, name: str
) -> None:
    wallet = await scenarios.standing(name)
    await fund(harness, wallet.address, caller)
    facts = await harness.look({**harness.sign(caller, wallet.address), "signature": b"whatever"})
    assert (facts.simulation.reverted, facts.gas_estimate) == (True, None)
    assert len(facts.simulation.payload) <= LIMITS.erc1271_bytes_max


async def test_a_valid_result_in_a_megabyte_exceeds_the_gas_limit(harness, scenarios, caller) -> None:
    wallet = await scenarios.standing("ReturnBombWallet")
    await fund(harness, wallet.address, caller)
    facts = await harness.look({**harness.sign(caller, wallet.address), "signature": b"whatever"})
    assert facts.simulation.reverted
    assert facts.gas_estimate is None


# ---- Who was faster.


async def test_the_transaction_that_used_an_authorisation_first_is_found(
    harness, caller, stranger, chain, playground
) -> None:
    await chain.mine(3)
    fields = harness.sign(caller)
    assert await harness.find_use(fields) is None
    before = (await harness.look(fields)).head_number
    calldata = tokens.encode_transfer_with_authorization(**fields)
    used = await chain.send(key=stranger.key, to=harness.token, payload=calldata)
    await chain.wait_receipt(used)
    await chain.mine(3)
    assert await harness.find_use(fields) == used
    assert await harness.find_use(fields, from_block=before) == used
    facts = await harness.reader.fetch_facts(chain.chain_id, used)
    assert harness.is_paid(facts, fields)
    assert await harness.find_use(fields, from_block=facts.block_number + 1) is None
    late = await harness.settle(fields)
    assert not late.succeeded


async def test_one_bundled_with_another_transfer_is_found_and_paid(
    harness, scenarios, caller, stranger
) -> None:
    receipt = await scenarios.relay(stranger, caller, harness.payee, PAID, extra=5)
    fields = {"payer": caller.address, "payee": harness.payee, "base_units": PAID, "nonce": b"\x07" * 32}
    assert await harness.find_use(fields) == receipt.tx_hash
    facts = await harness.reader.fetch_facts(harness.chain.chain_id, receipt.tx_hash)
    assert harness.is_paid(facts, fields)
    assert not harness.is_paid(facts, {**fields, "base_units": 6})


async def test_an_authorisation_that_was_taken_back_is_found_and_not_paid(
    harness, caller, chain, playground
) -> None:
    fields = harness.sign(caller)
    domain = {
        "name": "USDC",
        "version": "2",
        "chainId": chain.chain_id,
        "verifyingContract": str(harness.token),
    }
    types = {
        "CancelAuthorization": [
            {"name": "authorizer", "type": "address"},
            {"name": "nonce", "type": "bytes32"},
        ]
    }
    message = {"authorizer": str(caller.address), "nonce": fields["nonce"]}
    signature = bytes(Account.sign_typed_data(caller.key, domain, types, message).signature)
    cancelled = await chain.transact(
        playground.token,
        "cancelAuthorization(address,bytes32,bytes)",
        str(caller.address),
        fields["nonce"],
        signature,
        key=caller.key,
    )
    await chain.wait_receipt(cancelled)
    facts = await harness.look(fields)
    assert (facts.is_used, facts.simulation.reverted) == (True, True)
    assert await harness.find_use(fields) == cancelled
    found = await harness.reader.fetch_facts(chain.chain_id, cancelled)
    assert not harness.is_paid(found, fields)
    assert tokens.has_ended(found.logs, token=harness.token, payer=caller.address, nonce=fields["nonce"])


async def test_a_reorganisation_gives_an_authorisation_back(harness, caller, chain) -> None:
    fields = harness.sign(caller)
    await harness.settle(fields)
    await chain.reorg(1)
    assert await harness.find_use(fields) is None
    facts = await harness.look(fields)
    assert (facts.is_used, facts.simulation.reverted) == (False, False)
    assert harness.is_paid(await harness.settle(fields), fields)


# ---- Sends, fees, accounts, receipts.


async def test_a_known_transaction_is_accepted_in_the_pool_and_in_a_block(
    harness, caller, patient_chain
) -> None:
    signed = await harness.carry(harness.sign(caller))
    assert await harness.send(signed) is None
    assert await harness.send(signed) is None  # in the pool
    pending = NotMined(chain_id=patient_chain.chain_id, is_pending=True)
    assert await harness.reader.fetch_facts(patient_chain.chain_id, signed.tx_hash) == pending
    account = await harness.reader.fetch_account(patient_chain.chain_id, harness.key.address)
    await patient_chain.mine()
    assert await harness.send(signed) is None  # mined
    after = await harness.reader.fetch_account(patient_chain.chain_id, harness.key.address)
    assert after.mined_nonce == account.mined_nonce + 1
    assert after.balance_wei < account.balance_wei


async def test_what_waits_is_not_counted_as_mined(harness, caller, patient_chain) -> None:
    before = await harness.reader.fetch_account(patient_chain.chain_id, harness.key.address)
    await harness.send(await harness.carry(harness.sign(caller)))
    assert await harness.reader.fetch_account(patient_chain.chain_id, harness.key.address) == before


async def test_a_bumped_fee_replaces_what_waits(harness, caller, patient_chain) -> None:
    fields = harness.sign(caller)
    first = await harness.carry(fields)
    second = await harness.carry(fields, max_fee_wei=20 * 10**9, tip_wei=10 * 10**9)
    assert await harness.send(first) is None
    assert await harness.send(second) is None
    await patient_chain.mine()
    told = await harness.reader.fetch_receipts(patient_chain.chain_id, [first.tx_hash, second.tx_hash])
    assert told[first.tx_hash] == NotMined(chain_id=patient_chain.chain_id, is_pending=False)
    assert harness.is_paid(told[second.tx_hash], fields)
    refused = await harness.send(first)
    assert isinstance(refused, SendRefused)
    assert refused.fault is SendFault.NONCE_TOO_LOW


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"max_fee_wei": 1, "tip_wei": 1}, SendFault.UNDERPRICED),
        ({"max_fee_wei": 10**24}, SendFault.INSUFFICIENT_FUNDS),
        ({"gas": 20_000}, SendFault.OTHER),
    ],
    ids=["below the base fee", "more than the key has", "too little gas"],
)
async def test_a_refusal_of_the_node_has_its_kind(
    harness, caller, changes: dict[str, int], fault: SendFault
) -> None:
    refused = await harness.send(await harness.carry(harness.sign(caller), **changes))
    assert isinstance(refused, SendRefused)
    assert refused.fault is fault


async def test_many_settlements_are_followed_in_two_round_trips(
    harness, caller, patient_chain, round_trips
) -> None:
    account = await harness.reader.fetch_account(patient_chain.chain_id, harness.key.address)
    every = [harness.sign(caller) for _ in range(15)]
    sent = [
        await harness.carry(fields, nonce=account.mined_nonce + place) for place, fields in enumerate(every)
    ]
    for signed in reversed(sent):
        assert await harness.send(signed) is None
    await patient_chain.mine(3)
    round_trips.clear()
    told = await harness.reader.fetch_receipts(patient_chain.chain_id, [signed.tx_hash for signed in sent])
    assert len(round_trips) == 2
    assert [harness.is_paid(facts, fields) for facts, fields in zip(told.values(), every, strict=True)] == [
        True
    ] * 15


async def test_fees_are_what_the_next_transaction_pays(harness, caller, chain) -> None:
    fees = await harness.reader.fetch_fees(chain.chain_id)
    head = await chain.rpc("eth_getBlockByNumber", "latest", False)
    assert fees.base_fee_wei == int(head["baseFeePerGas"], 16)
    assert fees.tip_wei == int(await chain.rpc("eth_maxPriorityFeePerGas"), 16)


async def test_the_domain_is_read_from_the_token(harness, scenarios, playground) -> None:
    usdc: Asset = playground.usdc
    assert usdc.domain == TokenDomain(name="USDC", version="2")

    async def ask(**changes: Any) -> DomainFault | None:
        asset = Asset(
            chain_id=usdc.chain_id,
            token=changes.get("token", usdc.token),
            symbol="USDC",
            decimals=6,
            domain=changes.get("domain", usdc.domain),
        )
        return await find_domain_fault(harness.reader, asset, deadline_s=20.0)

    wallet = await scenarios.standing("YesWallet")
    assert await ask() is None
    assert await ask(domain=TokenDomain(name="USD Coin", version="2")) is DomainFault.OTHER_DOMAIN
    assert await ask(domain=TokenDomain(name="USDC", version="1")) is DomainFault.OTHER_DOMAIN
    assert await ask(token=wallet.address) is DomainFault.NO_AUTHORIZATIONS
    assert await ask(token=Address(b"\x99" * 20)) is DomainFault.NO_AUTHORIZATIONS
