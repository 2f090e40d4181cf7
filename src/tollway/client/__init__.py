"""The client library: finds APIs, pays from a local wallet, and calls through a gateway.

with TollwayClient("http://127.0.0.1:8402", wallet=Wallet.from_environment(os.environ),
                   rpc_urls={84532: "http://127.0.0.1:8545"}, max_price="0.05 USDC", budget="5 USDC") as client:
    answer = client.call(api_id, "/quote/ETH")
"""

from tollway.client.client import Allowance, AsyncTollwayClient, Spending, SpentAmount, TollwayClient
from tollway.client.errors import (
    AnswerMalformed,
    AnswerUnreadable,
    BudgetExhausted,
    CallerFailure,
    CallHeld,
    CannotPay,
    FeeAboveMax,
    FieldProblem,
    GatewayProblem,
    GatewayRefused,
    GatewayUnreachable,
    HeaderInvalid,
    HttpNotAllowed,
    NodeUnreachable,
    NotPaid,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
    StoreUnusable,
)
from tollway.client.provider import Forwarded, ForwardedRefused, ForwardedVerifier
from tollway.client.quote import Cap
from tollway.client.records import (
    AgentDocument,
    CallPage,
    DescribedOperation,
    ListedApi,
    ListingDetails,
    MeasuredQuality,
    OfferedPayment,
    OwnershipStatus,
    PaymentStatus,
    PriceQuote,
    RecordedCall,
    RecordedPayment,
    SearchPage,
)
from tollway.client.responses import CallResponse, PaymentInfo
from tollway.client.steps import PaymentQuote
from tollway.client.transfer import Patience
from tollway.client.wallet import KeyUnusable, Wallet, create_key_file

__all__ = [
    "AgentDocument",
    "Allowance",
    "AnswerMalformed",
    "AnswerUnreadable",
    "AsyncTollwayClient",
    "BudgetExhausted",
    "CallHeld",
    "CallPage",
    "CallResponse",
    "CallerFailure",
    "CannotPay",
    "Cap",
    "DescribedOperation",
    "FeeAboveMax",
    "FieldProblem",
    "Forwarded",
    "ForwardedRefused",
    "ForwardedVerifier",
    "GatewayProblem",
    "GatewayRefused",
    "GatewayUnreachable",
    "HeaderInvalid",
    "HttpNotAllowed",
    "KeyUnusable",
    "ListedApi",
    "ListingDetails",
    "MeasuredQuality",
    "NodeUnreachable",
    "NotPaid",
    "OfferedPayment",
    "OwnershipStatus",
    "Patience",
    "PaymentInfo",
    "PaymentPending",
    "PaymentQuote",
    "PaymentRefused",
    "PaymentStatus",
    "PriceAboveMax",
    "PriceQuote",
    "RecordedCall",
    "RecordedPayment",
    "SearchPage",
    "Spending",
    "SpentAmount",
    "StoreUnusable",
    "TollwayClient",
    "Wallet",
    "create_key_file",
]
