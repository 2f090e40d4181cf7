"""The client library: finds APIs, pays from a local wallet, and calls through a gateway. A name is imported when it is first used.

with TollwayClient("http://127.0.0.1:8402", wallet=Wallet.from_environment(os.environ),
                   rpc_urls={84532: "http://127.0.0.1:8545"}, max_price="0.05 USDC", budget="5 USDC") as client:
    answer = client.call(api_id, "/quote/ETH")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from tollway.client.receipts import verify_receipt
    from tollway.client.records import (
        AgentDocument,
        AssetSum,
        BookViewer,
        CallPage,
        DeliveryPage,
        DeliveryStatus,
        DescribedOperation,
        FacetCounts,
        GatewayNetwork,
        GatewayStatus,
        ListedApi,
        ListingDetails,
        ListingStats,
        MeasuredQuality,
        NetworkList,
        NetworkStatus,
        OfferedPayment,
        OwnershipStatus,
        PaymentPage,
        PaymentStatus,
        PeriodSum,
        PriceQuote,
        ReceiptFields,
        RecordedCall,
        RecordedPayment,
        SalesReport,
        SearchPage,
        SignedReceipt,
        SpendingReport,
        StateSum,
        TrialResponse,
        ViewerList,
        WebhookList,
        WebhookSecret,
        WebhookStatus,
    )
    from tollway.client.responses import CallResponse, PaymentInfo
    from tollway.client.steps import PaymentProgress, PaymentQuote
    from tollway.client.transfer import Patience
    from tollway.client.wallet import KeyUnusable, Wallet, create_key_file

__all__ = [
    "AgentDocument",
    "Allowance",
    "AnswerMalformed",
    "AnswerUnreadable",
    "AssetSum",
    "AsyncTollwayClient",
    "BookViewer",
    "BudgetExhausted",
    "CallHeld",
    "CallPage",
    "CallResponse",
    "CallerFailure",
    "CannotPay",
    "Cap",
    "DeliveryPage",
    "DeliveryStatus",
    "DescribedOperation",
    "FacetCounts",
    "FeeAboveMax",
    "FieldProblem",
    "Forwarded",
    "ForwardedRefused",
    "ForwardedVerifier",
    "GatewayNetwork",
    "GatewayProblem",
    "GatewayRefused",
    "GatewayStatus",
    "GatewayUnreachable",
    "HeaderInvalid",
    "HttpNotAllowed",
    "KeyUnusable",
    "ListedApi",
    "ListingDetails",
    "ListingStats",
    "MeasuredQuality",
    "NetworkList",
    "NetworkStatus",
    "NodeUnreachable",
    "NotPaid",
    "OfferedPayment",
    "OwnershipStatus",
    "Patience",
    "PaymentInfo",
    "PaymentPage",
    "PaymentPending",
    "PaymentProgress",
    "PaymentQuote",
    "PaymentRefused",
    "PaymentStatus",
    "PeriodSum",
    "PriceAboveMax",
    "PriceQuote",
    "ReceiptFields",
    "RecordedCall",
    "RecordedPayment",
    "SalesReport",
    "SearchPage",
    "SignedReceipt",
    "Spending",
    "SpendingReport",
    "SpentAmount",
    "StateSum",
    "StoreUnusable",
    "TollwayClient",
    "TrialResponse",
    "ViewerList",
    "Wallet",
    "WebhookList",
    "WebhookSecret",
    "WebhookStatus",
    "create_key_file",
    "verify_receipt",
]

_MODULES = {
    "client": (
        "Allowance",
        "AsyncTollwayClient",
        "Spending",
        "SpentAmount",
        "TollwayClient",
    ),
    "errors": (
        "AnswerMalformed",
        "AnswerUnreadable",
        "BudgetExhausted",
        "CallerFailure",
        "CallHeld",
        "CannotPay",
        "FeeAboveMax",
        "FieldProblem",
        "GatewayProblem",
        "GatewayRefused",
        "GatewayUnreachable",
        "HeaderInvalid",
        "HttpNotAllowed",
        "NodeUnreachable",
        "NotPaid",
        "PaymentPending",
        "PaymentRefused",
        "PriceAboveMax",
        "StoreUnusable",
    ),
    "provider": (
        "Forwarded",
        "ForwardedRefused",
        "ForwardedVerifier",
    ),
    "quote": ("Cap",),
    "records": (
        "AgentDocument",
        "AssetSum",
        "BookViewer",
        "WebhookStatus",
        "WebhookSecret",
        "WebhookList",
        "DeliveryStatus",
        "DeliveryPage",
        "CallPage",
        "DescribedOperation",
        "FacetCounts",
        "GatewayNetwork",
        "GatewayStatus",
        "ListedApi",
        "ListingDetails",
        "ListingStats",
        "MeasuredQuality",
        "NetworkList",
        "NetworkStatus",
        "OfferedPayment",
        "OwnershipStatus",
        "PaymentPage",
        "PaymentStatus",
        "PeriodSum",
        "PriceQuote",
        "RecordedCall",
        "RecordedPayment",
        "ReceiptFields",
        "SalesReport",
        "SearchPage",
        "SignedReceipt",
        "SpendingReport",
        "StateSum",
        "TrialResponse",
        "ViewerList",
    ),
    "receipts": ("verify_receipt",),
    "responses": (
        "CallResponse",
        "PaymentInfo",
    ),
    "steps": (
        "PaymentProgress",
        "PaymentQuote",
    ),
    "transfer": ("Patience",),
    "wallet": (
        "KeyUnusable",
        "Wallet",
        "create_key_file",
    ),
}
"""Module -> the names that it exports here. A wallet alone is 0.1 s of imports, the HTTP client 0.3 s more."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports an exported name on its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"tollway.client.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
