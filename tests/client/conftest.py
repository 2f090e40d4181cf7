"""Fakes of the client tests: a chain that mines broadcast transactions, and a gateway with a ledger of its own."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from eth_account import Account
from hexbytes import HexBytes

from tests.kit.channel_gateway import ChannelCaller, ChannelGateway
from tollway.client import AsyncTollwayClient, Patience, TollwayClient
from tollway.client.client import SpentAmount
from tollway.client.store import PaymentStore
from tollway.client.wallet import Wallet
from tollway.identity.signatures import paid_call_digest, recover
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.money import Asset, Price, TokenDomain, format_decimal
from tollway.payments.authorization_check import match_requirement, parse_presented
from tollway.payments.eip3009 import recover_signer
from tollway.payments.mpp import ChallengeRoute
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.proof import parse_binding
from tollway.registry.listing import ChargeOn

KEY = b"\x11" * 32
CHAIN = 84532
USDC = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
PAYEE = Address(b"\x22" * 20)
GATEWAY = "https://gateway.test"
API = "api_1"
PRICE = 10_000
NOW_S = 1_700_000_000
DOMAIN = TokenDomain(name="USDC", version="2")
TRANSFER = keccak256(b"transfer(address,uint256)")[:4]


def sums(amounts: Iterable[SpentAmount]) -> dict[str, int]:
    """Spent amounts by symbol."""
    return {amount.symbol: amount.atto for amount in amounts}


async def do(outcome: object) -> Any:
    """The result of a method of either client."""
    return await outcome if isinstance(outcome, Awaitable) else outcome


@dataclass
class FakeChain:
    """Mines a broadcast at once unless `is_mining` is off. Counts what it was asked."""

    chain_id: int = CHAIN
    is_mining: bool = True
    is_away: bool = False
    status: int = 1
    head: int = 100
    usdc: int = 10**9
    wei: int = 10**19
    symbol: str = "USDC"
    finalized_nonce: int = 0
    finalized: int | None = None
    """The last final block; None: the node knows no such tag."""
    time_s: int = NOW_S
    used: set[bytes] = field(default_factory=set)
    """Nonces of authorisations that the token has seen."""
    authorization_state: str | None = None
    """What the token answers to every nonce, in place of the truth."""
    is_pruned: bool = False
    """It keeps the state of the newest block alone."""
    tip_wei: int = 10**8
    base_fee_wei: int = 10**9
    gas: int = 50_000
    asked: list[str] = field(default_factory=list)
    pool: dict[str, bytes] = field(default_factory=dict)
    mined: dict[str, int] = field(default_factory=dict)
    broadcasts: list[bytes] = field(default_factory=list)

    def answer(self, method: str, params: list) -> object:
        """The `result`, or an exception: LookupError becomes a JSON-RPC error."""
        self.asked.append(method)
        return getattr(self, "_" + method)(*params)

    def mine(self) -> None:
        for tx_hash in self.pool:
            self.mined.setdefault(tx_hash, self.head)
        self.head += 1

    def _eth_chainId(self):
        return hex(self.chain_id)

    def _eth_blockNumber(self):
        return hex(self.head)

    def _eth_getBlockByNumber(self, tag, _full):
        number = self.head
        if tag == "finalized":
            if self.finalized is None:
                raise LookupError("no such block")
            number = self.finalized
        elif tag != "latest":
            number = int(tag, 16)
        return {
            "number": hex(number),
            "timestamp": hex(self.time_s),
            "baseFeePerGas": hex(self.base_fee_wei),
        }

    def _eth_maxPriorityFeePerGas(self):
        return hex(self.tip_wei)

    def _eth_estimateGas(self, _question):
        return hex(self.gas)

    def _eth_getBalance(self, _holder, _tag):
        return hex(self.wei)

    def _eth_getTransactionCount(self, _holder, tag):
        return hex(self.finalized_nonce if tag == "finalized" else max(self.finalized_nonce, len(self.pool)))

    def _eth_call(self, question, tag):
        if self.is_pruned and tag != "latest":
            raise LookupError("missing trie node")
        selector = question["data"][2:10]
        if selector == keccak256(b"balanceOf(address)")[:4].hex():
            return "0x" + self.usdc.to_bytes(32, "big").hex()
        if selector == keccak256(b"authorizationState(address,bytes32)")[:4].hex():
            nonce = bytes.fromhex(question["data"][-64:])
            if self.authorization_state is not None:
                return self.authorization_state
            return "0x" + int(nonce in self.used).to_bytes(32, "big").hex()
        if selector == keccak256(b"decimals()")[:4].hex():
            return "0x" + (6).to_bytes(32, "big").hex()
        text = self.symbol.encode()
        words = (32).to_bytes(32, "big") + len(text).to_bytes(32, "big") + text.ljust(32, b"\0")
        return "0x" + words.hex()

    def _eth_sendRawTransaction(self, raw):
        payload = bytes(HexBytes(raw))
        tx_hash = "0x" + keccak256(payload).hex()
        self.broadcasts.append(payload)
        if tx_hash in self.pool:
            raise LookupError("already known")
        self.pool[tx_hash] = payload
        if self.is_mining:
            self.mine()
        return tx_hash

    def _eth_getTransactionReceipt(self, tx_hash):
        if tx_hash not in self.mined:
            return None
        return {
            "transactionHash": tx_hash,
            "blockNumber": hex(self.mined[tx_hash]),
            "status": hex(self.status),
        }

    def amount_of(self, tx_hash: str) -> int | None:
        """What a mined transaction moved to the payee; None when it is not mined."""
        if tx_hash not in self.mined or self.status != 1:
            return None
        from eth_account.typed_transactions import TypedTransaction

        fields = TypedTransaction.from_bytes(HexBytes(self.pool[tx_hash])).as_dict()
        payload = bytes(fields["data"])
        if payload[:4] == TRANSFER and Address(payload[16:36]) == PAYEE:
            return int.from_bytes(payload[36:68], "big")
        return fields["value"] if Address(bytes(fields["to"])) == PAYEE else None


@dataclass
class FakeGateway:
    """Verifies like the real one: hash mined, payer signed this very request, the balance suffices, nonce fresh."""

    chain: FakeChain
    price: int = PRICE
    options: list[dict] | None = None
    seen: list[httpx.Request] = field(default_factory=list)
    answers: list[Callable[[httpx.Request], httpx.Response]] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    nonces: set[bytes] = field(default_factory=set)
    cashed: dict[bytes, str] = field(default_factory=dict)
    served: int = 0
    actual: int | None = None
    """What each call costs in the end, at most the price; the head has the maximum. None: a fixed price."""
    budgets: Callable[[httpx.Request], httpx.Response] | None = None
    """The answer of `/budgets`. None: the wallet has no owner, and has signed no policy."""

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "node.test":
            return self._node(request)
        if request.url.path.startswith("/api/v2/budgets"):
            return self.refuse(404, "budget_not_found") if self.budgets is None else self.budgets(request)
        self.seen.append(request)
        if self.answers:
            return self.answers.pop(0)(request)
        return self._call(request)

    def _node(self, request: httpx.Request) -> httpx.Response:
        if self.chain.is_away:
            raise httpx.ConnectError("away")
        question = json.loads(request.content)
        try:
            result = self.chain.answer(question["method"], question["params"])
        except LookupError as exc:
            return httpx.Response(200, json={"id": 1, "error": {"code": -32000, "message": str(exc)}})
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": result})

    def _call(self, request: httpx.Request) -> httpx.Response:
        if self.price == 0:
            return httpx.Response(200, text="free", headers={"tollway-payment-state": "none"})
        if "payment-signature" in request.headers:
            return self._settle(request)
        tx = request.headers.get("x-payment-tx")
        if tx is None:
            return self.refuse(402, "payment_required")
        amount = self.chain.amount_of(tx)
        if amount is None:
            return self.refuse(409, "payment_pending", headers={"retry-after": "1"})
        binding = parse_binding(request.headers["x-signature-params"])
        digest = paid_call_digest(
            chain_id=CHAIN,
            gateway=GATEWAY,
            api_id=API,
            method=request.method,
            target=request.url.raw_path[len(f"/api/v2/gateway/{API}") :],
            body_hash=keccak256(request.content),
            transaction=TxHash.parse(tx),
            valid_until=binding.valid_until,
            nonce=binding.nonce,
        )
        signature = bytes.fromhex(request.headers["x-signature"][2:])
        if recover(digest, signature) != Address.parse(Account.from_key(KEY).address):
            return self.refuse(403, "payer_mismatch")
        if binding.nonce in self.nonces:
            return self.refuse(401, "nonce_reused")
        return self._serve(request, tx, amount, binding.nonce)

    def _settle(self, request: httpx.Request) -> httpx.Response:
        """An authorisation: signed by the payer, over the price, to the payee, once."""
        told = json.loads(base64.b64decode(request.headers["payment-signature"]))
        shown = parse_presented(
            [(b"payment-signature", request.headers["payment-signature"].encode())],
            challenger=None,
            find_route=lambda: ChallengeRoute(api_id=API, method=request.method, target=b""),
            now_s=NOW_S,
        )
        requirement = PaymentRequirement(
            asset=Asset(chain_id=ChainId(CHAIN), token=USDC, symbol="USDC", decimals=6, domain=DOMAIN),
            price=Price.parse(format_decimal(self.price, decimals=6)),
            units=self.price,
            pay_to=PAYEE,
            charge_on=ChargeOn.SUCCESS,
            max_timeout_s=90,
        )
        matched = match_requirement(shown, [requirement])
        if not isinstance(matched, tuple) or recover_signer(matched[1], DOMAIN) != shown.payer:
            return self.refuse(402, "payment_verification_failed")
        assert told["accepted"]["amount"] == str(self.price)
        if shown.nonce in self.cashed:
            return self.refuse(409, "payment_already_used", {"paymentState": "charged"})
        self.cashed[shown.nonce] = "0x" + keccak256(shown.nonce).hex()
        self.served += 1
        receipt = {"success": True, "transaction": self.cashed[shown.nonce], "network": f"eip155:{CHAIN}"}
        return httpx.Response(
            200,
            json={"path": request.url.path, "body": request.content.decode()},
            headers={
                **self.relayed("charged"),
                "payment-response": base64.b64encode(json.dumps(receipt).encode()).decode(),
            },
        )

    def _serve(self, request: httpx.Request, tx: str, amount: int, nonce: bytes) -> httpx.Response:
        known = {**dict.fromkeys(self.taken, 0), tx: 0}
        rests = {
            known_tx: (self.chain.amount_of(known_tx) or 0) - self.taken.get(known_tx, 0)
            for known_tx in known
        }
        small = sum(rest for known_tx, rest in rests.items() if rest < self.price)
        if rests[tx] <= 0:
            return self.refuse(409, "payment_already_used", {"callIds": []})
        self.taken.setdefault(tx, 0)
        if rests[tx] < self.price and small < self.price:
            missing = format_decimal(self.price - small, decimals=6)
            return self.refuse(402, "payment_insufficient", {"missing": missing})
        due = self.price
        if self.actual is not None:
            due = self.actual
        for known_tx in [tx, *(other for other, rest in rests.items() if other != tx and rest < self.price)]:
            part = min(due, rests[known_tx])
            self.taken[known_tx] = self.taken.get(known_tx, 0) + part
            due -= part
        self.nonces.add(nonce)
        self.served += 1
        rest = amount - self.taken[tx]
        if self.actual is not None:
            headers = self.relayed("held", rest=rest + self.actual - self.price)
            headers["tollway-price-max"] = headers.pop("tollway-price")
            return httpx.Response(200, content=b"data: {}\n\n", headers=headers)
        return httpx.Response(
            200,
            json={"path": request.url.path, "body": request.content.decode()},
            headers=self.relayed("charged", rest=rest),
        )

    def relayed(self, state: str, *, rest: int | None = None, status: int = 200) -> dict[str, str]:
        headers = {
            "proxy-status": f'"gateway.test"; received-status={status}',
            "tollway-payment-state": state,
            "tollway-call-id": "call_1",
            "tollway-price": f"{format_decimal(self.price, decimals=6)} USDC",
        }
        if rest is not None:
            headers["tollway-credit-remaining"] = f"{format_decimal(rest, decimals=6)} USDC"
        return headers

    def refuse(
        self, status: int, code: str, members: dict | None = None, headers: dict | None = None
    ) -> httpx.Response:
        problem: dict = {"status": status, "code": code, "detail": f"It is {code}.", **(members or {})}
        if status == 402:
            problem["payment"] = {"options": self.options if self.options is not None else [self.option()]}
            if self.actual is not None:
                headers = {
                    "tollway-price-max": f"{format_decimal(self.price, decimals=6)} USDC",
                    **(headers or {}),
                }
        return httpx.Response(
            status,
            content=json.dumps(problem),
            headers={
                "content-type": "application/problem+json",
                "tollway-payment-state": str(problem.get("paymentState", "none")),
                **(headers or {}),
            },
        )

    def option(self, **changes: object) -> dict:
        option = {
            "rail": "tx",
            "network": f"eip155:{CHAIN}",
            "chainId": CHAIN,
            "asset": f"eip155:{CHAIN}/erc20:{str(USDC).lower()}",
            "token": str(USDC),
            "symbol": "USDC",
            "decimals": 6,
            "amount": str(self.price),
            "payTo": str(PAYEE),
            "confirmations": 1,
        }
        return {**option, **changes}

    def offer_authorizations(self, **changes: object) -> None:
        """From now on the 402 names both rails."""
        extra = {"maxTimeoutSeconds": 90, "extra": {"name": DOMAIN.name, "version": DOMAIN.version}}
        self.options = [self.option(), self.option(rail="x402", **extra, **changes)]


@pytest.fixture
def chain() -> FakeChain:
    return FakeChain()


@pytest.fixture
def gateway(chain: FakeChain) -> FakeGateway:
    return FakeGateway(chain=chain)


@pytest.fixture
def wallet() -> Wallet:
    return Wallet.from_key(KEY)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "payments.sqlite3"


@pytest.fixture
def store(store_path: Path) -> PaymentStore:
    return PaymentStore(store_path, now_ms=lambda: 1_700_000_000_000)


@pytest.fixture
def client_options(gateway: FakeGateway, wallet: Wallet, store_path: Path) -> dict[str, Any]:
    """The options of a client over the fake gateway and its chain."""
    return {
        "wallet": wallet,
        "rpc_urls": {CHAIN: "https://node.test/secret-key"},
        "store_path": store_path,
        "patience": Patience(poll_s=0.001, wait_s=0.02),
        "transport": httpx.MockTransport(gateway.handle),
        "now_ms": lambda: NOW_S * 1000,
    }


@pytest.fixture
def channel_gateway() -> ChannelGateway:
    asset = Asset(chain_id=ChainId(CHAIN), token=USDC, symbol="USDC", decimals=6, domain=DOMAIN)
    return ChannelGateway(asset=asset, pay_to=PAYEE, authorizer=Address(b"\x90" * 20), now_s=NOW_S)


@pytest.fixture
def channel_caller(channel_gateway: ChannelGateway, store_path: Path) -> ChannelCaller:
    return ChannelCaller(channel_gateway, store_path)


@pytest.fixture(params=[TollwayClient, AsyncTollwayClient], ids=["sync", "async"])
async def make(
    request: pytest.FixtureRequest, client_options: dict[str, Any]
) -> AsyncIterator[Callable[..., Any]]:
    """Opens clients of one kind. Options replace `client_options`."""
    made = []

    def build(**options: Any) -> Any:
        made.append(request.param(GATEWAY, **{**client_options, **options}))
        return made[-1]

    yield build
    for client in made:
        await do(client.close())
