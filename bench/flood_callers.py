"""The ordinary callers of `bench/floods.py`, in a process of their own: each pays its calls at its pace, on credit, at a price by use, or over a channel.

A caller on a channel signs each voucher before the time of the call begins, over the charged sum of its last response.
"""

import asyncio
import secrets
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from gateways import Bench, Gateway
from load import format_request
from upstream import USED_PATH
from variety import PATH

from tollway.client.channel_offer import OfferedChannel, read_channel_offers, read_charge, read_correction
from tollway.client.client import AsyncTollwayClient
from tollway.client.own_channel import CHANNEL_SALT, OwnChannel, VoucherPlan, apply_charge, plan_voucher
from tollway.client.wallet import Wallet
from tollway.money import Asset
from tollway.payments.channels import channel_id
from tollway.sandbox.chain import make_account

Plan = dict[str, Any]

CALLERS, CALLERS_OF_EACH = 8, 4
"""Where all pay alike, and of each kind where they do not."""
PACE_S = 0.05
CALL_DEADLINE_S = 60.0
PREPARE_DEADLINE_S, POLL_S = 30.0, 0.1
DEPOSIT_MAX_UNITS = 20 * 10**6
METERED: Plan = {
    "name": "Metered",
    "pricePerRequest": "0.00001",
    "currency": "USDC",
    "metering": {
        "base": "0.000001",
        "absent": "max",
        "parts": [
            {
                "unit": "completion token",
                "unitPrice": "0.0000005",
                "quantity": {"json": "/usage/completion_tokens"},
            }
        ],
    },
}
CREDIT, METER, CHANNEL = "credit", "metered", "channel"
KINDS_OF_CALLS = (CREDIT, METER, CHANNEL)
MIXED = "mixed"


# ---- What a caller sends.


@dataclass(slots=True, kw_only=True)
class CreditCaller:
    """Sends one request again and again: a payment on credit, signed plainly."""

    kind: str
    request: bytes

    def sign(self) -> bytes:
        return self.request

    def apply(self, head: str) -> None:
        """A response changes nothing that the next call needs."""


@dataclass(slots=True, kw_only=True)
class ChannelCaller:
    """Has one channel, whose deposit has landed. Its sums are those that the gateway announces."""

    kind: str = CHANNEL
    wallet: Wallet
    offer: OfferedChannel
    channel: OwnChannel
    port: int
    path: str

    @classmethod
    def open(
        cls, wallet: Wallet, required: str, *, port: int, path: str, balance: int = 0
    ) -> "ChannelCaller":
        """`required`: `PAYMENT-REQUIRED` of an unpaid call. `balance`: what is in the channel; 0 makes the first call deposit."""
        offer = read_channel_offers({"payment-required": required}, {})[0]
        terms = offer.terms
        config = offer.build_config(wallet.address, CHANNEL_SALT)
        asset = Asset(
            chain_id=terms.chain_id, token=terms.token, symbol="USDC", decimals=6, domain=terms.domain
        )
        channel = OwnChannel(
            id=channel_id(config, terms.chain_id),
            config=config,
            asset=asset,
            gateway=f"http://127.0.0.1:{port}",
            balance=balance,
        )
        return cls(wallet=wallet, offer=offer, channel=channel, port=port, path=path)

    def sign(self) -> bytes:
        """The next call."""
        plan = plan_voucher(
            self.channel,
            price=self.offer.terms.amount,
            deposit_min=self.offer.deposit_min,
            deposit_max=DEPOSIT_MAX_UNITS,
        )
        assert isinstance(plan, VoucherPlan), plan
        signed = self.wallet.sign_voucher(
            self.offer,
            self.channel,
            plan,
            request=bytes(32),
            now_s=int(time.time()),
            salt=secrets.token_bytes(32),
        )
        self.channel = signed.channel
        assert self.channel.pending is not None
        return format_request(self.port, self.path, [("PAYMENT-SIGNATURE", self.channel.pending.proof)])

    def apply(self, head: str) -> None:
        """Counts what a response charged, or takes the sums of a corrective 402."""
        headers = read_headers(head)
        if (charge := read_charge(headers)) is not None:
            self.channel = apply_charge(self.channel, charge)
        elif (correction := read_correction(headers)) is not None and correction.report is not None:
            report = correction.report
            self.channel = replace(
                self.channel, charged=report.charged or 0, balance=report.balance, pending=None
            )


Caller = CreditCaller | ChannelCaller


def read_headers(head: str) -> dict[str, str]:
    lines = (line.partition(":") for line in head.split("\r\n")[1:] if line)
    return {name.lower(): value.strip() for name, _, value in lines}


# ---- The calls.


@dataclass(slots=True)
class Calls:
    """The seconds that calls took, and the CPU seconds that the gateway used meanwhile: its queue before a call, whatever else the machine runs."""

    taken_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


async def call_steadily(plan: Plan, seconds: float) -> dict[str, Calls]:
    """Each caller calls at its pace. The calls of each kind."""
    found: dict[str, Calls] = {}
    cpu_clock = (~plan["pid"] << 3) | 2  # clock_getcpuclockid(3)
    callers = [read_caller(one, plan["port"]) for one in plan["callers"]]

    async def call_on(caller: Caller) -> None:
        calls = found.setdefault(caller.kind, Calls())
        reader, writer = await asyncio.open_connection("127.0.0.1", plan["port"])
        if isinstance(caller, ChannelCaller):  # a corrective 402 has the sums of its channel
            caller.apply(await exchange(reader, writer, caller.sign()))
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            request = caller.sign()
            started, cpu_started = time.perf_counter(), time.clock_gettime(cpu_clock)
            async with asyncio.timeout(CALL_DEADLINE_S):
                head = await exchange(reader, writer, request)
            took_s = time.perf_counter() - started
            calls.cpu_s.append(time.clock_gettime(cpu_clock) - cpu_started)
            calls.taken_s.append(took_s)
            calls.statuses[head[9:12]] += 1
            caller.apply(head)
            await asyncio.sleep(max(0.0, PACE_S - took_s))
        writer.close()

    async with asyncio.TaskGroup() as group:
        for caller in callers:
            group.create_task(call_on(caller))
    return found


def read_caller(planned: Plan, port: int) -> Caller:
    if planned["kind"] == CHANNEL:
        return ChannelCaller.open(
            Wallet.from_key(planned["key"]),
            planned["required"],
            port=port,
            path=planned["path"],
            balance=planned["balance"],
        )
    return CreditCaller(kind=planned["kind"], request=planned["request"].encode())


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> str:
    """Sends a request and reads its response to the end. Returns the head."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    await reader.readexactly(int(read_headers(head)["content-length"]))
    return head


def summarise_calls(calls: Calls) -> Plan:
    told: dict[str, float] = {}
    for name, seconds in (("", calls.taken_s), ("Cpu", calls.cpu_s)):
        cuts = statistics.quantiles(seconds, n=100)
        told |= {f"{name}p50Ms": cuts[49], f"{name}p99Ms": cuts[98]}
    return {
        "calls": len(calls.taken_s),
        "statuses": dict(calls.statuses),
        **{name: round(value * 1_000, 2) for name, value in told.items()},
    }


# ---- Their preparation, in the harness.


async def prepare_callers(gateway: Gateway, bench: Bench, kind: str, *, upstream_url: str) -> list[Plan]:
    """The callers of a plan, the kinds of a mixed one in turn: each has paid, or its channel is open."""
    kinds = KINDS_OF_CALLS * CALLERS_OF_EACH if kind == MIXED else (kind,) * CALLERS
    plain = gateway.sign_plainly()
    metered = await publish_metered(gateway, bench, upstream_url) if METER in kinds else []
    planned: list[Plan] = []
    async with aiohttp.ClientSession() as session:
        for number, one in enumerate(kinds):
            if one == CHANNEL:
                wallet = Wallet.from_key(bench.callers[number].key)
                planned.append(await open_channel(session, gateway, wallet, bench.callers[number].key))
            else:
                request = (metered if one == METER else plain)[number]
                planned.append({"kind": one, "request": request.decode()})
    return planned


async def publish_metered(gateway: Gateway, bench: Bench, upstream_url: str) -> list[bytes]:
    """A metered listing of another provider, and the calls of each caller who has paid there."""
    provider = make_account("metered provider")
    async with AsyncTollwayClient(gateway.url, wallet=Wallet.from_key(provider.key)) as client:
        listing = await client.publish({**METERED, "endpoint": upstream_url})
    path = f"/api/v2/gateway/{listing.id}{USED_PATH}"
    return [format_request(gateway.port, path, payment.sign()) for payment in await bench.pay(provider)]


async def open_channel(session: aiohttp.ClientSession, gateway: Gateway, wallet: Wallet, key: bytes) -> Plan:
    """Deposits with a first call. Raises RuntimeError where the deposit does not land."""
    path = gateway.path + PATH
    required = await fetch_required(session, gateway.url + path)
    caller = ChannelCaller.open(wallet, required, port=gateway.port, path=path)
    caller.sign()
    assert caller.channel.pending is not None
    proof = {"PAYMENT-SIGNATURE": caller.channel.pending.proof}
    async with asyncio.timeout(PREPARE_DEADLINE_S):
        while True:
            async with session.get(gateway.url + path, headers=proof) as answer:
                text = await answer.text()
                if answer.status == 503:  # the deposit is not mined yet
                    await asyncio.sleep(POLL_S)
                    continue
                charge = read_charge({name.lower(): value for name, value in answer.headers.items()})
                if answer.status != 200 or charge is None:
                    raise RuntimeError(f"the deposit of a channel is answered {answer.status}: {text}")
                return {
                    "kind": CHANNEL,
                    "key": key.hex(),
                    "required": required,
                    "path": path,
                    "balance": apply_charge(caller.channel, charge).balance,
                }


async def fetch_required(session: aiohttp.ClientSession, url: str) -> str:
    """`PAYMENT-REQUIRED` with a channel, which a gateway offers once it has looked at the contract."""
    async with asyncio.timeout(PREPARE_DEADLINE_S):
        while True:
            async with session.get(url) as answer:
                required = answer.headers.get("PAYMENT-REQUIRED", "")
            if read_channel_offers({"payment-required": required}, {}):
                return required
            await asyncio.sleep(POLL_S)


def list_settings(kind: str) -> dict[str, str]:
    """The settings of a gateway that takes these calls."""
    return {"TOLLWAY_CHANNELS": "true"} if kind in (CHANNEL, MIXED) else {}
