"""The walk-through of the demo: publish, prove, find, call unpaid, pay, call, call again, pay by a signature alone, pay by use, pay by a channel, claim, read the history. It sends real requests to
a gateway and real transactions to the test chain, and reports each as an event. Each step ends with one event that says its outcome in a line.

It uses the gateway over HTTP alone, as every client does, and must never read its database. It prints nothing: events go to `report`.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx

from tollway.chain.channel_contract import SETTLED_TOPIC, SETTLEMENT_CONTRACT
from tollway.client import Wallet
from tollway.client.channel_offer import OfferedChannel, read_channel_offers, read_charge
from tollway.client.own_channel import CHANNEL_SALT, OwnChannel, VoucherRefused, apply_charge, plan_voucher
from tollway.client.quote import parse_amount
from tollway.client.x402 import X402Offer, read_receipt, read_x402_offers
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.signatures import transaction_digests
from tollway.identity.siwe import parse_origin
from tollway.ids import TxHash
from tollway.money import format_decimal
from tollway.payments.channels import channel_id
from tollway.sandbox import completions
from tollway.sandbox.chain import ChainDriver, MinedReceipt, Playground


@dataclass(frozen=True, slots=True, kw_only=True)
class TourStep:
    """The start of a step: its title, and its reason in a sentence."""

    number: int
    title: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TourPayment:
    tx_hash: TxHash
    block: int
    sender: str
    to: str
    amount: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TourOutcome:
    """The end of a step: what it has done, in two words and in a line of at most 54 characters."""

    number: int
    label: str
    text: str


TourEvent = TourStep | httpx.Response | TourPayment | TourOutcome
"""A response has its request."""


API = "/api/v2"
PRICE = "0.01"
PRICE_UNITS = 10_000
SYMBOL = "ETH"
SEARCH = "quotes"
PREPAID_CALLS = 10
CHANNEL_CALLS = 10
DEPOSIT_MAX_UNITS = 1_000_000
METERING: Mapping[str, Any] = {
    "base": "0.0001",
    "absent": "max",
    "parts": [
        {
            "unit": "prompt token",
            "unitPrice": "0.0002",
            "quantity": {"json": "/usage/prompt_tokens", "sse": "/usage/prompt_tokens"},
        },
        {
            "unit": "completion token",
            "unitPrice": "0.0006",
            "quantity": {"json": "/usage/completion_tokens", "sse": "/usage/completion_tokens"},
        },
    ],
}
"""The price by use of a completion; its maximum is `PRICE`."""
_COMPLETION = {"messages": [{"role": "user", "content": "use what for pays meter A"}], "max_tokens": 2}
_DEADLINE_S = 20.0
_POLL_S = 0.1


class TourFailed(Exception):
    """A step of the walk-through failed; the text has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TourResult:
    api_id: str
    call_id: str
    payment: TxHash


class Tour:
    """One walk-through. Its caller has a wallet of its own (the account `visitor`), so that those of the sandbox file stay unused.

    `put_file(path, text)`: makes the provider's server return the text at a path of its origin. `claim()`: has the gateway claim its channels now, which it does each minute.
    """

    def __init__(
        self,
        *,
        gateway_url: str,
        upstream_url: str,
        put_file: Callable[[str, str], None],
        driver: ChainDriver,
        playground: Playground,
        http: httpx.AsyncClient,
        report: Callable[[TourEvent], None],
        claim: Callable[[], Awaitable[None]],
    ) -> None:
        self._gateway_url = gateway_url
        self._origin = parse_origin(gateway_url)
        self._upstream_url = upstream_url
        self._put_file = put_file
        self._driver = driver
        self._playground = playground
        self._http = http
        self._report = report
        self._claim = claim
        self._step_number = 0
        self._provider = Wallet.from_key(playground.account("provider").key)
        self._visitor = Wallet.from_key(playground.account("visitor").key)

    async def run(self) -> TourResult:
        """Raises `TourFailed` at the first step that fails."""
        api_id = await self._publish()
        await self._prove(api_id)
        await self._find(api_id)
        target = f"{API}/gateway/{api_id}/quote/{SYMBOL}"
        terms = await self._call_unpaid(target)
        payment = await self._pay(self._find_option(terms))
        call_id = await self._call(target, payment)
        await self._call_again(target, payment)
        signed_id = await self._call_by_signature(target, terms)
        metered_id, cost = await self._call_metered(f"{API}/gateway/{api_id}{completions.PATH}")
        channel_ids, deposit_gas = await self._call_by_channel(target, terms)
        await self._claim_channel(deposit_gas)
        ids = (*reversed(channel_ids), metered_id, signed_id, call_id)
        await self._check_history(ids, (2 + CHANNEL_CALLS) * PRICE_UNITS + cost)
        return TourResult(api_id=api_id, call_id=call_id, payment=payment)

    async def prepay(self) -> tuple[TxHash, str]:
        """Pays for `PREPAID_CALLS` calls with one transfer; returns its hash and the plain signature over it."""
        paid = await self._transfer(PRICE_UNITS * PREPAID_CALLS)
        return paid.tx_hash, self._sign_plain(paid.tx_hash)

    # ---- The twelve steps.

    async def _publish(self) -> str:
        self._step(
            1,
            "The provider publishes an API",
            "The provider's wallet signs the request (ERC-8128). There are no accounts and no passwords.",
        )
        draft = {
            "name": "QR codes and quotes",
            "pricePerRequest": PRICE,
            "currency": "USDC",
            "endpoint": self._upstream_url,
            "description": "The demo's own API: a QR code of any text for a cent, quotes that mean nothing, an echo, a stream of events.",
            "tags": ["sample"],
            "openapiUrl": self._upstream_url + "/openapi.json",
            "operations": [
                {"method": "POST", "path": completions.PATH, "pricePerRequest": PRICE, "metering": METERING}
            ],
        }
        body = json.dumps(draft, separators=(",", ":")).encode()
        answer = await self._send("POST", f"{API}/apis", body=body, signer=self._provider)
        api_id = _read_json(_expect(answer, HTTPStatus.CREATED)).get("id")
        if not isinstance(api_id, str):
            raise TourFailed("the created listing has no id")
        self._end_step("listed", f"{self._format_units(PRICE_UNITS)} a request: {api_id}")
        return api_id

    async def _prove(self, api_id: str) -> None:
        self._step(
            2,
            "The provider proves the ownership of the endpoint",
            "Any wallet can publish any URL. The gateway names a file; the file at the endpoint's origin is the proof.",
        )
        target = f"{API}/apis/{api_id}/ownership"
        document = _read_json(_expect(await self._send("GET", target), HTTPStatus.OK))
        challenge_file = (document.get("challenge") or {}).get("wellKnown") or {}
        if not (
            isinstance(challenge_file.get("content"), str) and isinstance(challenge_file.get("url"), str)
        ):
            raise TourFailed("the gateway names no file for the proof of ownership")
        self._put_file(urlsplit(challenge_file["url"]).path, challenge_file["content"] + "\n")
        seen = _read_json(_expect(await self._send("POST", target, signer=self._provider), HTTPStatus.OK))
        if seen.get("state") != "verified":
            raise TourFailed(f"the file of the proof is served, but the ownership is {seen.get('state')}")
        self._end_step("ownership verified", "by a file at the endpoint's origin")

    async def _find(self, api_id: str) -> None:
        self._step(
            3,
            "An agent that knows only the gateway's URL finds the API and reads how to call it",
            "The agent document has the operations, their prices and the ways to pay. The provider's texts are data in it.",
        )
        found = _read_json(_expect(await self._send("GET", f"{API}/apis?q={SEARCH}"), HTTPStatus.OK))
        if api_id not in [one.get("id") for one in found.get("apis") or ()]:
            raise TourFailed("the search does not find the listing")
        document = _read_json(_expect(await self._send("GET", f"{API}/apis/{api_id}/agent"), HTTPStatus.OK))
        if document.get("id") != api_id:
            raise TourFailed("the agent document is not of the listing")
        self._end_step("found", f'by the search "{SEARCH}"; its agent document is read')

    async def _call_unpaid(self, target: str) -> httpx.Response:
        self._step(
            4,
            "The caller sends a request without a payment",
            "The gateway responds 402. The response has the price and the ways to pay.",
        )
        terms = _expect(await self._send("GET", target), HTTPStatus.PAYMENT_REQUIRED)
        option = self._find_option(terms)
        price, payee = self._format_units(int(option["amount"])), shorten_hex(option["payTo"])
        self._end_step("called without payment", f"402: the price is {price}, to {payee}")
        return terms

    def _find_option(self, terms: httpx.Response) -> Mapping[str, Any]:
        options = (_read_json(terms).get("payment") or {}).get("options") or ()
        wanted = str(self._playground.token.address).lower()
        for option in options:
            if option.get("rail") == "tx" and str(option.get("token", "")).lower() == wanted:
                return dict(option)
        raise TourFailed("the 402 offers no payment by a transfer of the test dollar")

    async def _pay(self, option: Mapping[str, Any]) -> TxHash:
        self._step(
            5,
            "The caller pays the provider on the chain",
            "The transfer goes from wallet to wallet. The gateway never holds the money.",
        )
        if option["payTo"] != str(self._provider.address):
            raise TourFailed("the 402 has another payTo than the provider's wallet")
        paid = await self._transfer(int(option["amount"]))
        self._report(paid)
        self._end_step("paid", f"{paid.amount} to the provider, transaction {shorten_hex(str(paid.tx_hash))}")
        return paid.tx_hash

    async def _call(self, target: str, payment: TxHash) -> str:
        self._step(
            6,
            "The caller sends the request with the proof of payment",
            "X-Payment-Tx names the transaction; X-Signature is the payer's personal_sign of that hash.",
        )
        answer = await self._send("GET", target, headers=self._proof(payment))
        headers: Mapping[str, str] = _expect(answer, HTTPStatus.OK).headers
        call_id, state = headers.get("tollway-call-id"), headers.get("tollway-payment-state")
        if call_id is None or state != "charged":
            raise TourFailed(f"the call was served, but its payment is {state}")
        quote = _read_json(answer)
        words = f"{quote.get('symbol')} {quote.get('price')} {quote.get('currency')}"
        self._end_step("served", f"200: {words}; charged {headers.get('tollway-price')}")
        return call_id

    async def _call_again(self, target: str, payment: TxHash) -> None:
        self._step(
            7,
            "The caller sends the same proof again",
            "The payment covered one call. The gateway forwards nothing and charges nothing.",
        )
        answer = await self._send("GET", target, headers=self._proof(payment))
        code = _read_json(_expect(answer, HTTPStatus.CONFLICT)).get("code")
        if code != "payment_already_used":
            raise TourFailed(f"the refusal says {code} instead of payment_already_used")
        self._end_step("refused", f"409 {code}: it covered one call")

    async def _call_by_signature(self, target: str, terms: httpx.Response) -> str:
        self._step(
            8,
            "The caller pays another call with a signature (x402)",
            "The caller signs the terms of the 402 (EIP-3009). The gateway sends the transfer after the API has responded.",
        )
        signed = self._visitor.sign_authorization(
            self._find_offer(terms),
            self._playground.usdc,
            gateway=str(self._origin),
            now_s=int(time.time()),
            nonce=secrets.token_bytes(32),
        )
        answer = await self._send("GET", target, headers={"PAYMENT-SIGNATURE": signed.proof})
        headers: Mapping[str, str] = _expect(answer, HTTPStatus.OK).headers
        receipt = read_receipt(headers)
        call_id, state = headers.get("tollway-call-id"), headers.get("tollway-payment-state")
        if call_id is None or state != "charged" or receipt is None or receipt.transaction is None:
            raise TourFailed(
                f"the call was served, but its payment is {state}, and no receipt names a transfer"
            )
        mined = await self._driver.wait_receipt(receipt.transaction)
        if not mined.succeeded:
            raise TourFailed(f"the transfer {receipt.transaction} failed on the chain")
        self._report(self._describe_payment(mined, PRICE_UNITS))
        transaction = shorten_hex(str(mined.tx_hash))
        self._end_step("paid by x402", f"200; transaction {transaction}, gas by the gateway")
        return call_id

    def _find_offer(self, terms: httpx.Response) -> X402Offer:
        for offer in read_x402_offers(terms.headers, _read_json(terms)):
            if offer.token == self._playground.token.address:
                if offer.pay_to != self._provider.address or offer.amount != PRICE_UNITS:
                    raise TourFailed("the x402 terms differ from those of the listing")
                return offer
        raise TourFailed("the 402 offers no payment by an authorisation")

    async def _call_metered(self, target: str) -> tuple[str, int]:
        """Pays the maximum of a completion, and calls it. Returns the id of the call and what it cost, in units."""
        self._step(
            9,
            "The caller pays a completion by what it uses",
            "The payment covers the maximum. The response reports its use, the call takes its price, and the rest is credit.",
        )
        body = json.dumps(_COMPLETION).encode()
        terms = _expect(await self._send("POST", target, body=body), HTTPStatus.PAYMENT_REQUIRED)
        option = self._find_option(terms)
        if option["payTo"] != str(self._provider.address) or int(option["amount"]) != PRICE_UNITS:
            raise TourFailed("the 402 of the completion differs from the listing")
        paid = await self._transfer(PRICE_UNITS)
        self._report(paid)
        answer = await self._send("POST", target, headers=self._proof(paid.tx_hash), body=body)
        headers: Mapping[str, str] = _expect(answer, HTTPStatus.OK).headers
        call_id, price = headers.get("tollway-call-id"), headers.get("tollway-price", "").partition(" ")[0]
        cost = parse_amount(price, decimals=self._playground.usdc.decimals)
        if call_id is None or cost is None or cost > PRICE_UNITS:
            raise TourFailed("the completion was served, but its price is not known")
        back, maximum = self._format_units(PRICE_UNITS - cost), PRICE
        self._end_step("paid by use", f"at most {maximum}: cost {price}, {back} came back")
        return call_id, cost

    async def _call_by_channel(self, target: str, terms: httpx.Response) -> tuple[list[str], int]:
        """Opens a channel with the first of ten calls. Returns the ids of the calls, and the gas of the deposit."""
        self._step(
            10,
            "The caller pays ten calls by one deposit (an x402 payment channel)",
            "The first call carries a signed deposit. Each call shows a voucher, a signature over the sum so far, and no transaction.",
        )
        offer = self._find_channel_offer(terms)
        usdc, config = self._playground.usdc, offer.build_config(self._visitor.address, CHANNEL_SALT)
        channel = OwnChannel(
            id=channel_id(config, usdc.chain_id), config=config, asset=usdc, gateway=str(self._origin)
        )
        call_ids, deposit_gas = [], 0
        for _ in range(CHANNEL_CALLS):
            plan = plan_voucher(
                channel, price=PRICE_UNITS, deposit_min=offer.deposit_min, deposit_max=DEPOSIT_MAX_UNITS
            )
            if isinstance(plan, VoucherRefused):
                raise TourFailed(f"no voucher can be signed: {plan.reason}")
            signed = self._visitor.sign_voucher(
                offer,
                channel,
                plan,
                request=bytes(32),
                now_s=int(time.time()),
                salt=secrets.token_bytes(32),
            )
            proof = signed.channel.pending.proof if signed.channel.pending else ""
            answer = await self._send("GET", target, headers={"PAYMENT-SIGNATURE": proof})
            headers: Mapping[str, str] = _expect(answer, HTTPStatus.OK).headers
            charge, receipt = read_charge(headers), read_receipt(headers)
            call_id = headers.get("tollway-call-id")
            if charge is None or charge.charged != PRICE_UNITS or call_id is None:
                raise TourFailed("a call by the channel was served, and not charged its price")
            if plan.deposit and receipt is not None and receipt.transaction is not None:
                deposit_gas = await self._fetch_gas(receipt.transaction)
            channel = apply_charge(signed.channel, charge)
            call_ids.append(call_id)
        if not deposit_gas:
            raise TourFailed("no receipt names the transaction of the deposit")
        deposit = self._format_units(channel.balance)
        self._end_step(
            "paid by a channel",
            f"{CHANNEL_CALLS} calls: {self._format_units(channel.charged)} of a deposit of {deposit}",
        )
        return call_ids, deposit_gas

    def _find_channel_offer(self, terms: httpx.Response) -> OfferedChannel:
        for offer in read_channel_offers(terms.headers, _read_json(terms)):
            if offer.terms.token == self._playground.token.address:
                if offer.terms.pay_to != self._provider.address or offer.terms.amount != PRICE_UNITS:
                    raise TourFailed("the terms of the channel differ from those of the listing")
                return offer
        raise TourFailed("the 402 offers no payment channel")

    async def _claim_channel(self, deposit_gas: int) -> None:
        self._step(
            11,
            "The gateway claims the channel for the provider",
            "One transaction claims what the ten calls cost and pays it out. The gateway pays its gas, as that of the deposit.",
        )
        paid = await self._wait_settled(CHANNEL_CALLS * PRICE_UNITS)
        hashes = {TxHash.parse(log["transactionHash"]) for log in paid}
        gas = deposit_gas + sum([await self._fetch_gas(one) for one in hashes])
        text = f"{self._format_units(CHANNEL_CALLS * PRICE_UNITS)} in {1 + len(hashes)} transactions: {gas // CHANNEL_CALLS:,} gas a call"
        self._end_step("claimed", text)

    async def _wait_settled(self, units: int) -> list[Any]:
        """The events by which the contract has paid the provider that much."""
        receiver = bytes(self._provider.address).rjust(32, b"\0")
        topics = ["0x" + SETTLED_TOPIC.hex(), "0x" + receiver.hex()]
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            await self._claim()
            paid: list[Any] = await self._driver.rpc(
                "eth_getLogs",
                {"address": str(SETTLEMENT_CONTRACT), "fromBlock": "earliest", "topics": topics},
            )
            if sum(int(log["data"], 16) for log in paid) == units:
                return paid
            if time.monotonic() > deadline:
                raise TourFailed("the contract has not paid out what the ten calls cost")
            await asyncio.sleep(_POLL_S)

    async def _fetch_gas(self, tx_hash: TxHash) -> int:
        await self._driver.wait_receipt(tx_hash)
        return int((await self._driver.rpc("eth_getTransactionReceipt", str(tx_hash)))["gasUsed"], 16)

    async def _check_history(self, call_ids: tuple[str, ...], units: int) -> None:
        self._step(
            12,
            "The caller reads its history",
            "The history has every paid call with its price and its transaction or channel. Only the wallet's signature opens it.",
        )
        answer = await self._send("GET", f"{API}/history?limit=20", signer=self._visitor)
        calls = _read_json(_expect(answer, HTTPStatus.OK)).get("calls") or ()
        if tuple(call.get("id") for call in calls) != call_ids:
            raise TourFailed("the history does not have exactly the paid calls")
        self._end_step("history", f"{len(calls)} calls, {self._format_units(units)}")

    # ---- Requests and payments.

    def _step(self, number: int, title: str, why: str) -> None:
        self._step_number = number
        self._report(TourStep(number=number, title=title, why=why))

    def _end_step(self, label: str, text: str) -> None:
        self._report(TourOutcome(number=self._step_number, label=label, text=text))

    def _format_units(self, amount: int) -> str:
        usdc = self._playground.usdc
        return f"{format_decimal(amount, decimals=usdc.decimals)} {usdc.symbol}"

    async def _transfer(self, amount: int) -> TourPayment:
        playground = self._playground
        visitor, provider = playground.account("visitor"), playground.account("provider")
        sent = await self._driver.send_token(
            key=visitor.key, token=playground.token, to=provider.address, amount=amount
        )
        receipt = await self._driver.wait_receipt(sent)
        if not receipt.succeeded:
            raise TourFailed(f"the transfer {sent} failed on the chain")
        return self._describe_payment(receipt, amount)

    def _describe_payment(self, mined: MinedReceipt, amount: int) -> TourPayment:
        """A transfer from the caller to the provider; the gateway may have sent its transaction."""
        return TourPayment(
            tx_hash=mined.tx_hash,
            block=mined.block_number,
            sender=str(self._visitor.address),
            to=str(self._provider.address),
            amount=self._format_units(amount),
            token=str(self._playground.token.address),
        )

    def _proof(self, payment: TxHash) -> dict[str, str]:
        return {"X-Payment-Tx": str(payment), "X-Signature": self._sign_plain(payment)}

    def _sign_plain(self, payment: TxHash) -> str:
        text_digest, _ = transaction_digests(payment)
        return "0x" + self._visitor.sign_digest(text_digest).hex()

    async def _send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        signer: Wallet | None = None,
    ) -> httpx.Response:
        sent = dict(headers or {})
        if body:
            sent["Content-Type"] = "application/json"
        if signer is not None:
            sent |= self._sign(method, target, sent, body, signer)
        try:
            response = await self._http.request(
                method, self._gateway_url + target, headers=sent, content=body or None, timeout=_DEADLINE_S
            )
        except httpx.HTTPError as exc:
            raise TourFailed(f"{method} {target} got no response: {exc!r}") from exc
        self._report(response)
        return response

    def _sign(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, signer: Wallet
    ) -> dict[str, str]:
        path, _, query = target.partition("?")
        request = SignedRequest(
            method=method,
            raw_path=path.encode(),
            query=query.encode(),
            headers=[(name.lower().encode(), value.encode()) for name, value in headers.items()],
            body=body,
        )
        signed = signer.sign_request(
            request,
            origin=self._origin,
            chain_id=self._driver.chain_id,
            now_s=int(time.time()),
            nonce=secrets.token_hex(16),
        )
        return dict(signed)


def shorten_hex(text: str) -> str:
    """Keeps the first and the last four digits."""
    return f"{text[:6]}…{text[-4:]}"


def _expect(answer: httpx.Response, status: HTTPStatus) -> httpx.Response:
    if answer.status_code != status:
        raise TourFailed(
            f"{describe_request(answer.request)} returned {answer.status_code} instead of {status.value}"
        )
    return answer


def _read_json(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        document = json.loads(answer.content)
    except ValueError as exc:
        raise TourFailed(f"{describe_request(answer.request)} returned a body that is not JSON") from exc
    if not isinstance(document, dict):
        raise TourFailed(f"{describe_request(answer.request)} returned JSON that is not an object")
    return document


def describe_request(request: httpx.Request) -> str:
    """Its method and target: `GET /api/v2/apis?q=quotes`."""
    return f"{request.method} {request.url.raw_path.decode()}"
