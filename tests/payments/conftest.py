"""The verifier of transactions over chains in memory and the ledger model; a test sets the clock."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import MemoryChain, Transaction, transfer_log
from tests.kit.ledger_records import claim_on
from tests.kit.listings import sample_listing
from tests.kit.lookup_counter import LookupCounter
from tests.kit.payer import KeyWallet
from tests.model.ledger import MemoryLedger
from tollway.chain.networks import ChainRules
from tollway.chain.port import ContractResult, Log
from tollway.identity.signatures import SignatureVerifier, paid_call_digest, transaction_digests
from tollway.ids import Address, ChainId, ListingId, TxHash, keccak256
from tollway.ledger.ledger import Claim
from tollway.ledger.records import Payment
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset, Price
from tollway.payments.proof import Binding, Proof
from tollway.payments.transaction_verifier import BoundRequest, TransactionVerifier
from tollway.registry.listing import CatalogEntry, ChargeOn, Terms

MAIN, SECOND, TEST = ChainId(8453), ChainId(10), ChainId(84532)
START_S = 1_800_000_000
TOKEN = Address(b"\xcc" * 20)
MAGIC_WORD = bytes.fromhex("1626ba7e").ljust(32, b"\0")


def chain_rules(chain_id: ChainId) -> ChainRules:
    assets = (
        Asset(chain_id=chain_id, token=TOKEN, symbol="USDC", decimals=6),
        Asset(chain_id=chain_id, token=None, symbol="ETH", decimals=18),
    )
    kind = "test" if chain_id == TEST else "main"
    return ChainRules(chain_id=chain_id, kind=kind, confirmations=((0, 2),), assets=assets)  # type: ignore[arg-type] # a literal


class VerifierHarness:
    """One verifier and what it reads. Times in seconds; `now_s` is moved by hand."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.chain = MemoryChain(MAIN, SECOND, TEST)
        self.rules = {chain_id: chain_rules(chain_id) for chain_id in (MAIN, SECOND, TEST)}
        self.ledger = MemoryLedger(now_ms=self.now_ms)
        self.quota = LookupCounter()
        self.provider, self.caller, self.thief = (self.wallet(n) for n in ("provider", "caller", "thief"))
        self.older: list[Terms] = []
        self.older_asked = 0
        self.heads: dict[ChainId, dict[Address, int]] = {}
        self.heads_asked = 0
        self.shown: list[tuple[str, str]] = []
        self.transaction_verifier = self.make_till()
        self._hashes = 0

    def make_till(self) -> TransactionVerifier:
        """Another verifier over the same ledger and chains: a restart, or a second gateway."""
        return TransactionVerifier(
            payments=self.ledger,
            readiness=self.ledger,
            chains=self.chain,
            rules=self.rules,
            signature_verifier=SignatureVerifier(self.chain, limits=DEFAULT_LIMITS),
            quota=self.quota,
            limits=DEFAULT_LIMITS,
            now_ms=self.now_ms,
            find_older_terms=self._find_older_terms,
            find_payee_heads=self._find_payee_heads,
            on_outcome=lambda network, outcome: self.shown.append((network, outcome)),
        )

    def now_ms(self) -> int:
        return self.now_s * 1000

    async def _find_older_terms(self, entry: CatalogEntry, moment_ms: int) -> CatalogEntry:
        self.older_asked += 1
        older = [version for version in self.older if version.is_in_force_since(moment_ms)]
        return replace(entry, versions=(*entry.versions, *older))

    async def _find_payee_heads(self, entry: CatalogEntry, chain_id: ChainId) -> dict[Address, int]:
        self.heads_asked += 1
        return self.heads.get(chain_id, {})

    @staticmethod
    def wallet(name: str) -> KeyWallet:
        return KeyWallet.named(name)

    # ---- What is for sale.

    def version(self, since_s: int = START_S - 999_999, until_s: int | None = None, **fields: Any) -> Terms:
        defaults: dict[str, Any] = {
            "price": Price.parse("0.01"),
            "currency": "USDC",
            "networks": (MAIN,),
            "pay_to": self.provider.address,
            "operations": (),
            "other_paths": "serve",
            "methods": (),
            "described": (),
            "status": "active",
            "charge_on": ChargeOn.SUCCESS,
            "since_ms": since_s * 1000,
            "until_ms": None if until_s is None else until_s * 1000,
        }
        return Terms(**{**defaults, **fields})

    def entry(self, *versions: Terms, listing_id: str = "api_1") -> CatalogEntry:
        """A listing with these terms, newest first."""
        current = (versions or (self.version(),))[0]
        listing = sample_listing(
            id=ListingId(listing_id),
            provider=self.provider.address,
            name="Quotes",
            endpoint="https://quotes.example.com",
            price=current.price,
            currency=current.currency,
            pay_to=current.pay_to,
            networks=current.networks,
            operations=current.operations,
            charge_on=current.charge_on,
            created_ms=current.since_ms,
        )
        return CatalogEntry(listing=listing, versions=versions or (current,))

    # ---- What happens on the chain.

    def hash(self) -> TxHash:
        self._hashes += 1
        return TxHash(keccak256(b"transaction %d" % self._hashes))

    def transfer(self, payer: Address, units: int = 10_000, to: Address | None = None) -> Log:
        return transfer_log(TOKEN, payer, to or self.provider.address, units)

    def mine(
        self,
        *logs: Log,
        chain_id: ChainId = MAIN,
        age_s: int = 100,
        tx_hash: TxHash | None = None,
        depth: int = 2,
        **fields: Any,
    ) -> TxHash:
        """A transaction with these logs, `age_s` old by the verifier's clock."""
        tx_hash = tx_hash or self.hash()
        given: dict[str, Any] = {"sender": self.caller.address, "recipient": TOKEN, **fields}
        transaction = Transaction(tx_hash=tx_hash, logs=logs, **given)
        self.chain.mine(chain_id, transaction, time=self.now_s - age_s)
        self.chain.bury(chain_id, depth - 1)
        return tx_hash

    def pay(self, payer: KeyWallet | None = None, units: int = 10_000, **fields: Any) -> TxHash:
        payer = payer or self.caller
        return self.mine(self.transfer(payer.address, units, fields.pop("to", None)), **fields)

    def deploy_wallet(self, owner: KeyWallet, chain_id: ChainId = MAIN) -> Address:
        """A contract wallet that confirms the signatures of its owner's key."""
        address = Address(keccak256(b"wallet of" + owner.address)[12:])

        def answer(calldata: bytes) -> ContractResult:
            digest, signature = calldata[4:36], calldata[100:165]
            is_owner = owner.sign(digest) == signature
            return ContractResult(reverted=False, payload=MAGIC_WORD if is_owner else bytes(32))

        self.chain.deploy(chain_id, address, answer)
        return address

    # ---- What the caller shows.

    def request(self, **fields: Any) -> BoundRequest:
        defaults: dict[str, Any] = {
            "gateway": "https://gw.example.com",
            "method": "GET",
            "target": b"/quote/ETH?full=1",
            "body_hash": keccak256(b""),
            "client_address": "192.0.2.7",
        }
        return BoundRequest(**{**defaults, **fields})

    def proof(
        self,
        tx_hash: TxHash,
        signer: KeyWallet | None = None,
        *,
        chain_id: ChainId | None = None,
        is_raw: bool = False,
        signature: bytes | None = None,
    ) -> Proof:
        """The plain form."""
        digest = transaction_digests(tx_hash)[int(is_raw)]
        signed = (signer or self.caller).sign(digest) if signature is None else signature
        return Proof(tx_hash=tx_hash, signature=signed, binding=None, chain_id=chain_id)

    def bound(
        self, tx_hash: TxHash, signer: KeyWallet | None = None, *, chain_id: ChainId = MAIN, **fields: Any
    ) -> Proof:
        """The bound form; what differs from `request()` is given."""
        signed: dict[str, Any] = {
            "chain_id": chain_id,
            "gateway": "https://gw.example.com",
            "api_id": "api_1",
            "method": "GET",
            "target": b"/quote/ETH?full=1",
            "body_hash": keccak256(b""),
            "transaction": tx_hash,
            "valid_until": START_S + 60,
            "nonce": b"\x0c" * 32,
            **fields,
        }
        signature = (signer or self.caller).sign(paid_call_digest(**signed))
        binding = Binding(valid_until=START_S + 60, nonce=b"\x0c" * 32, body_hash=None)
        return Proof(tx_hash=tx_hash, signature=signature, binding=binding, chain_id=None)

    async def find_spendable(self, proof: Proof, entry: CatalogEntry | None = None, **fields: Any) -> Any:
        return await self.transaction_verifier.find_spendable(
            proof, entry or self.entry(), self.request(**fields)
        )

    async def present(
        self,
        tx_hash: TxHash,
        signer: KeyWallet | None = None,
        *,
        entry: CatalogEntry | None = None,
        **form: Any,
    ) -> Any:
        """The result for the plain form."""
        return await self.find_spendable(self.proof(tx_hash, signer, **form), entry)

    def claim(self, payment: Payment, units: int = 10_000) -> Claim:
        return claim_on(payment, units)


@pytest.fixture
def harness() -> VerifierHarness:
    return VerifierHarness()


@pytest.fixture
def make_harness() -> Callable[[], VerifierHarness]:
    return VerifierHarness
