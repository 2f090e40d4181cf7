"""The client library: finds APIs, pays from a local wallet, and calls through a gateway. A name is imported when it is first used.

with TollwayClient("http://127.0.0.1:8402", wallet=Wallet.from_environment(os.environ),
                   rpc_urls={84532: "http://127.0.0.1:8545"}, max_price="0.05 USDC", budget="5 USDC") as client:
    answer = client.call(api_id, "/quote/ETH")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tollway.client.call_io import PaymentProgress as PaymentProgress
    from tollway.client.call_io import PaymentQuote as PaymentQuote
    from tollway.client.client import Allowance as Allowance
    from tollway.client.client import AsyncTollwayClient as AsyncTollwayClient
    from tollway.client.client import Spending as Spending
    from tollway.client.client import SpentAmount as SpentAmount
    from tollway.client.client import TollwayClient as TollwayClient
    from tollway.client.errors import BudgetExhausted as BudgetExhausted
    from tollway.client.errors import CallerFailure as CallerFailure
    from tollway.client.errors import CallHeld as CallHeld
    from tollway.client.errors import CannotPay as CannotPay
    from tollway.client.errors import FeeAboveMax as FeeAboveMax
    from tollway.client.errors import FieldProblem as FieldProblem
    from tollway.client.errors import GatewayProblem as GatewayProblem
    from tollway.client.errors import GatewayRefused as GatewayRefused
    from tollway.client.errors import GatewayResponseInvalid as GatewayResponseInvalid
    from tollway.client.errors import GatewayUnreachable as GatewayUnreachable
    from tollway.client.errors import HeaderInvalid as HeaderInvalid
    from tollway.client.errors import HttpNotAllowed as HttpNotAllowed
    from tollway.client.errors import IssuersUnusable as IssuersUnusable
    from tollway.client.errors import NodeUnreachable as NodeUnreachable
    from tollway.client.errors import NotPaid as NotPaid
    from tollway.client.errors import PaymentPending as PaymentPending
    from tollway.client.errors import PaymentRefused as PaymentRefused
    from tollway.client.errors import PolicyExceeded as PolicyExceeded
    from tollway.client.errors import PriceAboveMax as PriceAboveMax
    from tollway.client.errors import ResponseUnreadable as ResponseUnreadable
    from tollway.client.errors import StoreUnusable as StoreUnusable
    from tollway.client.provider import Forwarded as Forwarded
    from tollway.client.provider import ForwardedRefused as ForwardedRefused
    from tollway.client.provider import ForwardedVerifier as ForwardedVerifier
    from tollway.client.quote import Cap as Cap
    from tollway.client.receipts import verify_receipt as verify_receipt
    from tollway.client.records import AgentDocument as AgentDocument
    from tollway.client.records import AssetSum as AssetSum
    from tollway.client.records import BookViewer as BookViewer
    from tollway.client.records import CallPage as CallPage
    from tollway.client.records import ChannelSum as ChannelSum
    from tollway.client.records import DeliveryPage as DeliveryPage
    from tollway.client.records import DeliveryStatus as DeliveryStatus
    from tollway.client.records import DescribedOperation as DescribedOperation
    from tollway.client.records import FacetCounts as FacetCounts
    from tollway.client.records import GatewayNetwork as GatewayNetwork
    from tollway.client.records import GatewayStatus as GatewayStatus
    from tollway.client.records import LimitLeft as LimitLeft
    from tollway.client.records import ListedApi as ListedApi
    from tollway.client.records import ListingDetails as ListingDetails
    from tollway.client.records import ListingStats as ListingStats
    from tollway.client.records import MeasuredQuality as MeasuredQuality
    from tollway.client.records import NetworkList as NetworkList
    from tollway.client.records import NetworkStatus as NetworkStatus
    from tollway.client.records import OfferedPayment as OfferedPayment
    from tollway.client.records import OwnershipStatus as OwnershipStatus
    from tollway.client.records import PaymentPage as PaymentPage
    from tollway.client.records import PaymentStatus as PaymentStatus
    from tollway.client.records import PeriodSum as PeriodSum
    from tollway.client.records import PolicyTerms as PolicyTerms
    from tollway.client.records import PriceQuote as PriceQuote
    from tollway.client.records import ReceiptFields as ReceiptFields
    from tollway.client.records import RecordedCall as RecordedCall
    from tollway.client.records import RecordedPayment as RecordedPayment
    from tollway.client.records import SalesReport as SalesReport
    from tollway.client.records import SearchPage as SearchPage
    from tollway.client.records import SignedReceipt as SignedReceipt
    from tollway.client.records import SpendingReport as SpendingReport
    from tollway.client.records import SpentSums as SpentSums
    from tollway.client.records import StateSum as StateSum
    from tollway.client.records import TrialResponse as TrialResponse
    from tollway.client.records import UnitSum as UnitSum
    from tollway.client.records import ViewerList as ViewerList
    from tollway.client.records import WalletBudget as WalletBudget
    from tollway.client.records import WebhookGap as WebhookGap
    from tollway.client.records import WebhookList as WebhookList
    from tollway.client.records import WebhookSecret as WebhookSecret
    from tollway.client.records import WebhookStatus as WebhookStatus
    from tollway.client.responses import CallResponse as CallResponse
    from tollway.client.responses import PaymentInfo as PaymentInfo
    from tollway.client.transfer import Patience as Patience
    from tollway.client.wallet import KeyUnusable as KeyUnusable
    from tollway.client.wallet import Wallet as Wallet
    from tollway.client.wallet import create_key_file as create_key_file

_NAMES = {
    "call_io": "PaymentProgress PaymentQuote",
    "client": "Allowance AsyncTollwayClient Spending SpentAmount TollwayClient",
    "errors": (
        "BudgetExhausted CallHeld CallerFailure CannotPay FeeAboveMax FieldProblem GatewayProblem "
        "GatewayRefused GatewayResponseInvalid GatewayUnreachable HeaderInvalid HttpNotAllowed "
        "IssuersUnusable NodeUnreachable NotPaid PaymentPending PaymentRefused PolicyExceeded "
        "PriceAboveMax ResponseUnreadable StoreUnusable"
    ),
    "provider": "Forwarded ForwardedRefused ForwardedVerifier",
    "quote": "Cap",
    "receipts": "verify_receipt",
    "records": (
        "AgentDocument AssetSum BookViewer CallPage ChannelSum DeliveryPage DeliveryStatus "
        "DescribedOperation FacetCounts GatewayNetwork GatewayStatus LimitLeft ListedApi ListingDetails "
        "ListingStats MeasuredQuality NetworkList NetworkStatus OfferedPayment OwnershipStatus "
        "PaymentPage PaymentStatus PeriodSum PolicyTerms PriceQuote ReceiptFields RecordedCall "
        "RecordedPayment SalesReport SearchPage SignedReceipt SpendingReport SpentSums StateSum "
        "TrialResponse UnitSum ViewerList WalletBudget WebhookGap WebhookList WebhookSecret WebhookStatus"
    ),
    "responses": "CallResponse PaymentInfo",
    "transfer": "Patience",
    "wallet": "KeyUnusable Wallet create_key_file",
}
"""Module -> the names that it exports here. A wallet alone is 0.1 s of imports, the HTTP client 0.3 s more."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Imports an exported name on its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"tollway.client.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
