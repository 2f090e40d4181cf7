"""A gateway whose calls are metered: each version of the terms has the formula of `metering`, whose maximum is the price."""

from dataclasses import replace

from tests.kit.gateway import PUBLIC_URL, InProcessGateway
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


class MeteredRail(TransactionRail):
    """`formulas`: of every call from now on. `last`: the payment of the newest call."""

    formulas: tuple[Metering, ...] = ()
    last: TransactionPayment

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> TransactionPayment:
        prices = tuple(replace(one, formulas=self.formulas) for one in route.operation_prices)
        self.last = super().open(request, replace(route, operation_prices=prices), proof, repeat, active)
        return self.last


class MeteredGateway(InProcessGateway):
    transaction_rail: MeteredRail

    def _make_rails(self, is_bound_required: bool) -> None:
        super()._make_rails(is_bound_required)
        self.transaction_rail = MeteredRail(
            ledger=self.ledger,
            transaction_verifier=self.transaction_verifier,
            idempotency=self.idempotency,
            limits=self.limits,
            origin=PUBLIC_URL,
            is_bound_required=is_bound_required,
            clock=self.claim_clock,
        )

    def meter(self, *formulas: Metering) -> None:
        self.transaction_rail.formulas = formulas
