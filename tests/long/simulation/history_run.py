"""The record of one history: its seed, its world, its participants and its events. Data only."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.kit.ledger_records import NOW_MS, USDC
from tests.long.simulation.fake_ledger import SharedContext
from tests.long.simulation.oracle import Laws, Request, Truth
from tollway.ids import Address, CallId, ListingId, TxHash, keccak256
from tollway.ledger.ledger import Claimed, StoredResponse
from tollway.ledger.records import NewPayment, SettlementAttempt
from tollway.ledger.refunds import credit_hash
from tollway.limits import DEFAULT_LIMITS

LIMITS = replace(DEFAULT_LIMITS, close_patience_s=0.0)  # time goes by in steps here
LEASE_MS = int(LIMITS.owner_lease_s * 1000)
HOLD_MS = LIMITS.unknown_hold_s * 1000
EXPIRY_SLACK_S = 60
PAYERS = (Address(b"\xa1" * 20), Address(b"\xa2" * 20))
TOKEN = Address(bytes.fromhex(USDC[2:]))
LISTING = ListingId("api_1")
ANSWER = StoredResponse(status=200, headers=(), body=b"{}")
BLOCK = b"\x01" * 32
TX = {name: TxHash(keccak256(name.encode())) for name in (f"tx{number}" for number in range(64))}
TX |= {f"refund {number}": TxHash(keccak256(b"refund %d" % number)) for number in range(32)}
WORDS = tuple(keccak256(b"word %d" % number) for number in range(256))
IDS = tuple(CallId(f"call_{number:04}") for number in range(2_048))
TX |= {f"credit {call_id}": credit_hash(call_id) for call_id in IDS}


@dataclass(slots=True, kw_only=True, eq=False)
class GrantedCall:
    """A granted call on its way through one gateway process."""

    gateway: Any
    request: Request
    call_id: CallId
    claimed: Claimed
    stage: str = "held"  # a connection is held; then sent, settling, body
    attempt: SettlementAttempt | None = None


@dataclass(slots=True, kw_only=True)
class Story:
    """The events of one history."""

    seed: int
    number: int
    steps: int = 0
    claims: int = 0
    told: list[str] = field(default_factory=list)


class HistoryRun:
    """The shared state of one history. `is_alone`: one gateway at a time, as on SQLite. `tells`: records the events. `crowd`: calls of the first
    payment, before the first step; with one, a transaction moves as many calls as in a gateway, without one 1 to 4."""

    def __init__(
        self, seed: int, number: int, *, is_alone: bool = False, tells: bool = False, crowd: int = 0
    ) -> None:
        self.random = random.Random((seed << 32) ^ number)
        # Of its own: how an operation of several transactions is cut, and where it ends.
        self.chunks = random.Random((seed << 33) ^ number)
        # Of their own: what the owners of wallets do.
        self.owners = random.Random((seed << 34) ^ number)
        self._has_owner = self.owners.random() < 0.2 and not crowd
        self._policies = 0
        # And what the provider gives back.
        self.refunder = random.Random((seed << 35) ^ number)
        self._has_refunds = self.refunder.random() < 0.2 and not crowd
        self._transfers: dict[str, tuple[NewPayment, tuple[CallId, ...]]] = {}
        draw = self.random.random
        self.story = Story(seed=seed, number=number)
        self._tells = tells
        self._crowd = crowd
        self._prices = 1 + int(draw() * 5)
        self._auth_share = (0.0, 0.0, 0.5, 1.0)[int(draw() * 4)]
        self._payers = PAYERS[: 1 + (draw() < 0.15)]
        self.gateways_wanted = 1 if is_alone or draw() < 0.55 else 2
        self._wildness = draw()
        is_limited = draw() < 0.15 and not crowd
        self.unfinal_max_units = int(draw() * 10) if is_limited else None
        self.context = SharedContext(
            limits=LIMITS if crowd else replace(LIMITS, moved_calls_max=1 + self.chunks.randrange(4)),
            unfinal_max_nano={"USDC": (self.unfinal_max_units or 0) * 1000} if is_limited else {},
            has_power_cuts=draw() < 0.2,
        )
        self._steps = 4 + int(self.random.expovariate(0.2)) + (30 if draw() < 0.08 else 0)
        self.machine: Any = None
        self._gateways: list[Any] = []
        self._stalled: list[Any] = []
        self._born = 0
        self._trips: list[GrantedCall] = []
        self._requests: list[Request] = []
        self._silent: list[CallId] = []
        self._nonces = 0
        self._payments: dict[str, NewPayment] = {}
        self._named = 0
        self._gone: set[str] = set()
        self._block = 100
        self._words = 0
        self.truth = Truth(balances={payer: int(draw() * draw() * 60) for payer in self._payers})
        self._laws: Laws | None = None

    def _tell(self, what: str, **details: object) -> None:
        if self._tells:
            named = " ".join(f"{key}={value}" for key, value in details.items())
            self.story.told.append(f"{self.machine.now_ms - NOW_MS:>10} {what} {named}".rstrip())

    def _check(self, cause: str) -> None:
        self.story.steps += 1
        if self._laws is not None:
            self._laws.check(cause, self.machine.now_ms)

    def _flip(self, chance: float) -> bool:
        return self.random.random() < chance

    def _pick(self, some: list[Any]) -> Any:
        return some[int(self.random.random() * len(some))]
