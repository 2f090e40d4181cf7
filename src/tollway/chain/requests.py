"""The JSON-RPC requests to one node, each in as few batches as possible, and their responses as facts.

A response that is not clear raises `UnusableResponse`. `rpc` and `nodes` decide which nodes are read and how many must agree.
"""

from collections.abc import Mapping, Sequence

import aiohttp

from tollway.chain.channel_contract import (
    CHANNEL_TOPICS,
    SETTLEMENT_CONTRACT,
    encode_channel_state,
    parse_channel_state,
)
from tollway.chain.nodes import RpcCall, RpcNode
from tollway.chain.port import (
    AccountFacts,
    AuthorizationFacts,
    ChainFacts,
    ChainTip,
    ContractResult,
    EscrowFacts,
    EscrowState,
    Fees,
    NotMined,
    SendRefused,
)
from tollway.chain.responses import (
    BlockHeader,
    MinedTransaction,
    RpcFault,
    UnminedTransaction,
    UnusableResponse,
    assemble_facts,
    parse_base_fee,
    parse_block,
    parse_block_fields,
    parse_bytes,
    parse_call,
    parse_estimate,
    parse_final_tag,
    parse_log_subjects,
    parse_log_transactions,
    parse_mined,
    parse_next_time,
    parse_quantity,
    parse_tip,
    parse_word,
)
from tollway.chain.tokens import (
    AUTHORIZATION_CANCELED_TOPIC,
    AUTHORIZATION_USED_TOPIC,
    encode_authorization_state,
    encode_balance_of,
)
from tollway.ids import Address, ChainId, ChannelId, TxHash, keccak256

LOG_WINDOW_BLOCKS = 500
_LOG_WINDOWS_MAX = 40
_PAD = bytes(12)

Session = aiohttp.ClientSession


async def read_receipts(
    node: RpcNode, session: Session, chain_id: ChainId, tx_hashes: Sequence[TxHash]
) -> dict[TxHash, ChainFacts | NotMined]:
    """Takes two round trips at most. Leaves out a transaction with an unusable response; raises `UnusableResponse` when all are."""
    calls: list[RpcCall] = []
    for tx_hash in tx_hashes:
        calls.append(("eth_getTransactionReceipt", [str(tx_hash)]))
        calls.append(("eth_getTransactionByHash", [str(tx_hash)]))
    calls.append(("eth_getBlockByNumber", ["latest", False]))
    calls.append(("eth_getBlockByNumber", ["finalized", False]))
    *halves, latest, finalized = await node.send_batch(session, calls)
    head = _parse_head(node, latest)
    # 0 is safe: a payment is then not final and is watched for longer.
    finalized_number = parse_final_tag(finalized, head=head) or 0
    read = _parse_usable(tx_hashes, halves)
    blocks = {head.number: head}
    heights = {mined.block_number for mined in read.values() if not isinstance(mined, UnminedTransaction)} - {
        head.number
    }
    if heights:
        raws = await node.send_batch(
            session, [("eth_getBlockByNumber", [hex(height), False]) for height in heights]
        )
        blocks |= {height: parse_block(raw) for height, raw in zip(heights, raws, strict=True)}
    if any(block.number != height for height, block in blocks.items()):
        raise UnusableResponse("the node returned another block than requested")
    return {
        tx_hash: NotMined(chain_id=chain_id, is_pending=mined.is_pending)
        if isinstance(mined, UnminedTransaction)
        else assemble_facts(
            chain_id,
            tx_hash,
            mined,
            block=blocks[mined.block_number],
            head=head,
            finalized_number=finalized_number,
        )
        for tx_hash, mined in read.items()
    }


def _parse_usable(
    tx_hashes: Sequence[TxHash], halves: Sequence[object]
) -> dict[TxHash, MinedTransaction | UnminedTransaction]:
    read: dict[TxHash, MinedTransaction | UnminedTransaction] = {}
    faults: list[UnusableResponse] = []
    for tx_hash, receipt, transaction in zip(tx_hashes, halves[::2], halves[1::2], strict=True):
        try:
            read[tx_hash] = parse_mined(receipt, transaction, tx_hash=tx_hash)
        except UnusableResponse as exc:
            faults.append(exc)
    if faults and not read:
        raise faults[0]
    return read


async def read_tip(node: RpcNode, session: Session) -> ChainTip:
    latest, finalized = await node.send_batch(
        session,
        [("eth_getBlockByNumber", ["latest", False]), ("eth_getBlockByNumber", ["finalized", False])],
    )
    head = _parse_head(node, latest)
    return ChainTip(
        head_number=head.number, head_time=head.time, finalized_number=parse_final_tag(finalized, head=head)
    )


async def read_head(node: RpcNode, session: Session) -> None:
    """Reads the newest block of the node. It must have one: a node without a head serves no payment."""
    (latest,) = await node.send_batch(session, [("eth_getBlockByNumber", ["latest", False])])
    _parse_head(node, latest)


def _parse_head(node: RpcNode, latest: object) -> BlockHeader:
    head = parse_block(latest)
    node.note_head(head)
    return head


async def read_block_hashes(
    node: RpcNode, session: Session, numbers: Sequence[int]
) -> dict[int, bytes | None]:
    """The block hashes at these heights, in one round trip. None: the node's chain has no block at that height."""
    raws = await node.send_batch(
        session, [("eth_getBlockByNumber", [hex(number), False]) for number in numbers]
    )
    found: dict[int, bytes | None] = {}
    for number, raw in zip(numbers, raws, strict=True):
        block = None if raw is None else parse_block(raw)
        if block is not None and block.number != number:
            raise UnusableResponse("the node returned another block than requested")
        found[number] = None if block is None else block.block_hash
    return found


async def read_call(
    node: RpcNode, session: Session, *, to: Address | None, calldata: bytes, gas: int, bytes_max: int
) -> ContractResult:
    call: dict[str, object] = {"data": "0x" + calldata.hex(), "gas": hex(gas)}
    if to is not None:
        call["to"] = str(to)
    (result,) = await node.send_batch(session, [("eth_call", [call, "latest"])])
    reverted, payload = parse_call(result, bytes_max=bytes_max)
    return ContractResult(reverted=reverted, payload=payload)


async def read_code_size(node: RpcNode, session: Session, address: Address) -> int:
    (code,) = await node.send_batch(session, [("eth_getCode", [str(address), "latest"])])
    return len(parse_bytes(code))


async def read_authorization(
    node: RpcNode,
    session: Session,
    chain_id: ChainId,
    *,
    token: Address,
    payer: Address,
    nonce: bytes,
    sender: Address,
    to: Address,
    calldata: bytes,
    gas: int,
    valid_after: int,
    bytes_max: int,
) -> AuthorizationFacts:
    """Takes one round trip, or two where the head is older than `valid_after`. The gas estimate counts only with a simulation that passes."""
    transfer = {"from": str(sender), "to": str(to), "data": "0x" + calldata.hex(), "gas": hex(gas)}
    balance_of = {"to": str(token), "data": "0x" + encode_balance_of(payer).hex()}
    state = {"to": str(token), "data": "0x" + encode_authorization_state(payer=payer, nonce=nonce).hex()}
    latest, code, balance, used, simulation, estimate = await node.send_batch(
        session,
        [
            ("eth_getBlockByNumber", ["latest", False]),
            ("eth_getCode", [str(payer), "latest"]),
            ("eth_call", [balance_of, "latest"]),
            ("eth_call", [state, "latest"]),
            ("eth_call", [transfer, "latest"]),
            ("eth_estimateGas", [transfer]),
        ],
    )
    head_number, _, head_time = parse_block_fields(latest)
    reverted, payload = parse_call(simulation, bytes_max=bytes_max)
    if reverted and valid_after >= head_time:
        later = await _simulate_later(node, session, transfer, valid_after=valid_after)
        if later is not None:
            simulation, estimate = later
            reverted, payload = parse_call(simulation, bytes_max=bytes_max)
    payer_code = parse_bytes(code)
    return AuthorizationFacts(
        chain_id=chain_id,
        head_number=head_number,
        head_time=head_time,
        code_size=len(payer_code),
        code_hash=keccak256(payer_code) if payer_code else None,
        balance=parse_word(balance),
        is_used=parse_word(used) != 0,
        simulation=ContractResult(reverted=reverted, payload=payload) if reverted or payload else _PASSED,
        gas_estimate=None if reverted else parse_estimate(estimate),
    )


async def read_channel(
    node: RpcNode, session: Session, chain_id: ChainId, channel: ChannelId, *, confirmations: int
) -> EscrowFacts:
    """Takes two round trips. The state is read at the number of the head, not at `latest`: behind one URL may be several nodes, and one that
    lags must fail instead of returning an older state."""
    (latest,) = await node.send_batch(session, [("eth_getBlockByNumber", ["latest", False])])
    head = _parse_head(node, latest)
    call = {"to": str(SETTLEMENT_CONTRACT), "data": "0x" + encode_channel_state(channel).hex()}
    blocks = (head.number, max(0, head.number - confirmations + 1))
    results = await node.send_batch(session, [("eth_call", [call, hex(number)]) for number in blocks])
    state, confirmed = (_parse_channel(result) for result in results)
    return EscrowFacts(
        chain_id=chain_id,
        head_number=head.number,
        head_time=head.time,
        state=state,
        confirmed_balance=min(state.balance, confirmed.balance),
    )


def _parse_channel(result: object) -> EscrowState:
    try:
        return parse_channel_state(parse_bytes(result))
    except ValueError as exc:
        raise UnusableResponse("the settlement contract returned no state of a channel") from exc


_PASSED = ContractResult(reverted=False, payload=b"")


async def _simulate_later(
    node: RpcNode, session: Session, transfer: Mapping[str, object], *, valid_after: int
) -> tuple[object, object] | None:
    """The raw simulation and estimate at the first time that the token accepts the transfer. None when the node's next block is
    earlier than that time, or the node cannot simulate it.

    The state is that of the head; only the time differs. Of the block `pending` only the time is used: its state includes
    transactions that may never be mined. The gateway's clock is not used: after an outage some chains make the missing blocks with
    past times, and the transfer would revert in one of them.
    """
    moment = {"time": hex(valid_after + 1)}
    upcoming, simulation, estimate = await node.send_batch(
        session,
        [
            ("eth_getBlockByNumber", ["pending", False]),
            ("eth_call", [transfer, "latest", {}, moment]),
            ("eth_estimateGas", [transfer, "latest", {}, moment]),
        ],
    )
    next_time = parse_next_time(upcoming)
    if next_time is None or next_time <= valid_after:
        return None
    if isinstance(simulation, RpcFault) or isinstance(estimate, RpcFault):
        return None
    return simulation, estimate


async def read_authorization_ends(
    node: RpcNode, session: Session, *, token: Address, payer: Address, nonce: bytes, from_block: int
) -> list[TxHash]:
    """The transactions in which the token logged the use or cancellation of the authorisation, oldest first."""
    topics = ((AUTHORIZATION_USED_TOPIC, AUTHORIZATION_CANCELED_TOPIC), (_PAD + payer,), (nonce,))
    raws = await _read_logs(node, session, token, topics, from_block)
    return [tx_hash for raw in raws for tx_hash in parse_log_transactions(raw, address=token, topics=topics)]


async def read_changed_channels(
    node: RpcNode, session: Session, *, from_block: int, to_block: int
) -> set[ChannelId]:
    """The channels with an event in these blocks that changes what they cover. A node whose head is lower raises
    `UnusableResponse`: it would return no logs of the blocks that it lacks."""
    raws = await _read_logs(
        node, session, SETTLEMENT_CONTRACT, (CHANNEL_TOPICS,), from_block, to_block=to_block
    )
    subjects = [parse_log_subjects(raw, address=SETTLEMENT_CONTRACT, kinds=CHANNEL_TOPICS) for raw in raws]
    return {ChannelId(subject) for found in subjects for subject in found}


async def _read_logs(
    node: RpcNode,
    session: Session,
    address: Address,
    topics: Sequence[Sequence[bytes]],
    from_block: int,
    *,
    to_block: int | None = None,
) -> list[object]:
    """Reads all logs in one request, or in windows where the node refuses a range of that size. `to_block` None: up to the head."""
    topic_filter = [["0x" + topic.hex() for topic in allowed] for allowed in topics]

    def encode_query(first: str, last: str) -> RpcCall:
        query = {"address": str(address), "topics": topic_filter, "fromBlock": first, "toBlock": last}
        return ("eth_getLogs", [query])

    end = "latest" if to_block is None else hex(to_block)
    number, whole = await node.send_batch(
        session, [("eth_blockNumber", []), encode_query(hex(from_block), end)]
    )
    head = parse_quantity(number)
    if to_block is not None and head < to_block:
        raise UnusableResponse("the node lacks the blocks of the requested logs")
    if not isinstance(whole, RpcFault):
        return [whole]
    last = head if to_block is None else to_block
    starts = range(from_block, last + 1, LOG_WINDOW_BLOCKS)
    if not 1 < len(starts) <= _LOG_WINDOWS_MAX:
        raise UnusableResponse(f"the node returned error {whole.code} instead of logs")
    return await node.send_batch(
        session, [encode_query(hex(start), hex(min(start + LOG_WINDOW_BLOCKS - 1, last))) for start in starts]
    )


async def read_fees(node: RpcNode, session: Session, chain_id: ChainId) -> Fees:
    latest, tip, gas_price = await node.send_batch(
        session,
        [
            ("eth_getBlockByNumber", ["latest", False]),
            ("eth_maxPriorityFeePerGas", []),
            ("eth_gasPrice", []),
        ],
    )
    base_fee_wei = parse_base_fee(latest)
    tip_wei = parse_tip(tip, gas_price, base_fee_wei=base_fee_wei)
    return Fees(chain_id=chain_id, base_fee_wei=base_fee_wei, tip_wei=tip_wei)


async def read_account(node: RpcNode, session: Session, address: Address) -> AccountFacts:
    balance, count = await node.send_batch(
        session,
        [
            ("eth_getBalance", [str(address), "latest"]),
            ("eth_getTransactionCount", [str(address), "latest"]),
        ],
    )
    return AccountFacts(balance_wei=parse_quantity(balance), mined_nonce=parse_quantity(count))


async def submit_transaction(node: RpcNode, session: Session, raw: bytes) -> SendRefused | None:
    """Sends a transaction to one node. None: the node has it.

    After a refusal the node is checked for the transaction: the error "nonce too low" also means that it is mined already.
    """
    tx_hash = TxHash(keccak256(raw))
    (result,) = await node.send_batch(session, [("eth_sendRawTransaction", ["0x" + raw.hex()])], sends_max=1)
    if not isinstance(result, RpcFault):
        if parse_bytes(result, length=32) != tx_hash:
            raise UnusableResponse("the node returned the hash of another transaction than the one sent")
        return None
    if result.is_already_known:
        return None
    fault = result.send_fault
    if fault is None:
        raise UnusableResponse(f"the node returned error {result.code} for a transaction")
    (known,) = await node.send_batch(session, [("eth_getTransactionByHash", [str(tx_hash)])])
    if isinstance(known, RpcFault):
        raise UnusableResponse(f"the node returned error {known.code} instead of a transaction")
    if known is not None:
        return None
    return SendRefused(reason=f"{node.label}: error {result.code} ({fault})", fault=fault)
