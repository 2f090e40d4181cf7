"""Authorised transfers and signed transactions as the chain in memory understands them: parsed from the same bytes that
a node gets, judged by the rules of EIP-3009. Signatures of authorisations are not checked here.
"""

from dataclasses import dataclass, field

from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from tollway.chain.tokens import TRANSFER_BY_BYTES_SELECTOR, TRANSFER_BY_VRS_SELECTOR
from tollway.identifiers import Address, TxHash, keccak256

_WORD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedTransfer:
    """What the calldata of `transferWithAuthorization` says; its signature left out."""

    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTransaction:
    """A signed EIP-1559 transaction on its way."""

    tx_hash: TxHash
    sender: Address
    nonce: int
    recipient: Address
    calldata: bytes = field(repr=False)
    gas: int
    max_fee_wei: int
    tip_wei: int


def parse_authorized_transfer(calldata: bytes) -> AuthorizedTransfer | None:
    """None for calldata of any other function."""
    if calldata[:4] not in (TRANSFER_BY_VRS_SELECTOR, TRANSFER_BY_BYTES_SELECTOR):
        return None
    words = [calldata[4 + _WORD * position :][:_WORD] for position in range(6)]
    return AuthorizedTransfer(
        payer=Address(words[0][12:]),
        payee=Address(words[1][12:]),
        base_units=int.from_bytes(words[2], "big"),
        valid_after=int.from_bytes(words[3], "big"),
        valid_before=int.from_bytes(words[4], "big"),
        nonce=words[5],
    )


def parse_sent(raw: bytes) -> SentTransaction:
    """Raises what eth_account raises on anything but a signed typed transaction."""
    fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
    return SentTransaction(
        tx_hash=TxHash(keccak256(raw)),
        sender=Address.parse(Account.recover_transaction(raw)),
        nonce=fields["nonce"],
        recipient=Address(bytes(fields["to"])),
        calldata=bytes(HexBytes(fields["data"])),
        gas=fields["gas"],
        max_fee_wei=fields["maxFeePerGas"],
        tip_wei=fields["maxPriorityFeePerGas"],
    )
