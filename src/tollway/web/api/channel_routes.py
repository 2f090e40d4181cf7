"""`GET /api/v2/channels/{network}/{token}/{payTo}/{authorizer}`: the refund of a channel. Nothing is sold here.

Without a payment it responds with a 402 that offers this channel alone, so that clients find the channel of their wallet. A payment of type `refund` pays back what
the channel holds beyond its calls; every other payment is refused. It works for every listing that has used the channel, also a paused or retired one, and for
blocked wallets: the money is the payer's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from tollway.chain.networks import ChainRules
from tollway.errors import Code, Problem, Refusal, refuse
from tollway.gateway.channel_offers import is_signed_by_payer
from tollway.ids import Address, ChainId, parse_network
from tollway.ledger.channels import Channel, Voucher
from tollway.ledger.ledger import ChannelLedger
from tollway.money import Asset, Price
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_refunds import ChannelRefunds
from tollway.payments.channel_terms import (
    encode_corrective,
    encode_refund_receipt,
    encode_refund_terms,
    has_channels,
)
from tollway.payments.channel_wire import (
    ChannelReason,
    PresentedChannelPayment,
    RefundRequest,
    explain_channel,
    names_channel,
    parse_channel_payment,
)
from tollway.payments.pricing import ChannelOffer, PaymentRequirement
from tollway.payments.wire import decode_object
from tollway.payments.x402 import PAYMENT_HEADER
from tollway.registry.listing import ChargeOn
from tollway.web.api.context import WebContext
from tollway.web.http.problems import to_response

CHANNEL_PATH = "/api/v2/channels/{network}/{token}/{pay_to}/{authorizer}"
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundParts:
    """What the route needs of channels."""

    ledger: ChannelLedger
    networks: ChannelNetworks
    refunds: ChannelRefunds


def channel_router(context: WebContext, parts: RefundParts) -> Router:
    async def refund_channel(request: Request) -> Response:
        requirement = _find_requirement(request, context, parts)
        url = context.public_url + request.scope["path"]
        value = request.headers.get(PAYMENT_HEADER.decode())
        if value is None:
            problem = Problem(
                code=Code.PAYMENT_REQUIRED,
                detail="Send a payment of type `refund` of this channel to get back what it holds beyond its calls. Nothing is sold here.",
                payment_state="none",
            )
            return _respond(problem, encode_refund_terms(requirement, url=url), request, context)
        proof = _read_proof(value, request, context)
        if not _is_of(proof, requirement):
            raise Refusal(explain_channel(ChannelReason.CHANNEL_ID, _OTHER_CHANNEL))
        if not isinstance(proof.request, RefundRequest):
            raise Refusal(explain_channel(ChannelReason.PAYLOAD_TYPE, _NOTHING_SOLD))
        if proof.request.base_units is not None:
            raise Refusal(explain_channel(ChannelReason.REFUND_AMOUNT, _WHOLE_ONLY))
        if not is_signed_by_payer(proof):
            raise Refusal(explain_channel(ChannelReason.VOUCHER_SIGNATURE))
        signed = proof.voucher
        channel = await parts.ledger.find_channel(signed.chain_id, signed.channel_id)
        if channel is None:
            raise Refusal(explain_channel(ChannelReason.NOT_FOUND))
        if signed.ceiling != channel.announced:
            return _correct(requirement, channel, url, request, context, ceiling=signed.ceiling)
        voucher = Voucher(ceiling=signed.ceiling, signature=signed.signature)
        refunded = await parts.refunds.refund(channel, voucher)
        name, receipt = encode_refund_receipt(
            refunded.channel, tx_hash=refunded.tx_hash, base_units=refunded.base_units
        )
        content = {"message": "Refund acknowledged", "channelId": str(channel.id)}
        return JSONResponse(content, headers={name.decode(): receipt.decode(), "cache-control": "no-store"})

    return Router([Route(CHANNEL_PATH, refund_channel, methods=["GET"])])


def _find_requirement(request: Request, context: WebContext, parts: RefundParts) -> PaymentRequirement:
    """The channel that the path names. Raises Refusal (404) for one that this gateway never had."""
    path = request.path_params
    try:
        chain_id = parse_network(path["network"])
        token, pay_to, authorizer = (Address.parse(path[name]) for name in ("token", "pay_to", "authorizer"))
    except ValueError as exc:
        raise NO_CHANNEL from exc
    rules = parts.networks.rules.get(chain_id)
    asset = _find_asset(context.rules, chain_id, token)
    if rules is None or asset is None or not parts.refunds.knows(authorizer) or not has_channels(asset):
        raise NO_CHANNEL
    return PaymentRequirement(
        asset=asset,
        price=Price.parse("0"),
        units=1,  # clients refuse an amount of 0
        pay_to=pay_to,
        charge_on=ChargeOn.SUCCESS,
        max_timeout_s=TIMEOUT_S,
        channel=ChannelOffer(authorizer=authorizer, withdraw_delay=rules.withdraw_delay, deposit_min=1),
    )


def _find_asset(rules: Mapping[ChainId, ChainRules], chain_id: ChainId, token: Address) -> Asset | None:
    here = rules.get(chain_id)
    return None if here is None else next((one for one in here.assets if one.token == token), None)


def _read_proof(value: str, request: Request, context: WebContext) -> PresentedChannelPayment:
    headers = [(PAYMENT_HEADER, value.encode("latin-1"))]
    if not names_channel(headers, context.limits):
        raise Refusal(explain_channel(ChannelReason.PAYLOAD_TYPE, _NOTHING_SOLD))
    proof = parse_channel_payment(
        decode_object(headers[0][1], bytes_max=context.limits.payment_header_bytes_max)
    )
    if proof.fault is not None:
        raise Refusal(proof.fault)
    return proof


def _is_of(proof: PresentedChannelPayment, requirement: PaymentRequirement) -> bool:
    config, offer = proof.voucher.config, requirement.channel
    assert offer is not None
    return (
        proof.voucher.chain_id,
        config.token,
        config.receiver,
        config.receiver_authorizer,
        config.withdraw_delay,
    ) == (
        requirement.asset.chain_id,
        requirement.asset.token,
        requirement.pay_to,
        offer.authorizer,
        offer.withdraw_delay,
    )


def _correct(
    requirement: PaymentRequirement,
    channel: Channel,
    url: str,
    request: Request,
    context: WebContext,
    *,
    ceiling: int,
) -> Response:
    reason = ChannelReason.CUMULATIVE_MISMATCH
    header = encode_corrective(
        requirement, channel, url=url, reason=reason.value, shows_voucher=ceiling > channel.published
    )
    return _respond(explain_channel(reason, _ANNOUNCED), header, request, context)


def _respond(
    problem: Problem, header: tuple[bytes, bytes], request: Request, context: WebContext
) -> Response:
    more = [(header[0].decode(), header[1].decode())]
    return to_response(problem, request.scope, public_url=context.public_url, more=more)


NO_CHANNEL = refuse(
    code=Code.ROUTE_NOT_FOUND,
    detail="This gateway has no channels of that network, token and authorizer. Take the path from the details of a listing or from a receipt.",
)
_OTHER_CHANNEL = "The payment is of another channel than this URL; send it to the URL of its own network, token, payTo and authorizer."
_NOTHING_SOLD = "Only a payment of type `refund` is taken here; nothing is sold."
_WHOLE_ONLY = "A channel is refunded as a whole; leave `amount` out."
_ANNOUNCED = "The voucher of a refund must be over exactly what the channel was charged so far; read `channelState` in the terms."
