"""Real transactions on a real node, through the real reader and the verifier: their payments, or the refusal. What a rule decides by
clocks and depths is in `payments/test_transaction_verifier` and `test_transaction_rules`."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from eth_account import Account

from tests.kit.listings import sample_listing
from tests.kit.lookup_counter import LookupCounter
from tests.model.ledger import MemoryLedger
from tollway.chain.networks import ChainRules
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.errors import Code, Problem
from tollway.identity.signatures import SignatureVerifier, paid_call_digest, transaction_digests
from tollway.ids import Address, TxHash, keccak256
from tollway.ledger.records import PaymentState
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.proof import Binding, Proof
from tollway.payments.transaction_verifier import BoundRequest, TransactionVerifier
from tollway.registry.listing import CatalogEntry, ChargeOn, Terms
from tollway.sandbox.chain import FundedAccount, MinedReceipt

LIMITS = Limits(
    rpc_deadline_s=20.0, erc1271_deadline_s=20.0
)  # long, because the machine may be busy; no test here measures time
ORIGIN = "https://gw.example.com"
FAILED = Code.PAYMENT_VERIFICATION_FAILED


@dataclass
class Counter:
    """One listing of `provider`, and its verifier."""

    playground: Any
    reader: RpcReader
    pay_to: Address

    def __post_init__(self) -> None:
        self.ledger = MemoryLedger(now_ms=self.now_ms)
        usdc = self.playground.usdc
        self.chain_id = usdc.chain_id
        self.trips_before = 0

    def now_ms(self) -> int:
        return int(time.time()) * 1000

    def transaction_verifier(self) -> TransactionVerifier:
        rules = ChainRules(
            chain_id=self.chain_id,
            kind="test",
            confirmations=((0, 1),),
            assets=(self.playground.usdc, self.playground.native),
        )

        async def find_older_terms(entry: CatalogEntry, moment_ms: int) -> CatalogEntry:
            return entry

        async def find_payee_heads(entry: CatalogEntry, chain_id: object) -> dict[Address, int]:
            return {}

        return TransactionVerifier(
            payments=self.ledger,
            readiness=self.ledger,
            chains=self.reader,
            rules={self.chain_id: rules},
            signature_verifier=SignatureVerifier(self.reader, limits=LIMITS),
            quota=LookupCounter(),
            limits=LIMITS,
            now_ms=self.now_ms,
            find_older_terms=find_older_terms,
            find_payee_heads=find_payee_heads,
        )

    def entry(self, currency: str) -> CatalogEntry:
        terms = Terms(
            price=Price.parse("0.01"),
            currency=currency,
            networks=(self.chain_id,),
            pay_to=self.pay_to,
            operations=(),
            other_paths="serve",
            methods=(),
            described=(),
            status="active",
            charge_on=ChargeOn.SUCCESS,
            since_ms=0,
            until_ms=None,
        )
        listing = sample_listing(
            provider=self.pay_to,
            name="Quotes",
            endpoint="https://quotes.example.com",
            price=terms.price,
            currency=currency,
            networks=terms.networks,
            charge_on=terms.charge_on,
            created_ms=0,
        )
        return CatalogEntry(listing=listing, versions=(terms,))

    def plain(self, tx_hash: TxHash, signer: FundedAccount) -> Proof:
        signed = Account.unsafe_sign_hash(transaction_digests(tx_hash)[0], signer.key)
        return Proof(tx_hash=tx_hash, signature=bytes(signed.signature), binding=None, chain_id=None)

    def bound(self, tx_hash: TxHash, signer: FundedAccount) -> Proof:
        binding = Binding(valid_until=self.now_ms() // 1000 + 60, nonce=b"\x0c" * 32, body_hash=None)
        digest = paid_call_digest(
            chain_id=self.chain_id,
            gateway=ORIGIN,
            api_id="api_1",
            method="GET",
            target=b"/quote/ETH",
            body_hash=keccak256(b""),
            transaction=tx_hash,
            valid_until=binding.valid_until,
            nonce=binding.nonce,
        )
        signed = Account.unsafe_sign_hash(digest, signer.key)
        return Proof(tx_hash=tx_hash, signature=bytes(signed.signature), binding=binding, chain_id=None)

    async def show(self, proof: Proof, currency: str = "USDC") -> list[int] | tuple[Code, str | None]:
        """The value of each payment, or code and reason."""
        request = BoundRequest(
            gateway=ORIGIN,
            method="GET",
            target=b"/quote/ETH",
            body_hash=keccak256(b""),
            client_address="192.0.2.7",
        )
        outcome = await self.transaction_verifier().find_spendable(proof, self.entry(currency), request)
        if isinstance(outcome, Problem):
            return outcome.code, outcome.reason
        return [spendable.payment.value_units for spendable in outcome]

    async def pay(self, receipt: MinedReceipt, signer: FundedAccount, currency: str = "USDC") -> Any:
        return await self.show(self.plain(receipt.tx_hash, signer), currency)


@pytest.fixture
def round_trips() -> list[int]:
    return []


@pytest.fixture
async def counter(anvil, playground, provider_account, round_trips) -> AsyncIterator[Counter]:
    chains = {anvil.chain_id: ChainEndpoints(urls=(anvil.rpc_url,))}
    async with RpcReader(chains, limits=LIMITS, on_request=round_trips.append) as reader:
        yield Counter(playground, reader, provider_account.address)


async def test_a_token_transfer_in_two_round_trips_and_never_again(
    counter, scenarios, chain, caller, provider_account, round_trips
) -> None:
    receipt = await scenarios.pay_token(caller, provider_account.address, 10_000)
    await chain.mine(3)
    assert await counter.pay(receipt, caller) == [10_000]
    assert len(round_trips) == 2
    assert await counter.show(counter.bound(receipt.tx_hash, caller)) == [10_000]
    assert len(round_trips) == 2
    (payment,) = await counter.ledger.find_payments(receipt.tx_hash)
    assert (payment.payer, payment.payee, payment.block_hash) == (
        caller.address,
        provider_account.address,
        receipt.block_hash,
    )
    assert payment.state is PaymentState.FINAL


async def test_a_native_transfer_exactly(counter, scenarios, caller, stranger, provider_account) -> None:
    receipt = await scenarios.pay_native(caller, provider_account.address, 10**16 + 10**9 - 1)
    assert await counter.pay(receipt, stranger, "ETH") == (Code.PAYER_MISMATCH, None)
    assert await counter.pay(receipt, caller, "ETH") == [10**7]


async def test_failures_are_no_payments(counter, scenarios, caller, provider_account) -> None:
    assert await counter.pay(await scenarios.fail(caller, 5), caller, "ETH") == (FAILED, "transaction_failed")
    failed = await scenarios.fail_token(caller, provider_account.address)
    assert await counter.pay(failed, caller) == (FAILED, "transaction_failed")


async def test_another_token_another_recipient_and_a_spoof(
    counter, scenarios, caller, stranger, provider_account
) -> None:
    to = provider_account.address
    other = await scenarios.pay_other_token(caller, to, 10_000)
    assert await counter.pay(other, caller) == (FAILED, "wrong_token")
    elsewhere = await scenarios.pay_token(caller, stranger.address, 10_000)
    assert await counter.pay(elsewhere, caller) == (FAILED, "wrong_recipient")
    spoof = await scenarios.spoof(caller, payer=caller.address, to=to, amount=10_000)
    assert await counter.pay(spoof, caller) == (FAILED, "wrong_token")


async def test_two_transfers_are_worth_their_sum(
    counter, scenarios, caller, stranger, provider_account
) -> None:
    to = provider_account.address
    receipt = await scenarios.bundle(stranger, [(caller, to, 10_000), (caller, to, 10_000)])
    assert await counter.pay(receipt, caller) == [20_000]
    assert await counter.pay(receipt, stranger) == (Code.PAYER_MISMATCH, None)


async def test_two_payers_in_one_bundle(counter, scenarios, caller, stranger, provider_account) -> None:
    to = provider_account.address
    receipt = await scenarios.bundle(stranger, [(caller, to, 10_000), (stranger, to, 7)])
    assert await counter.pay(receipt, stranger) == [7]
    assert await counter.pay(receipt, caller) == [10_000]


async def test_returned_value_is_subtracted(counter, scenarios, caller, stranger, provider_account) -> None:
    to = provider_account.address
    part = await scenarios.bundle(stranger, [(caller, to, 10), (provider_account, caller.address, 3)])
    assert await counter.pay(part, caller) == [7]
    whole = await scenarios.bundle(stranger, [(caller, to, 10), (provider_account, caller.address, 10)])
    assert await counter.pay(whole, caller) == (FAILED, "returned")
    itself = await scenarios.pay_token(provider_account, to, 10)
    assert await counter.pay(itself, provider_account) == (FAILED, "returned")


async def test_a_relayed_transfer_is_the_owners(
    counter, scenarios, caller, stranger, provider_account
) -> None:
    """`transferFrom` by another account: the payer is the wallet whose tokens were moved."""
    receipt = await scenarios.bundle(stranger, [(caller, provider_account.address, 10_000)])
    assert receipt.sender == stranger.address
    assert await counter.pay(receipt, stranger) == (Code.PAYER_MISMATCH, None)
    assert await counter.pay(receipt, caller) == [10_000]


@pytest.mark.parametrize("extra", [0, 7])
async def test_an_authorised_transfer_counts_elsewhere(
    counter, scenarios, caller, stranger, provider_account, extra
) -> None:
    receipt = await scenarios.relay(stranger, caller, provider_account.address, 10_000, extra=extra)
    assert await counter.pay(receipt, caller) == (FAILED, "authorization_transfer")


async def test_native_value_inside_a_contract(counter, scenarios, caller, provider_account) -> None:
    receipt = await scenarios.pay_native_inside(caller, provider_account.address, 10**16)
    assert await counter.pay(receipt, caller, "ETH") == (FAILED, "internal_transfer")


async def test_a_payment_that_left_the_chain_is_unknown_again(
    counter, scenarios, chain, caller, provider_account
) -> None:
    receipt = await scenarios.pay_token(caller, provider_account.address, 10_000)
    await chain.reorg(1)
    assert await counter.pay(receipt, caller) == (Code.PAYMENT_PENDING, "not_mined")


@pytest.mark.parametrize("form", ["plain", "bound"])
async def test_a_contract_wallet_pays_and_its_owner_signs(
    counter, scenarios, caller, stranger, provider_account, form
) -> None:
    wallet = await scenarios.deploy("OwnedWallet", str(caller.address))
    receipt = await scenarios.pay_token_as_wallet(wallet, caller, provider_account.address, 10_000)
    sign = counter.bound if form == "bound" else counter.plain
    assert await counter.show(sign(receipt.tx_hash, stranger)) == (Code.PAYER_MISMATCH, None)
    for _ in range(2):
        assert await counter.show(sign(receipt.tx_hash, caller)) == [10_000]
    (payment,) = await counter.ledger.find_payments(receipt.tx_hash)
    assert payment.payer == wallet.address


@pytest.mark.parametrize("name", ["GasBurnerWallet", "MisalignedWallet", "ShortWallet", "RevertingWallet"])
async def test_a_hostile_wallet_does_not_verify(counter, scenarios, caller, provider_account, name) -> None:
    wallet = await scenarios.deploy(name)
    receipt = await scenarios.pay_token_as_wallet(wallet, caller, provider_account.address, 10_000)
    assert await counter.pay(receipt, caller) == (Code.PAYER_MISMATCH, None)
