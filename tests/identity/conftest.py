"""A harness with fakes: a clock that a test sets, wallets with keys, a chain with chosen results."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import coincurve
import pytest

from tests.kit.lookup_counter import LookupCounter
from tests.kit.payer import KeyWallet
from tests.kit.stores import ControlStores
from tollway.chain.port import ContractResult
from tollway.errors import ChainUnavailable
from tollway.identity.authenticator import Authenticator
from tollway.identity.http_signatures import SignedRequest, signature_headers
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import SignatureVerifier
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.rate_limits.limiter import RateLimiter

CHAIN = ChainId(84532)
PUBLIC_URL = "https://gw.example.com"
NOW_MS = 1_795_239_000_000


@dataclass
class FakeChain:
    """Returns `answer` for every `eth_call`; None: the chain is unavailable. Records its requests."""

    chain_ids: tuple[ChainId, ...] = (CHAIN,)
    answer: ContractResult | None = field(default_factory=lambda: ContractResult(reverted=False, payload=b""))
    asked: list[dict] = field(default_factory=list)

    async def call_contract(self, chain_id, *, to, calldata, gas, bytes_max, deadline_s) -> ContractResult:
        asked = {"chain_id": chain_id, "to": to, "calldata": calldata, "gas": gas}
        self.asked.append(asked | {"bytes_max": bytes_max, "deadline_s": deadline_s})
        if self.answer is None:
            raise ChainUnavailable
        return ContractResult(reverted=self.answer.reverted, payload=self.answer.payload[:bytes_max])


@dataclass
class Clock:
    now_ms: int = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class IdentityHarness:
    """Sign-in, the authenticator, and what they read."""

    stores: ControlStores
    chain: FakeChain
    lookup_quota: LookupCounter
    clock: Clock
    sign_in: SignIn
    authenticator: Authenticator

    def signed(
        self,
        wallet: KeyWallet,
        *,
        method: str = "GET",
        path: bytes = b"/api/v2/history",
        query: bytes = b"",
        body: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        address: Address | None = None,
        nonce: str = "nonce-1",
        created: int | None = None,
        expires: int | None = None,
        sign: Callable[[bytes], bytes] | None = None,
        origin: str = PUBLIC_URL,
    ) -> SignedRequest:
        """A request as a well-behaved client signs it."""
        bare = SignedRequest(method=method, raw_path=path, query=query, headers=headers, body=body)
        created = self.clock.now_ms // 1000 if created is None else created
        more = signature_headers(
            bare,
            origin=parse_origin(origin),
            address=address or wallet.address,
            chain_id=CHAIN,
            created=created,
            expires=created + 60 if expires is None else expires,
            nonce=nonce,
            sign=sign or wallet.sign,
        )
        lines = [*headers, *((name.lower().encode(), value.encode()) for name, value in more)]
        return SignedRequest(method=method, raw_path=path, query=query, headers=lines, body=body)


@pytest.fixture
def wallet() -> KeyWallet:
    return KeyWallet(key=coincurve.PrivateKey(b"\x11" * 32))


@pytest.fixture
def other_wallet() -> KeyWallet:
    return KeyWallet(key=coincurve.PrivateKey(b"\x22" * 32))


@pytest.fixture
def chain() -> FakeChain:
    return FakeChain()


@pytest.fixture
def harness(chain: FakeChain) -> IdentityHarness:
    stores, lookup_quota, clock = ControlStores(), LookupCounter(), Clock()
    origin = parse_origin(PUBLIC_URL)
    drawn = 0

    def entropy(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.sha512(b"%d" % drawn).digest()[:size]

    sign_in = SignIn(
        stores.sessions,
        SignatureVerifier(chain, limits=DEFAULT_LIMITS),
        lookup_quota,
        origin=origin,
        limits=DEFAULT_LIMITS,
        now_ms=clock,
        entropy=entropy,
    )
    authenticator = Authenticator(
        stores.sessions,
        sign_in,
        origin=origin,
        limits=DEFAULT_LIMITS,
        now_ms=clock,
        rate_limiter=RateLimiter(),
    )
    return IdentityHarness(stores, chain, lookup_quota, clock, sign_in, authenticator)
