"""A gateway that sells metered calls, and formulas for them. `tests.kit.metering` has the formula of a chat."""

from tests.kit.gateway import InProcessGateway
from tollway.gateway.access import ActiveCall
from tollway.gateway.idempotency import Repeat
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.routing import Route
from tollway.gateway.transaction_payment import TransactionPayment, TransactionRail
from tollway.money import Price
from tollway.registry.metering import MeteredPart, Metering, QuantitySource, parse_unit_price

TOTAL_TOKENS = QuantitySource(json="/usage/total_tokens", sse="/usage/total_tokens")
USAGE_HEADER = QuantitySource(header="X-Usage-Units")
BODY_BYTES = QuantitySource(is_bytes=True)


def make_metering(
    *sources: QuantitySource,
    base: str = "0.001",
    unit_price: str = "0.0001",
    absent: str = "max",
    shows_header: bool = False,
) -> Metering:
    """`base` USDC, and `unit_price` for each unit of each source."""
    return Metering(
        base=Price.parse(base),
        absent="base" if absent == "base" else "max",
        shows_header=shows_header,
        parts=tuple(
            MeteredPart(unit="unit", unit_price_atto=parse_unit_price(unit_price), per=1, source=source)
            for source in sources
        ),
    )


class ObservedRail(TransactionRail):
    """`last`: the payment of the newest call."""

    last: TransactionPayment

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> TransactionPayment:
        self.last = super().open(request, route, proof, repeat, active)
        return self.last


class MeteredGateway(InProcessGateway):
    transaction_rail: ObservedRail
    transaction_rail_kind = ObservedRail
