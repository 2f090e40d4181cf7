"""Wallets that pay: `KeyWallet` signs digests, `AuthorizationSigner` signs authorisations and writes the payment headers of
all three dialects, `Payer` reads a gateway's own 402 and pays as it asks, or as a test wants it.

No code is shared with what reads the headers, beyond the records: eth-account signs the typed data, and the headers are
written by hand. Every field can be given.
"""

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import coincurve
from eth_abi.abi import encode
from eth_account import Account
from eth_account.signers.local import LocalAccount
from pydantic_core import from_json

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tollway.chain.port import AuthorizationFacts, ContractResult
from tollway.identity.sessions import SignInChallenge
from tollway.identity.signatures import eip191_digest
from tollway.identity.siwe import SignInMessage, format_moment, format_sign_in
from tollway.ids import Address, ChainId, keccak256, parse_network
from tollway.ledger.records import Authorization, CallRecord, Dialect
from tollway.money import Asset, Price, TokenDomain
from tollway.payments.mpp import Challenger, ChallengeRoute
from tollway.payments.pricing import PaymentRequirement
from tollway.registry.listing import ChargeOn

if TYPE_CHECKING:
    from tests.kit.gateway import InProcessGateway

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
ROUTE = ChallengeRoute(api_id="api_1", method="GET", target="/v1/quote?city=Wien")

AUTHORIZATION_TYPES = {
    "TransferWithAuthorization": [
        {"name": "from", "type": "address"},
        {"name": "to", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "validAfter", "type": "uint256"},
        {"name": "validBefore", "type": "uint256"},
        {"name": "nonce", "type": "bytes32"},
    ]
}


Edit = Callable[[dict[str, Any]], object]
Header = tuple[str, str]

HEADERS = {
    Dialect.X402_V2: "PAYMENT-SIGNATURE",
    Dialect.X402_V1: "X-PAYMENT",
    Dialect.MPP: "Authorization",
}
RECEIPTS = {
    Dialect.X402_V2: "payment-response",
    Dialect.X402_V1: "x-payment-response",
    Dialect.MPP: "payment-receipt",
}
_V1_NETWORKS = {"base-sepolia": ChainId(84532)}
_V1_NAMES = {chain_id: name for name, chain_id in _V1_NETWORKS.items()}


assert USDC.token is not None
_TOKEN: Address = USDC.token


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWallet:
    """A plain wallet."""

    key: coincurve.PrivateKey = field(repr=False)

    @classmethod
    def named(cls, name: str) -> "KeyWallet":
        return cls(key=coincurve.PrivateKey(keccak256(name.encode())))

    @property
    def address(self) -> Address:
        return Address(keccak256(self.key.public_key.format(compressed=False)[1:])[12:])

    def sign(self, digest: bytes) -> bytes:
        """65 bytes, the last 27 or 28, as wallets sign."""
        raw = self.key.sign_recoverable(digest, hasher=None)
        return raw[:64] + bytes([27 + raw[64]])

    def sign_hex(self, digest: bytes) -> str:
        """The same for a header, the last byte 0 or 1, as libraries sign."""
        return "0x" + self.key.sign_recoverable(digest, hasher=None).hex()


@dataclass(frozen=True, kw_only=True)
class AuthorizationSigner:
    """A plain wallet that signs the authorisation of its fields, honest or not."""

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
            message_types=AUTHORIZATION_TYPES,
            message_data={
                "from": str(self.address),
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
        requirement: PaymentRequirement | None = None,
        *,
        challenger: Challenger = CHALLENGER,
        route: ChallengeRoute = ROUTE,
        now_s: float = NOW_S,
    ) -> dict[str, Any]:
        """The content of `Authorization: Payment …`: what MPP's clients make of our challenge."""
        header = challenger.challenge(requirement or requirement_of(self.asset), route, now_s=now_s)
        challenge = read_challenge(header)
        nonce = bind_nonce(challenge)
        signer = replace(self, nonce=nonce)
        payload = {"type": "authorization", **signer.fields, "signature": "0x" + signer.signature.hex()}
        return {
            "challenge": challenge,
            "payload": payload,
            "source": f"did:pkh:eip155:{self.asset.chain_id}:{self.address}",
        }


FACTORY = Address(b"\xfa" * 20)
DEPLOY_CALL = b"make a wallet"
WALLET = Address(b"\x5a" * 20)


def wrap(signature: bytes, *, factory: Address = FACTORY, calldata: bytes = DEPLOY_CALL) -> bytes:
    """The signature of a contract wallet before its deployment (ERC-6492)."""
    return encode(["address", "bytes", "bytes"], [str(factory), calldata, signature]) + bytes.fromhex(
        "6492" * 16
    )


@dataclass(frozen=True, kw_only=True)
class UndeployedSigner(AuthorizationSigner):
    """A contract wallet that is not deployed yet, and the account that owns it."""

    wallet: Address = WALLET
    factory: Address = FACTORY
    calldata: bytes = DEPLOY_CALL

    @property
    def address(self) -> Address:
        return self.wallet

    @property
    def inner(self) -> bytes:
        """The owner's signature, which the wallet checks."""
        return super().signature

    @property
    def signature(self) -> bytes:
        return wrap(self.inner, factory=self.factory, calldata=self.calldata)


@dataclass(slots=True, kw_only=True)
class Payer:
    """A wallet that pays one gateway by authorisations. Each authorisation has a nonce of its own, unless one is given."""

    wallet: KeyWallet
    gateway: "InProcessGateway"
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @classmethod
    def funded(cls, gateway: "InProcessGateway", base_units: int) -> "Payer":
        """The wallet of the gateway's caller, with that much more money."""
        payer = cls(wallet=gateway.wallet, gateway=gateway)
        payer.fund(base_units)
        return payer

    @property
    def address(self) -> Address:
        return self.wallet.address

    # ---- Quote and call.

    async def quote(self, method: str = "GET", target: str = "/quote?x=1", **more: Any) -> Exchange:
        """The 402 of a call."""
        quoted = await self.gateway.ask(method, target, **more)
        assert quoted.status == 402, quoted.body
        return quoted

    async def buy(
        self,
        method: str = "GET",
        target: str = "/quote?x=1",
        dialect: Dialect = Dialect.X402_V2,
        *,
        headers: HeaderPairs = (),
        chunks: Sequence[bytes] = (),
        **signed: Any,
    ) -> Exchange:
        """Sends a call, signs what its 402 quotes, and sends it again."""
        quoted = await self.quote("GET" if method == "HEAD" else method, target)
        if method == "HEAD" and dialect is Dialect.MPP:
            quoted = await self.quote(method, target)
        shown = self.show(quoted, dialect, **signed)
        return await self.gateway.ask(method, target, [*shown, *headers], chunks)

    # ---- State.

    @property
    def balance(self) -> int:
        return self.gateway.chain.balance(CHAIN, _TOKEN, self.address)

    def fund(self, base_units: int) -> None:
        self.gateway.chain.fund(CHAIN, _TOKEN, self.address, base_units)

    async def history(self) -> tuple[CallRecord, ...]:
        return await self.gateway.history(self.wallet)

    # ---- Signing.

    def show(
        self,
        quoted: Exchange,
        dialect: Dialect = Dialect.X402_V2,
        *,
        edit: Edit | None = None,
        **signed: Any,
    ) -> list[Header]:
        """The header that answers this 402. `signed`: fields of the authorisation that differ from the quote;
        `edit` changes the message around it after it was signed."""
        content = {
            Dialect.X402_V2: self._pay,
            Dialect.X402_V1: self._pay_v1,
            Dialect.MPP: self._pay_mpp,
        }[dialect](quoted, signed)
        if edit is not None:
            edit(content)
        value = encode_header(content, is_urlsafe=dialect is Dialect.MPP).decode()
        return [(HEADERS[dialect], f"Payment {value}" if dialect is Dialect.MPP else value)]

    def sign(
        self, accepted: dict[str, Any], *, chain_id: ChainId, amount: str, **signed: Any
    ) -> AuthorizationSigner:
        now_s = self.gateway.now_ms // 1000
        token = Asset(
            chain_id=chain_id,
            token=Address.parse(accepted["asset"]),
            symbol="USDC",
            decimals=6,
            domain=TokenDomain(**accepted["extra"]),
        )
        payer = AuthorizationSigner(
            account=Account.from_key(self.wallet.key.secret),
            asset=token,
            payee=Address.parse(accepted["payTo"]),
            base_units=int(amount),
            valid_after=now_s - 600,
            valid_before=now_s + accepted["maxTimeoutSeconds"],
            nonce=keccak256(b"%s nonce %d" % (self.address, next(self._numbers))),
        )
        return replace(payer, **signed)

    def _pay(self, quoted: Exchange, signed: dict[str, Any]) -> dict[str, Any]:
        required = decode_header(quoted.headers["payment-required"].encode())
        accepted = required["accepts"][0]
        payer = self.sign(
            accepted, chain_id=parse_network(accepted["network"]), amount=accepted["amount"], **signed
        )
        return {
            "x402Version": 2,
            "resource": required["resource"],
            "accepted": accepted,
            "payload": payer.payload(),
        }

    def _pay_v1(self, quoted: Exchange, signed: dict[str, Any]) -> dict[str, Any]:
        accepted = quoted.problem["accepts"][0]
        chain_id = _V1_NETWORKS[accepted["network"]]
        payer = self.sign(accepted, chain_id=chain_id, amount=accepted["maxAmountRequired"], **signed)
        return {
            "x402Version": 1,
            "scheme": "exact",
            "network": _V1_NAMES[chain_id],
            "payload": payer.payload(),
        }

    def _pay_mpp(self, quoted: Exchange, signed: dict[str, Any]) -> dict[str, Any]:
        challenge = read_challenge(quoted.headers["www-authenticate"].encode())
        request = decode_header(challenge["request"].encode())
        accepted = {
            "asset": request["currency"],
            "payTo": request["recipient"],
            "maxTimeoutSeconds": 65,
            "extra": {"name": "USDC", "version": "2"},
        }
        nonce = bind_nonce(challenge)
        payer = self.sign(
            accepted,
            chain_id=ChainId(request["methodDetails"]["chainId"]),
            amount=request["amount"],
            **{"nonce": nonce, **signed},
        )
        return {
            "challenge": challenge,
            "payload": {
                "type": "authorization",
                **payer.fields,
                "signature": "0x" + payer.signature.hex(),
            },
        }


def requirement_of(asset: Asset = USDC, **given: Any) -> PaymentRequirement:
    price = given.pop("price", Price.parse("0.01"))
    fields: dict[str, Any] = {
        "units": price.units_in(asset),
        "pay_to": PAY_TO,
        "charge_on": ChargeOn.SUCCESS,
        "max_timeout_s": TIMEOUT_S + 60,
    }
    return PaymentRequirement(asset=asset, price=price, **{**fields, **given})


def read_challenge(header: bytes) -> dict[str, str]:
    """The parameters of a `WWW-Authenticate: Payment` header, read as its clients read them."""
    scheme, _, rest = header.decode().partition(" ")
    assert scheme == "Payment"
    return {name: value.strip('"') for name, _, value in (part.partition("=") for part in rest.split(", "))}


def bind_nonce(challenge: dict[str, str]) -> bytes:
    """The nonce that MPP wants of an authorisation for that challenge."""
    return keccak256((challenge["id"] + challenge["realm"]).encode())


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
        "simulation": ContractResult(reverted=False, payload=b""),
        "gas_estimate": 60_000,
    }
    return AuthorizationFacts(**{**fields, **given})


def sign_in_with_x(challenge: SignInChallenge, wallet: KeyWallet, *, uri: str | None = None) -> str:
    """The value of `SIGN-IN-WITH-X` for that challenge. `uri`: what the message says in place of the challenge's."""
    message = SignInMessage(
        domain=challenge.domain,
        address=str(wallet.address),
        uri=uri or challenge.uri,
        chain_id=CHAIN,
        nonce=challenge.nonce,
        issued_at=format_moment(challenge.issued_ms),
    )
    payload = {
        "domain": message.domain,
        "address": message.address,
        "uri": message.uri,
        "version": "1",
        "chainId": f"eip155:{CHAIN}",
        "type": "eip191",
        "nonce": message.nonce,
        "issuedAt": message.issued_at,
        "signature": wallet.sign_hex(eip191_digest(format_sign_in(message).encode())),
    }
    return base64.b64encode(json.dumps(payload).encode()).decode()


def is_replayed(answer: Exchange) -> bool:
    """Whether it is a stored response."""
    return answer.status == 200 and answer.headers.get("idempotency-replayed") == "true"


def has_terms(answer: Exchange) -> bool:
    """True for an answer that quotes a price, in any dialect."""
    named = {"payment-required", "www-authenticate"} & set(answer.headers)
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    return bool(named) or (is_problem and bool({"payment", "accepts"} & set(answer.problem)))


def read_receipt(answer: Exchange, dialect: Dialect) -> dict[str, Any]:
    """The receipt in that dialect; there must be none in another."""
    present = [name for name in RECEIPTS.values() if name in answer.headers]
    assert present == [RECEIPTS[dialect]], present
    receipt: dict[str, Any] = decode_header(answer.headers[RECEIPTS[dialect]].encode())
    return receipt
