"""Parses responses of chain nodes, and counts the reports of several nodes about one transaction or block. Pure.

A field that is missing, malformed or contradicts another makes the whole response an `UnusableResponse`; nothing is repaired.
The texts of errors are the gateway's own: a node's text may hold its key.

A node may lag behind others, so "not mined" counts only when every reachable node reports it. Head and finality may differ
between honest nodes; the lowest value counts. Source: Ethereum execution APIs.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from pydantic_core import from_json

from tollway.chain.port import ChainFacts, Log, NotMined, SendFault
from tollway.ids import Address, ChainId, TxHash

R_contra = TypeVar("R_contra", contravariant=True)

_QUANTITY = re.compile(r"0x[0-9a-fA-F]{1,64}")
_HEX = re.compile(r"0x(?:[0-9a-fA-F]{2})*")
_BLOCK_NUMBER_MAX = 2**53

# Texts of nodes for a failure of the contract, not of the node: lower case, letters only.
_CONTRACT_FAULTS = (
    "revert",
    "outofgas",
    "oog",
    "evmerror",
    "invalidopcode",
    "badinstruction",
    "invalidjump",
    "stackunderflow",
    "stackoverflow",
    "stacklimit",
    "intrinsicgas",
    "gasrequiredexceeds",
    "returndataoutofbounds",
    "writeprotection",
    "codesizeexceeded",
    "vmexecutionerror",
)
_REVERT_CODE = 3

# Texts of nodes for a transaction that they refuse, in the same spelling.
_SEND_FAULTS = (
    (SendFault.NONCE_TOO_LOW, ("noncetoolow", "nonceistoolow", "oldnonce")),
    (
        SendFault.UNDERPRICED,
        ("underpriced", "feetoolow", "lessthanblockbasefee", "replacementnotallowed", "gaspricetoolow"),
    ),
    (SendFault.INSUFFICIENT_FUNDS, ("insufficientfunds", "exceedsaccountbalance")),
)
_ALREADY_KNOWN = ("alreadyknown", "alreadyimported")
_KNOWN_TRANSACTION = "knowntransaction"  # at the start only: "unknown transaction type" is another error
_REJECTION_CODES = (-32000, -32003, -32010)
"""The codes for a refused transaction. Other codes concern the node itself: limits, methods, internal errors."""


class UnusableResponse(Exception):
    """A node's response that cannot be used."""


class BatchRefused(UnusableResponse):
    """The node refused a batch as a whole. It may take a smaller one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcFault:
    code: int
    message: str
    payload: object

    @property
    def is_contract_fault(self) -> bool:
        return self.code == _REVERT_CODE or any(fault in self.letters for fault in _CONTRACT_FAULTS)

    @property
    def is_already_known(self) -> bool:
        return self.letters.startswith(_KNOWN_TRANSACTION) or any(
            text in self.letters for text in _ALREADY_KNOWN
        )

    @property
    def send_fault(self) -> SendFault | None:
        """Why the node refuses a transaction; None where the fault concerns the node itself."""
        for fault, texts in _SEND_FAULTS:
            if any(text in self.letters for text in texts):
                return fault
        return SendFault.OTHER if self.code in _REJECTION_CODES else None

    @property
    def letters(self) -> str:
        return "".join(c for c in self.message.lower() if c.isalpha())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    number: int
    block_hash: bytes
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedTransaction:
    """A receipt and its transaction, which agree with each other."""

    succeeded: bool
    sender: Address
    recipient: Address | None
    value: int
    logs: tuple[Log, ...]
    block_number: int
    block_hash: bytes
    fee_wei: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnminedTransaction:
    is_pending: bool


def parse_batch(body: bytes, ids: Sequence[int]) -> list[object]:
    """The results in the order of `ids`: a raw JSON value each, or an `RpcFault`. The responses may have any order. Raises `BatchRefused` for one
    error in place of all responses."""
    try:
        # Not json.loads: a library of the gateway raises Python's recursion limit, and then deep nesting kills the process.
        # This parser has its own limit (200).
        responses: Any = from_json(body, cache_strings="keys")
    except ValueError:
        raise UnusableResponse("the response is not JSON") from None
    if not isinstance(responses, list):
        responses = _read_single(responses, ids)
    results: dict[int, object] = {}
    for response in responses:
        if not isinstance(response, dict) or type(response.get("id")) is not int:
            raise UnusableResponse("a response of the batch has no id")
        if response["id"] in results or response["id"] not in ids:
            raise UnusableResponse("a response of the batch has a wrong id")
        results[response["id"]] = _parse_result(response)
    if len(results) != len(ids):
        raise UnusableResponse("a response of the batch is missing")
    return [results[number] for number in ids]


def _read_single(response: object, ids: Sequence[int]) -> list[object]:
    is_error = isinstance(response, dict) and response.get("error") is not None
    if len(ids) > 1 and is_error:
        fault = _parse_result(response)  # type: ignore[arg-type]  # an object, as checked
        code = fault.code if isinstance(fault, RpcFault) else 0
        raise BatchRefused(f"the node returned error {code} in place of a JSON-RPC batch")
    if len(ids) > 1 or not isinstance(response, dict):
        raise UnusableResponse("the response is not a JSON-RPC batch")
    return [response]


def _parse_result(response: dict[str, Any]) -> object:
    error = response.get("error")
    if error is None:
        if "result" not in response:
            raise UnusableResponse("a response has neither result nor error")
        return response["result"]
    if not isinstance(error, dict) or type(error.get("code")) is not int:
        raise UnusableResponse("an error of the batch is malformed")
    message = error.get("message")
    return RpcFault(
        code=error["code"],
        message=message if isinstance(message, str) else "",
        payload=error.get("data"),
    )


def parse_quantity(value: object) -> int:
    """`0x1f` -> 31, at most 256 bits."""
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        raise UnusableResponse(_describe(value, "a quantity"))
    return int(value, 16)


def parse_bytes(value: object, *, length: int | None = None) -> bytes:
    """`0x…` with an even number of digits, and exactly `length` bytes where that is given."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise UnusableResponse(_describe(value, "bytes"))
    parsed = bytes.fromhex(value[2:])
    if length is not None and len(parsed) != length:
        raise UnusableResponse(f"{length} bytes were expected")
    return parsed


def parse_block(value: object) -> BlockHeader:
    """A block's number, hash and time (unix seconds)."""
    number, block_hash, time = parse_block_fields(value)
    return BlockHeader(number=number, block_hash=block_hash, time=time)


def parse_block_fields(value: object) -> tuple[int, bytes, int]:
    """The same as a tuple."""
    fields = _parse_object(value, "a block")
    return (
        _parse_number(fields.get("number")),
        parse_bytes(fields.get("hash"), length=32),
        _parse_number(fields.get("timestamp")),
    )


def parse_next_time(value: object) -> int | None:
    """The time (unix seconds) of the node's next block (`pending`, without a hash); None where the node does not return it."""
    if value is None or isinstance(value, RpcFault):
        return None
    return _parse_number(_parse_object(value, "a block").get("timestamp"))


def parse_final_tag(value: object, *, head: BlockHeader) -> int | None:
    """The number of the latest final block; None where the node has none or does not support the tag."""
    if value is None or isinstance(value, RpcFault):
        return None
    number, _, _ = parse_block_fields(value)
    if number > head.number:
        raise UnusableResponse("the final block is above the head")
    return number


def parse_mined(
    receipt: object, transaction: object, *, tx_hash: TxHash
) -> MinedTransaction | UnminedTransaction:
    """Parses the receipt and the transaction of one hash. Raises `UnusableResponse` when they have another hash or contradict each other."""
    sent = None if transaction is None else _parse_object(transaction, "a transaction")
    if sent is not None and parse_bytes(sent.get("hash"), length=32) != tx_hash:
        raise UnusableResponse("the node returned another transaction than requested")
    if receipt is None:
        return UnminedTransaction(is_pending=sent is not None)
    fields = _parse_object(receipt, "a receipt")
    if parse_bytes(fields.get("transactionHash"), length=32) != tx_hash:
        raise UnusableResponse("the receipt belongs to another transaction")
    if sent is None:
        raise UnusableResponse("the node returned a receipt without its transaction")
    if sent.get("blockHash") is None:
        # The block arrived between the two reads of one batch, so it is not deep enough yet.
        return UnminedTransaction(is_pending=True)
    block_hash = parse_bytes(fields.get("blockHash"), length=32)
    mined = MinedTransaction(
        succeeded=_parse_status(fields.get("status")),
        sender=Address(parse_bytes(fields.get("from"), length=20)),
        recipient=_parse_recipient(fields),
        value=parse_quantity(sent.get("value")),
        logs=_parse_logs(fields.get("logs"), tx_hash=tx_hash, block_hash=block_hash),
        block_number=_parse_number(fields.get("blockNumber")),
        block_hash=block_hash,
        fee_wei=_parse_fee(fields),
    )
    _check_agreement(mined, sent)
    return mined


def _check_agreement(mined: MinedTransaction, sent: dict[str, Any]) -> None:
    if (
        parse_bytes(sent.get("blockHash"), length=32) != mined.block_hash
        or _parse_number(sent.get("blockNumber")) != mined.block_number
        or parse_bytes(sent.get("from"), length=20) != mined.sender
        or _parse_recipient(sent) != mined.recipient
    ):
        raise UnusableResponse("receipt and transaction contradict each other")


def parse_base_fee(block: object) -> int:
    """The base fee of the block in wei per gas. Raises `UnusableResponse` on a chain without EIP-1559."""
    return parse_quantity(_parse_object(block, "a block").get("baseFeePerGas"))


def parse_tip(tip: object, gas_price: object, *, base_fee_wei: int) -> int:
    """The node's tip above the base fee; where it does not support the method, its gas price less the base fee."""
    if isinstance(tip, RpcFault):
        return max(0, parse_quantity(gas_price) - base_fee_wei)
    return parse_quantity(tip)


def parse_word(value: object) -> int:
    """The result of a getter that returns one word. Raises `UnusableResponse` for a revert or another length."""
    return int.from_bytes(parse_bytes(value, length=32), "big")


def parse_estimate(value: object) -> int | None:
    """The gas estimate, or None where the contract fails. Raises `UnusableResponse` for a fault of the node."""
    if isinstance(value, RpcFault) and value.is_contract_fault:
        return None
    return parse_quantity(value)


def parse_log_transactions(
    value: object, *, address: Address, topics: Sequence[Sequence[bytes]]
) -> list[TxHash]:
    """The transactions of the logs of an `eth_getLogs` response, in their order. `topics`: the allowed values of each topic. Raises
    `UnusableResponse` for a log that was not requested."""
    found: list[TxHash] = []
    for entry, log_topics in _list_logs(value, address):
        _check_topics(log_topics, topics)
        if entry.get("removed") is not True:
            found.append(TxHash(parse_bytes(entry.get("transactionHash"), length=32)))
    return found


def parse_log_subjects(value: object, *, address: Address, kinds: Sequence[bytes]) -> set[bytes]:
    """The second topics of the logs of an `eth_getLogs` response. `kinds`: the allowed values of the first topic. Raises `UnusableResponse`
    for a log that was not requested."""
    found: set[bytes] = set()
    for entry, log_topics in _list_logs(value, address):
        _check_topics(log_topics[:1], [kinds])
        if len(log_topics) < 2:
            raise UnusableResponse("a log has no subject")
        if entry.get("removed") is not True:
            found.add(log_topics[1])
    return found


def _list_logs(value: object, address: Address) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    """Each log with its topics."""
    if not isinstance(value, list):
        raise UnusableResponse(_describe(value, "a list of logs"))
    for entry in value:
        fields = _parse_object(entry, "a log")
        topics = fields.get("topics")
        if parse_bytes(fields.get("address"), length=20) != address or not isinstance(topics, list):
            raise UnusableResponse(_NOT_REQUESTED)
        yield fields, [parse_bytes(topic, length=32) for topic in topics]


def _check_topics(found: Sequence[bytes], allowed: Sequence[Sequence[bytes]]) -> None:
    is_equal = len(found) == len(allowed)
    if not is_equal or any(topic not in values for topic, values in zip(found, allowed, strict=True)):
        raise UnusableResponse(_NOT_REQUESTED)


_NOT_REQUESTED = "the node returned a log that was not requested"


def parse_call(value: object, *, bytes_max: int) -> tuple[bool, bytes]:
    """(reverted, payload) of an `eth_call`, the payload cut at `bytes_max`. Raises `UnusableResponse` for a fault of the node."""
    if isinstance(value, RpcFault):
        if not value.is_contract_fault:
            raise UnusableResponse(f"the node returned error {value.code}")
        try:
            return True, _parse_cut(value.payload, bytes_max=bytes_max)
        except UnusableResponse:
            return True, b""  # many nodes return no revert data, or a text
    return False, _parse_cut(value, bytes_max=bytes_max)


def _parse_cut(value: object, *, bytes_max: int) -> bytes:
    return parse_bytes(value[: 2 + 2 * bytes_max] if isinstance(value, str) else value)


def _parse_logs(value: object, *, tx_hash: TxHash, block_hash: bytes) -> tuple[Log, ...]:
    if not isinstance(value, list):
        raise UnusableResponse("the receipt has no logs")
    return tuple(_parse_log(log, tx_hash=tx_hash, block_hash=block_hash) for log in value)


def _parse_log(value: object, *, tx_hash: TxHash, block_hash: bytes) -> Log:
    fields = _parse_object(value, "a log")
    topics, removed = fields.get("topics"), fields.get("removed")
    if not isinstance(topics, list) or len(topics) > 4 or not isinstance(removed, bool):
        raise UnusableResponse("a log is malformed")
    if (
        parse_bytes(fields.get("transactionHash"), length=32) != tx_hash
        or parse_bytes(fields.get("blockHash"), length=32) != block_hash
    ):
        raise UnusableResponse("a log belongs to another transaction or block")
    return Log(
        address=Address(parse_bytes(fields.get("address"), length=20)),
        topics=tuple(parse_bytes(topic, length=32) for topic in topics),
        payload=parse_bytes(fields.get("data")),
        removed=removed,
    )


def _parse_fee(fields: dict[str, Any]) -> int | None:
    """The cost of the gas, and of a rollup's data (`l1Fee`). None where the receipt lacks a field."""
    if fields.get("gasUsed") is None or fields.get("effectiveGasPrice") is None:
        return None
    l1_fee = fields.get("l1Fee")
    execution = parse_quantity(fields["gasUsed"]) * parse_quantity(fields["effectiveGasPrice"])
    return execution + (0 if l1_fee is None else parse_quantity(l1_fee))


def _parse_status(value: object) -> bool:
    status = parse_quantity(value)
    if status > 1:
        raise UnusableResponse("a receipt's status is 0 or 1")
    return status == 1


def _parse_recipient(fields: dict[str, Any]) -> Address | None:
    """`to` is null in a transaction that creates a contract; it is never absent."""
    if "to" not in fields:
        raise UnusableResponse("the recipient is missing")
    return None if fields["to"] is None else Address(parse_bytes(fields["to"], length=20))


def _parse_number(value: object) -> int:
    number = parse_quantity(value)
    if number > _BLOCK_NUMBER_MAX:
        raise UnusableResponse("a block number or time is too large")
    return number


def _parse_object(value: object, noun: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnusableResponse(_describe(value, noun))
    return value


def _describe(value: object, noun: str) -> str:
    if isinstance(value, RpcFault):
        return f"the node returned error {value.code} instead of {noun}"
    return f"{noun} is missing" if value is None else f"{noun} is malformed"


class Votes(Protocol[R_contra]):
    """Counts the reports of nodes about one subject."""

    def needs_another_node(self, *, is_deferred: bool) -> bool:
        """Whether one more node must be read. `is_deferred`: that node failed recently."""
        ...

    def add(self, report: R_contra, /) -> None: ...

    def is_contradicted_by(self, report: R_contra, /) -> bool:
        """Enough nodes agree, and this report says something else. A node that has not seen the subject yet contradicts nothing."""
        ...


@dataclass(slots=True, kw_only=True)
class TransactionVotes:
    """`needed`: how many nodes must return the same facts."""

    chain_id: ChainId
    needed: int
    reports: list[ChainFacts] = field(default_factory=list)
    unseen: list[NotMined] = field(default_factory=list)
    agreed: ChainFacts | None = None

    def needs_another_node(self, *, is_deferred: bool) -> bool:
        """Enough "not mined" reports do not wait for a node that failed recently."""
        if self.agreed is not None:
            return False
        return not (is_deferred and not self.reports and len(self.unseen) >= self.needed)

    def add(self, report: ChainFacts | NotMined) -> None:
        if isinstance(report, NotMined):
            self.unseen.append(report)
        else:
            self.reports.append(report)
            self.agreed = _find_agreement(self.reports, self.needed)

    def is_contradicted_by(self, report: ChainFacts | NotMined) -> bool:
        if self.agreed is None or isinstance(report, NotMined):
            return False
        return _list_agreed(report) != _list_agreed(self.agreed)

    @property
    def is_disputed(self) -> bool:
        return self.outcome is None and len(self.reports) + len(self.unseen) >= self.needed

    @property
    def outcome(self) -> ChainFacts | NotMined | None:
        """Returns None without an agreement."""
        if self.agreed is not None or self.reports or len(self.unseen) < self.needed:
            return self.agreed
        return NotMined(chain_id=self.chain_id, is_pending=any(report.is_pending for report in self.unseen))


@dataclass(slots=True, kw_only=True)
class BlockVotes:
    """A report is a hash, or no block at that height. `needed`: how many nodes must return the same hash."""

    needed: int
    reports: list[bytes] = field(default_factory=list)
    unseen: int = 0

    def needs_another_node(self, *, is_deferred: bool) -> bool:
        """Enough reports of no block do not wait for a node that failed recently."""
        if self.agreed is not None:
            return False
        return not (is_deferred and not self.reports and self.unseen >= self.needed)

    def add(self, block_hash: bytes | None) -> None:
        if block_hash is None:
            self.unseen += 1
        else:
            self.reports.append(block_hash)

    def is_contradicted_by(self, block_hash: bytes | None) -> bool:
        agreed = self.agreed
        return agreed is not None and block_hash not in (None, agreed)

    @property
    def agreed(self) -> bytes | None:
        return next((one for one in self.reports if self.reports.count(one) >= self.needed), None)

    @property
    def is_missing(self) -> bool:
        """Enough nodes responded, and all of them have no block at that height."""
        return not self.reports and self.unseen >= self.needed

    @property
    def is_disputed(self) -> bool:
        is_open = self.agreed is None and not self.is_missing
        return is_open and len(self.reports) + self.unseen >= self.needed


def _find_agreement(reports: list[ChainFacts], needed: int) -> ChainFacts | None:
    """The facts that the newest report shares with enough others, with their lowest head and lowest final block."""
    agreed = _list_agreed(reports[-1])
    equal = [facts for facts in reports if _list_agreed(facts) == agreed]
    if len(equal) < needed:
        return None
    slowest = min(equal, key=attrgetter("head_number"))
    finalized_number = min(facts.finalized_number for facts in equal)
    if slowest.finalized_number == finalized_number:
        return slowest
    return replace(slowest, finalized_number=finalized_number)


def _list_agreed(facts: ChainFacts) -> list[object]:
    """The values in which honest nodes do not differ. Not every node returns the fee."""
    return [getattr(facts, name) for name in _AGREED]


_AGREED = [
    one.name
    for one in fields(ChainFacts)
    if one.name not in ("head_number", "head_time", "finalized_number", "fee_wei")
]


def assemble_facts(
    chain_id: ChainId,
    tx_hash: TxHash,
    mined: MinedTransaction,
    *,
    block: BlockHeader,
    head: BlockHeader,
    finalized_number: int,
) -> ChainFacts:
    """The facts of one node. `block`: the block that the chain has at the transaction's height now."""
    # The block may have arrived after the head was read; then it is the head.
    if block.number > head.number:
        head = block
    return ChainFacts(
        chain_id=chain_id,
        tx_hash=tx_hash,
        succeeded=mined.succeeded,
        sender=mined.sender,
        recipient=mined.recipient,
        value=mined.value,
        logs=mined.logs,
        block_number=mined.block_number,
        block_hash=mined.block_hash,
        block_time=block.time,
        canonical_hash=block.block_hash,
        head_number=head.number,
        head_time=head.time,
        finalized_number=finalized_number,
        fee_wei=mined.fee_wei,
    )
