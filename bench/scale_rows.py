"""Rows for a catalog and a ledger of any size, the same for the same seed: what the stores would have written, in
bulk.

The distribution is skewed: one payer makes a tenth of all calls from a hundredth of all payments, one provider owns
three of ten listings, a thousand listings get half of the other calls, and payments are spent around the time at
which they were made. A fifth of the calls is on channels (`scale_channels`), an eighth of the listings is metered. Authorisations
(x402, MPP) are left out: their calls are the same for a history and for an audit, and need rows of five more tables. Pure: no
database, no clock.
"""

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tollway.ids import Address, ChainId, ListingId, format_id
from tollway.ledger.records import CallState, PaymentState, Rail
from tollway.money import Asset, Price
from tollway.registry.listing import ChargeOn, Listing
from tollway.registry.metering import (
    Measured,
    MeteredPart,
    Metering,
    QuantitySource,
    compute_cost,
    write_formulas,
    write_measured,
)

START_MS = 1_750_000_000_000
SPAN_MS = 180 * 86_400_000
END_MS = START_MS + SPAN_MS
WHALE = Address(b"\xee" * 20)
WHALE_PROVIDER = Address(b"\xdd" * 20)
BASE, OPTIMISM, TESTNET, RARE_CHAIN = ChainId(8453), ChainId(10), ChainId(84532), ChainId(42161)
TOKENS = {"USDC": Address(b"\x5d" * 20), "EURC": Address(b"\xe5" * 20), "ETH": None}
DECIMALS = {"USDC": 6, "EURC": 6, "ETH": 18}
NETWORKS = ((BASE,), (BASE, OPTIMISM), (TESTNET,), (OPTIMISM, BASE))
FREQUENT_TAG, RARE_TAG = "data", "falconry"
TAGS = (FREQUENT_TAG, "weather", "maps", "ai", "finance", "text", "images", "sport", "law", "health")
FREQUENT_WORD, RARE_WORD = "forecast", "ornithopter"
PAIR_GONE, PAIR_WHALE = 5_000, 100
CHANNEL_SHARE, CHANNEL_WHALE = 0.2, 100
UNFINAL_PAYMENTS, HELD_EVERY = 60, 20
"""The newest payments, at any scale; of these one in `HELD_EVERY` is held."""
METERED_EVERY = 8
METERING = Metering(
    base=Price.from_nano(10_000),
    absent="max",
    shows_header=False,
    parts=(
        MeteredPart(
            unit="token",
            unit_price_atto=10**12,
            per=1,
            source=QuantitySource(json="/usage/tokens"),
        ),
    ),
)
FORMULA = write_formulas((METERING,))
RARE_LISTINGS = 25
"""So many carry the rare tag, word and network, at any scale."""
WORDS = [
    "price",
    "history",
    "city",
    "river",
    "station",
    "daily",
    "hourly",
    "open",
    "verified",
    "sensor",
    "index",
    "archive",
    "stream",
    "query",
    "report",
    "signal",
    "route",
    "address",
    "company",
    "filing",
    "match",
    "score",
    "translate",
    "summary",
    "image",
    "vector",
    "model",
    "language",
    "market",
    "exchange",
    "rate",
    "quote",
    "block",
    "wallet",
    "token",
    "label",
    "graph",
    "flight",
    "train",
    "harbour",
    "tide",
    "wind",
    "rain",
    "snow",
    "air",
    "soil",
    "crop",
    "field",
    "lab",
    "gene",
]
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The number of rows of each kind. The same seed and counts give the same rows."""

    seed: int
    listings: int
    calls: int
    payments: int
    channels: int

    def payment_of(self, channel: int) -> int:
        """The number of the payment that has the balance of a channel."""
        return self.payments + channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The units that calls took from payments, by number, those of channels included: filled while the calls are made."""

    taken: "array[int]"
    calls: "array[int]"

    @classmethod
    def none(cls, scale: Scale) -> "Spent":
        zeros = [0] * (scale.payments + scale.channels + 2)
        return cls(taken=array("q", zeros), calls=array("q", zeros))


def mix(seed: int, number: int) -> int:
    """64 pseudo-random bits (splitmix64), always the same for the same number."""
    z = (number * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & _MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
    return z ^ z >> 31


def wallet(kind: int, number: int) -> Address:
    return Address(b"".join(mix(kind + step, number).to_bytes(8, "big") for step in range(3))[:20])


def provider_of(scale: Scale, number: int) -> Address:
    draw = mix(scale.seed, number)
    return WHALE_PROVIDER if draw % 10 < 3 else wallet(100, draw // 10 % max(1, scale.listings // 20))


@lru_cache(maxsize=1)
def descriptions(seed: int) -> tuple[str, ...]:
    """A pool of texts of thirty words; a third of them contain the frequent word."""
    chance = random.Random(seed)
    pool = []
    for number in range(5_000):
        words = chance.choices(WORDS, k=30)
        if number % 3 == 0:
            words[chance.randrange(30)] = FREQUENT_WORD
        pool.append(" ".join(words).capitalize() + ".")
    return tuple(pool)


def listing(scale: Scale, number: int) -> Listing:
    """The listing of that number, from 1 on."""
    draw = mix(scale.seed + 1, number)
    created_ms = START_MS + number * SPAN_MS // (scale.listings + 1)
    provider = provider_of(scale, number)
    currency = "EURC" if draw % 100 == 0 else "ETH" if draw % 100 < 15 else "USDC"
    is_rare = number % max(1, scale.listings // RARE_LISTINGS) == 1
    first, second = WORDS[draw >> 8 & 31], WORDS[draw >> 16 & 31]
    tags = dict.fromkeys((TAGS[min(draw >> 20 & 15, draw >> 24 & 15) % 10], TAGS[(draw >> 28 & 255) % 10]))
    price = Price.from_nano((1 + (draw >> 40) % 500) * 100_000)
    return Listing(
        id=ListingId(
            format_id("api", now_ms=created_ms, entropy=mix(scale.seed + 2, number).to_bytes(10, "big"))
        ),
        provider=provider,
        name=f"{first.capitalize()} {second} {RARE_WORD if is_rare else number}",
        description=descriptions(scale.seed)[draw >> 32 & 4095],
        endpoint=f"https://api-{draw % 9973}.example.com/v1/{number}",
        price=price,
        currency=currency,
        pay_to=provider,
        networks=(RARE_CHAIN,) if is_rare else NETWORKS[draw >> 36 & 3],
        methods=(),
        tags=(*tags, RARE_TAG) if is_rare else tuple(tags),
        operations=(),
        other_paths="serve",
        charge_on=ChargeOn.SUCCESS,
        timeout_s=30,
        forward_headers=(),
        upstream_auth=None,
        openapi=None,
        openapi_url=None,
        signature="any",
        rate_limit=None,
        status="paused" if draw % 50 == 7 else "active",
        forward_signature="ed25519",
        created_ms=created_ms,
        updated_ms=created_ms,
        revision=1,
        retired_ms=created_ms + 1000 if draw % 101 == 3 else None,
        metering=METERING if number % METERED_EVERY == 5 else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCredit:
    """The shared credit of the two payments of a pair."""

    payer: Address
    listing: Listing
    asset: Asset
    price_units: int
    is_gone: bool


@lru_cache(maxsize=200_000)
def _sold(scale: Scale, number: int) -> tuple[Listing, Asset, int]:
    sold = listing(scale, number)
    asset = Asset(
        chain_id=sold.networks[0],
        token=TOKENS[sold.currency],
        symbol=sold.currency,
        decimals=DECIMALS[sold.currency],
    )
    return sold, asset, sold.price.units_in(asset)


def account(scale: Scale, pair: int) -> PairCredit:
    draw = mix(scale.seed + 3, pair)
    is_whale = pair % PAIR_WHALE == 0
    payer = WHALE if is_whale else wallet(200, draw % max(1, scale.payments // 5))
    popular = min(scale.listings, 2_000 if is_whale else 1_000)
    is_popular = is_whale or draw >> 20 & 1
    sold, asset, units = _sold(scale, 1 + (draw >> 24) % (popular if is_popular else scale.listings))
    is_gone = pair % PAIR_GONE == 7
    return PairCredit(payer=payer, listing=sold, asset=asset, price_units=units, is_gone=is_gone)


def channel_account(scale: Scale, key: int) -> PairCredit:
    """The payer of a channel and the listing that it calls: of its receiver, priced in a token."""
    draw = mix(scale.seed + 20, key)
    payer = WHALE if key % CHANNEL_WHALE == 0 else wallet(300, draw % max(1, scale.channels // 5))
    number = (draw >> 24) % (min(scale.listings, 1_000) if draw >> 20 & 1 else scale.listings)
    while not (sold := _sold(scale, 1 + number % scale.listings))[1].token:
        number += 1
    return PairCredit(payer=payer, listing=sold[0], asset=sold[1], price_units=sold[2], is_gone=False)


def call_rows(scale: Scale, spent: Spent) -> Iterator[tuple[dict[str, Any], tuple[Any, ...] | None]]:
    """Every call as its row, oldest first, and the row of its top-up, if it has one."""
    chance = random.Random(scale.seed)
    step_ms = max(1, SPAN_MS // scale.calls)
    for number in range(scale.calls):
        created_ms = START_MS + number * step_ms + chance.randrange(step_ms)
        moment = number / scale.calls
        payment_id = _payment_near(scale, chance, moment)
        draw = chance.getrandbits(32)
        is_running = number >= scale.calls - 5
        if draw % 100 == 99 and not is_running:
            yield _free_call(scale, chance, created_ms), None
        elif scale.channels and not is_running and chance.random() < CHANNEL_SHARE:
            yield _channel_call(scale, chance, created_ms, moment, spent, draw=draw), None
        else:
            yield _paid_call(scale, chance, payment_id, created_ms, spent, draw=draw, is_running=is_running)


def _place_near(chance: random.Random, moment: float) -> float:
    return min(0.999, max(0.0, moment + (chance.random() - 0.5) * 0.04))


def _payment_near(scale: Scale, chance: random.Random, moment: float) -> int:
    """A payment made around `moment` (0 to 1); one of ten times a payment of the largest payer."""
    pairs = max(1, scale.payments // 2)
    draw = chance.random()
    place = _place_near(chance, moment)
    pair = int(place * max(1, pairs // PAIR_WHALE)) * PAIR_WHALE if draw < 0.1 else int(place * pairs)
    return 2 * pair + 1 + (draw * 1000 % 1 < 0.5)


def _channel_call(
    scale: Scale, chance: random.Random, created_ms: int, moment: float, spent: Spent, *, draw: int
) -> dict[str, Any]:
    """A call on a channel used around `moment`; one of ten times on a channel of the largest payer."""
    place, whales = _place_near(chance, moment), scale.channels // CHANNEL_WHALE
    is_whale = whales and chance.random() < 0.1
    key = CHANNEL_WHALE * (1 + int(place * whales)) if is_whale else 1 + int(place * scale.channels)
    paid, payment_id = _channel_of(scale, key), scale.payment_of(key)
    # A call of unknown outcome would have kept its channel from all later ones.
    state, status, error = _end(max(1, draw % 1000), is_gone=False, is_running=False)
    row = _call(scale, chance, paid.listing, created_ms, state=state, status=status, error=error)
    row |= _payment_columns(paid, payment_id, state, chance)
    row |= {"rail": Rail.CHANNEL.value, "channel_id": key}
    spent.calls[payment_id] += 1
    spent.taken[payment_id] += row["taken_units"]
    return row


def _paid_call(
    scale: Scale,
    chance: random.Random,
    payment_id: int,
    created_ms: int,
    spent: Spent,
    *,
    draw: int,
    is_running: bool,
) -> tuple[dict[str, Any], tuple[Any, ...] | None]:
    paid = _account_of(scale, (payment_id - 1) // 2)
    state, status, error = _end(draw, is_gone=paid.is_gone, is_running=is_running)
    row = _call(scale, chance, paid.listing, created_ms, state=state, status=status, error=error)
    row |= _payment_columns(paid, payment_id, state, chance)
    topup = None
    if draw >> 8 & 255 == 0 and payment_id % 2 and (half := row["taken_units"] // 2):
        topup = (row["id"], payment_id + 1, half)
        spent.taken[payment_id + 1] += half
        row["taken_units"] -= half
    row["rail"] = (Rail.CREDIT if spent.calls[payment_id] else Rail.TX).value
    spent.calls[payment_id] += 1
    spent.taken[payment_id] += row["taken_units"]
    return row, topup


def _payment_columns(
    paid: PairCredit, payment_id: int, state: CallState, chance: random.Random
) -> dict[str, Any]:
    """What pays a call: its maximum, and of a metered one what it costs once its response has ended."""
    columns = {
        "payer": paid.payer,
        "price_units": paid.price_units,
        "payment_id": payment_id,
        "taken_units": 0 if state in (CallState.RELEASED, CallState.REORGED) else paid.price_units,
        "chain_id": paid.asset.chain_id,
        "asset": paid.asset.key,
        "decimals": paid.asset.decimals,
        "pay_to": paid.listing.pay_to,
        "metering": None,
    }
    if paid.listing.metering is not None:
        columns |= {"metering": FORMULA, "quantities": ""}
        if state in (CallState.CONSUMED, CallState.REORGED):
            tokens = 50 * chance.randrange(1, 200)
            units = _cost_units(tokens, paid.price_units, paid.asset.decimals)
            taken = units if state is CallState.CONSUMED else 0
            measured = write_measured(Measured(((tokens,),)))
            columns |= {"quantities": measured, "actual_units": units, "taken_units": taken}
    return columns


@lru_cache(maxsize=200_000)
def _cost_units(tokens: int, max_units: int, decimals: int) -> int:
    measured = Measured(((tokens,),))
    return compute_cost((METERING,), measured, max_units=max_units, decimals=decimals).units


@lru_cache(maxsize=50_000)
def _channel_of(scale: Scale, key: int) -> PairCredit:
    return channel_account(scale, key)


@lru_cache(maxsize=50_000)
def _account_of(scale: Scale, pair: int) -> PairCredit:
    return account(scale, pair)


@lru_cache(maxsize=50_000)
def tx_hash_of(scale: Scale, payment_id: int) -> bytes:
    return b"".join(mix(scale.seed + 10 + step, payment_id).to_bytes(8, "big") for step in range(4))


def _end(draw: int, *, is_gone: bool, is_running: bool) -> tuple[CallState, int | None, str | None]:
    if is_gone:
        return CallState.REORGED, 200, None
    if is_running:
        return CallState.FORWARDING, None, None
    match draw % 1000:
        case 0:
            return CallState.UNKNOWN, None, "gateway_died"
        case few if few < 25:
            return CallState.RELEASED, 503, None
        case few if few < 45:
            return CallState.CONSUMED, 404, None
        case _:
            return CallState.CONSUMED, 200, None


def _free_call(scale: Scale, chance: random.Random, created_ms: int) -> dict[str, Any]:
    sold, _, _ = _sold(scale, 1 + chance.randrange(min(1_000, scale.listings)))
    row = _call(scale, chance, sold, created_ms, state=CallState.CONSUMED, status=200, error=None)
    return row | {"price": "0"}


def _call(
    scale: Scale,
    chance: random.Random,
    sold: Listing,
    created_ms: int,
    *,
    state: CallState,
    status: int | None,
    error: str | None,
) -> dict[str, Any]:
    """A free call of that listing with its shared terms; a paid one adds to it."""
    bits = chance.getrandbits(80)
    is_ended = state not in (CallState.FORWARDING, CallState.UNKNOWN)
    latency_ms = 5 + bits % 500
    return {
        "id": format_id("call", now_ms=created_ms, entropy=bits.to_bytes(10, "big")),
        "listing_id": sold.id,
        "listing_name": sold.name,
        "provider": sold.provider,
        "payer": None,
        "method": "GET",
        "path": f"/v1/cities/{bits & 0xFFFF}",
        "digest": chance.randbytes(32),
        "state": state.value,
        "rail": Rail.NONE.value,
        "price": sold.price.text,
        "price_units": 0,
        "currency": sold.currency,
        "payment_id": None,
        "taken_units": 0,
        "chain_id": None,
        "asset": None,
        "decimals": 0,
        "pay_to": None,
        "metering": None,
        "quantities": None,
        "actual_units": None,
        "channel_id": None,
        "nonce": None,
        "idempotency_key": None,
        "request_id": f"{bits:020x}",
        "owner_id": "gateway-1",
        "epoch": 1,
        "attempts": 1,
        "cut": "",
        "clock_releases": True,
        "needs_locks": False,
        "http_status": status,
        "upstream_status": status,
        "request_bytes": 0 if is_ended else None,
        "response_bytes": 200 + (bits >> 20) % 5_000 if is_ended else None,
        "latency_ms": latency_ms if is_ended else None,
        "upstream_latency_ms": latency_ms - 3 if is_ended else None,
        "delivery": "complete" if is_ended else None,
        "error": error,
        "created_ms": created_ms,
        "moved_ms": created_ms + latency_ms,
        "completed_ms": created_ms + latency_ms + 1 if is_ended else None,
    }


def payment_rows(scale: Scale, spent: Spent) -> Iterator[dict[str, Any]]:
    """Every payment as its row, after all calls are made. Half of them have a rest."""
    for payment_id in range(1, scale.payments + 1):
        paid = _account_of(scale, (payment_id - 1) // 2)
        draw = mix(scale.seed + 4, payment_id)
        moment = max(0.0, payment_id / scale.payments - 0.05)
        block_time = (START_MS + int(moment * SPAN_MS)) // 1000
        remaining_units = draw % 100_000 if draw >> 20 & 1 else 0
        value_units = max(1, spent.taken[payment_id] + remaining_units)
        is_unfinal = payment_id > scale.payments - UNFINAL_PAYMENTS and not paid.is_gone
        state = PaymentState.UNFINAL if is_unfinal else PaymentState.FINAL
        yield {
            "id": payment_id,
            "chain_id": paid.asset.chain_id,
            "tx_hash": tx_hash_of(scale, payment_id),
            "asset": paid.asset.key,
            "payer": paid.payer,
            "payee": paid.listing.pay_to,
            "value_units": value_units,
            "taken_units": spent.taken[payment_id],
            "calls": spent.calls[payment_id],
            "state": (PaymentState.GONE if paid.is_gone else state).value,
            "block_number": 1_000_000 + block_time % 10_000_000,
            "block_hash": mix(scale.seed + 5, block_time).to_bytes(32, "big"),
            "block_time": block_time,
            "is_plain_ended": False,
            "is_held": is_unfinal and payment_id % HELD_EVERY == 0,
            "is_escrow": False,
            "is_refund": False,
            "is_authorized": False,
            "recorded_ms": block_time * 1000 + 2000,
            "checked_ms": block_time * 1000 + 60_000,
            "gone_ms": block_time * 1000 + 60_000 if paid.is_gone else None,
        }
