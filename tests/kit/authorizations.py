"""Sample payers, requirements and payment headers in the three dialects, signed for real. Every field can be given.

For tests of whoever reads, judges or settles authorisations. It shares no code with what it tests beyond the records: the
typed data is signed by eth-account, the headers are written by hand.
"""

import base64
import json
from dataclasses import dataclass, field, replace
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount
from pydantic_core import from_json

from tollway.chain.reader import AuthorizationFacts, ContractAnswer
from tollway.identifiers import Address, ChainId, keccak256
from tollway.ledger.authorization import Authorization, Dialect
from tollway.money import Asset, Price, TokenDomain
from tollway.payments.mpp import Challenger, Route
from tollway.payments.requirement import Requirement
from tollway.registry.listing import ChargeOn

NOW_S = 1_800_000_000
TIMEOUT_S = 30
CHAIN = ChainId(84532)
PAY_TO = Address(b"\xbb" * 20)
USDC = Asset(
    chain_id=CHAIN,
    token=Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e"),
    symbol="USDC",
    decimals=6,
    domain=TokenDomain(name="USDC", version="2"),
)
CHALLENGER = Challenger(secret=b"s" * 32, realm="gw.example.com")
ROUTE = Route(api_id="api_1", method="GET", target="/v1/quote?city=Wien")

_TYPES = {
    "TransferWithAuthorization": [
        {"name": "from", "type": "address"},
        {"name": "to", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "validAfter", "type": "uint256"},
        {"name": "validBefore", "type": "uint256"},
        {"name": "nonce", "type": "bytes32"},
    ]
}


def requirement_of(asset: Asset = USDC, **given: Any) -> Requirement:
    price = given.pop("price", Price.parse("0.01"))
    fields: dict[str, Any] = {
        "units": price.units_in(asset),
        "pay_to": PAY_TO,
        "charge_on": ChargeOn.SUCCESS,
        "max_timeout_s": TIMEOUT_S + 60,
    }
    return Requirement(asset=asset, price=price, **{**fields, **given})


@dataclass(frozen=True, kw_only=True)
class Payer:
    """A plain wallet that signs what it is told to, honest or not."""

    account: LocalAccount = field(default_factory=lambda: Account.from_key(keccak256(b"a payer")))
    asset: Asset = USDC
    payee: Address = PAY_TO
    base_units: int = 10_000
    valid_after: int = 0
    valid_before: int = NOW_S + TIMEOUT_S + 60
    nonce: bytes = b"\x07" * 32

    @property
    def address(self) -> Address:
        return Address.parse(self.account.address)

    @property
    def signature(self) -> bytes:
        domain = self.asset.domain
        assert domain is not None
        assert self.asset.token is not None
        signed = self.account.sign_typed_data(
            domain_data={
                "name": domain.name,
                "version": domain.version,
                "chainId": self.asset.chain_id,
                "verifyingContract": str(self.asset.token),
            },
            message_types=_TYPES,
            message_data={
                "from": self.account.address,
                "to": str(self.payee),
                "value": self.base_units,
                "validAfter": self.valid_after,
                "validBefore": self.valid_before,
                "nonce": self.nonce,
            },
        )
        return bytes(signed.signature)

    def authorize(self, dialect: Dialect = Dialect.X402_V2, **given: Any) -> Authorization:
        assert self.asset.token is not None
        fields: dict[str, Any] = {"signature": given.pop("signature", None) or self.signature}
        return replace(
            Authorization(
                chain_id=self.asset.chain_id,
                token=self.asset.token,
                payer=self.address,
                payee=self.payee,
                base_units=self.base_units,
                valid_after=self.valid_after,
                valid_before=self.valid_before,
                nonce=self.nonce,
                dialect=dialect,
                **fields,
            ),
            **given,
        )

    @property
    def fields(self) -> dict[str, str]:
        return {
            "from": str(self.address),
            "to": str(self.payee),
            "value": str(self.base_units),
            "validAfter": str(self.valid_after),
            "validBefore": str(self.valid_before),
            "nonce": "0x" + self.nonce.hex(),
        }

    def payload(self) -> dict[str, Any]:
        return {"signature": "0x" + self.signature.hex(), "authorization": self.fields}

    def payment(self) -> dict[str, Any]:
        """The content of `PAYMENT-SIGNATURE`."""
        requirement = requirement_of(self.asset)
        return {
            "x402Version": 2,
            "payload": self.payload(),
            "accepted": {
                "scheme": "exact",
                "network": self.asset.network,
                "amount": str(requirement.base_units),
                "asset": str(self.asset.token),
                "payTo": str(requirement.pay_to),
                "maxTimeoutSeconds": requirement.max_timeout_s,
                "extra": {"name": "USDC", "version": "2"},
            },
            "resource": {"url": "https://gw.example.com/api/v2/gateway/api_1/v1/quote?city=Wien"},
        }

    def payment_v1(self) -> dict[str, Any]:
        """The content of `X-PAYMENT`."""
        return {"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "payload": self.payload()}

    def credential(
        self,
        requirement: Requirement | None = None,
        *,
        challenger: Challenger = CHALLENGER,
        route: Route = ROUTE,
        now_s: float = NOW_S,
    ) -> dict[str, Any]:
        """The content of `Authorization: Payment …`: what MPP's clients make of our challenge."""
        header = challenger.challenge(requirement or requirement_of(self.asset), route, now_s=now_s)
        challenge = read_challenge(header)
        nonce = keccak256((challenge["id"] + challenge["realm"]).encode())
        signer = replace(self, nonce=nonce)
        payload = {"type": "authorization", **signer.fields, "signature": "0x" + signer.signature.hex()}
        return {
            "challenge": challenge,
            "payload": payload,
            "source": f"did:pkh:eip155:{self.asset.chain_id}:{self.address}",
        }


def read_challenge(header: bytes) -> dict[str, str]:
    """The parameters of a `WWW-Authenticate: Payment` header, read as its clients read them."""
    scheme, _, rest = header.decode().partition(" ")
    assert scheme == "Payment"
    return {name: value.strip('"') for name, _, value in (part.partition("=") for part in rest.split(", "))}


def encode_header(content: Any, *, is_urlsafe: bool = False) -> bytes:
    raw = json.dumps(content).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=") if is_urlsafe else base64.b64encode(raw)


def decode_header(value: bytes) -> Any:
    """Of either alphabet, with or without padding."""
    alphabet = b"-_" if b"-" in value or b"_" in value else None
    return from_json(base64.b64decode(value + b"=" * (-len(value) % 4), altchars=alphabet))


def facts_of(**given: Any) -> AuthorizationFacts:
    """A plain wallet with a thousand USDC, on a chain whose head is a second old."""
    fields: dict[str, Any] = {
        "chain_id": CHAIN,
        "head_number": 500,
        "head_time": NOW_S - 1,
        "code_size": 0,
        "balance": 1_000_000_000,
        "is_used": False,
        "simulation": ContractAnswer(reverted=False, payload=b""),
        "gas_estimate": 60_000,
    }
    return AuthorizationFacts(**{**fields, **given})
