"""A client of x402 and MPP in a few lines: it reads a gateway's own 402 and signs what that asks for, honestly or as a test
wants it. It shares no code with what reads its headers; the typed data is signed by eth-account.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eth_account import Account

from tests.kit.accounts import CHAIN, Buyer
from tests.kit.asgi_exchange import Exchange
from tests.kit.authorizations import Payer, decode_header, encode_header, read_challenge
from tests.kit.gateway import PAY_TO, USDC, HeaderPairs, SmallGateway
from tollway.identifiers import Address, ChainId, keccak256, parse_network
from tollway.ledger.authorization import Dialect
from tollway.ledger.call import CallRecord
from tollway.money import Asset, TokenDomain

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


@dataclass(slots=True, kw_only=True)
class SmallPayer:
    """A wallet that pays by authorisation. Every one has a nonce of its own, unless one is given."""

    buyer: Buyer
    gate: SmallGateway
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def address(self) -> Address:
        return self.buyer.address

    # ---- The whole way.

    async def quote(self, method: str = "GET", target: str = "/quote?x=1", **more: Any) -> Exchange:
        """The 402 of a call."""
        asked = await self.gate.ask(method, target, **more)
        assert asked.status == 402, asked.body
        return asked

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
        """Asks, signs what the 402 asks for, and asks again."""
        asked = await self.quote("GET" if method == "HEAD" else method, target)
        if method == "HEAD" and dialect is Dialect.MPP:
            asked = await self.quote(method, target)
        shown = self.show(asked, dialect, **signed)
        return await self.gate.ask(method, target, [*shown, *headers], chunks)

    # ---- What became of it.

    @property
    def balance(self) -> int:
        return self.gate.settling.street.balance(CHAIN, _token(), self.address)

    def fund(self, base_units: int) -> None:
        self.gate.settling.street.fund(CHAIN, _token(), self.address, base_units)

    async def history(self) -> tuple[CallRecord, ...]:
        return await self.gate.history(self.buyer)

    # ---- Signing.

    def show(
        self,
        asked: Exchange,
        dialect: Dialect = Dialect.X402_V2,
        *,
        edit: Edit | None = None,
        **signed: Any,
    ) -> list[Header]:
        """The header that answers this 402. `signed`: fields of the authorisation that are to be other than asked;
        `edit` changes the message around it after it was signed."""
        content = {
            Dialect.X402_V2: self._pay,
            Dialect.X402_V1: self._pay_v1,
            Dialect.MPP: self._pay_mpp,
        }[dialect](asked, signed)
        if edit is not None:
            edit(content)
        value = encode_header(content, is_urlsafe=dialect is Dialect.MPP).decode()
        return [(HEADERS[dialect], f"Payment {value}" if dialect is Dialect.MPP else value)]

    def sign(self, accepted: dict[str, Any], *, chain_id: ChainId, amount: str, **signed: Any) -> Payer:
        now_s = self.gate.now_ms // 1000
        token = Asset(
            chain_id=chain_id,
            token=Address.parse(accepted["asset"]),
            symbol="USDC",
            decimals=6,
            domain=TokenDomain(**accepted["extra"]),
        )
        payer = Payer(
            account=Account.from_key(self.buyer.key.secret),
            asset=token,
            payee=Address.parse(accepted["payTo"]),
            base_units=int(amount),
            valid_after=now_s - 600,
            valid_before=now_s + accepted["maxTimeoutSeconds"],
            nonce=keccak256(b"%s nonce %d" % (self.address, next(self._numbers))),
        )
        return replace(payer, **signed)

    def _pay(self, asked: Exchange, signed: dict[str, Any]) -> dict[str, Any]:
        required = decode_header(asked.headers["payment-required"].encode())
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

    def _pay_v1(self, asked: Exchange, signed: dict[str, Any]) -> dict[str, Any]:
        accepted = asked.problem["accepts"][0]
        chain_id = _V1_NETWORKS[accepted["network"]]
        payer = self.sign(accepted, chain_id=chain_id, amount=accepted["maxAmountRequired"], **signed)
        return {
            "x402Version": 1,
            "scheme": "exact",
            "network": _V1_NAMES[chain_id],
            "payload": payer.payload(),
        }

    def _pay_mpp(self, asked: Exchange, signed: dict[str, Any]) -> dict[str, Any]:
        challenge = read_challenge(asked.headers["www-authenticate"].encode())
        request = decode_header(challenge["request"].encode())
        accepted = {
            "asset": request["currency"],
            "payTo": request["recipient"],
            "maxTimeoutSeconds": 65,
            "extra": {"name": "USDC", "version": "2"},
        }
        nonce = keccak256((challenge["id"] + challenge["realm"]).encode())
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


def has_terms(answer: Exchange) -> bool:
    """Whether it asks for money, in any dialect."""
    named = {"payment-required", "www-authenticate"} & set(answer.headers)
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    return bool(named) or (is_problem and bool({"payment", "accepts"} & set(answer.problem)))


def earned(gate: SmallGateway) -> int:
    """What the provider has got on the chain, in base units."""
    return gate.settling.street.balance(CHAIN, _token(), PAY_TO)


def transfers(gate: SmallGateway) -> int:
    """How many transactions the gateway has ever sent."""
    return len(set(gate.settling.street.broadcasts))


def served(gate: SmallGateway) -> int:
    """How many requests have reached the upstream."""
    return len(gate.upstream.arrived)


def stop_mining(gate: SmallGateway) -> None:
    """What is sent stays in the pool."""
    gate.settling.street.is_automining = False


async def come_back(gate: SmallGateway) -> None:
    """The chain answers and mines again, and the sweeper looks at what is left."""
    street = gate.settling.street
    street.bring_back(CHAIN)
    street.is_automining = True
    street.mine_sent(CHAIN)
    await gate.settling.sweep()


def _token() -> Address:
    assert USDC.token is not None
    return USDC.token


def read_receipt(answer: Exchange, dialect: Dialect) -> dict[str, Any]:
    """The receipt in that dialect; there must be none in another."""
    told = [name for name in RECEIPTS.values() if name in answer.headers]
    assert told == [RECEIPTS[dialect]], told
    receipt: dict[str, Any] = decode_header(answer.headers[RECEIPTS[dialect]].encode())
    return receipt
