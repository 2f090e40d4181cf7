"""A chain node over HTTP for the transcripts: JSON-RPC in batches, blocks that follow the transcript's own clock.

A block every two seconds. Hashes are made of numbers, so they are the same in every run. It counts what it is asked, by
method. The token's balances, used authorisations and contract wallets are plain dictionaries that sections may set.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.system.transcripts.signing import (
    TOKEN,
    authorization_digest,
    checksum,
    keccak256,
    recover,
    token_separator,
    word,
)

FIRST_BLOCK = 1_000_000
BLOCK_S = 2
HELD_S = 120.0
TRANSFER = "0x" + keccak256(b"Transfer(address,address,uint256)").hex()
USED = "0x" + keccak256(b"AuthorizationUsed(address,bytes32)").hex()
RICH = 10**15
UNCOUNTED = frozenset({"eth_chainId"})
"""Stands in every batch, and a background task asks it now and then."""

_FIELDS = b"address,address,uint256,uint256,uint256,bytes32"
BALANCE_OF = keccak256(b"balanceOf(address)")[:4]
BY_VRS = keccak256(b"transferWithAuthorization(" + _FIELDS + b",uint8,bytes32,bytes32)")[:4]
BY_BYTES = keccak256(b"transferWithAuthorization(" + _FIELDS + b",bytes)")[:4]
STATE = keccak256(b"authorizationState(address,bytes32)")[:4]
SEPARATOR = keccak256(b"DOMAIN_SEPARATOR()")[:4]
IS_VALID = keccak256(b"isValidSignature(bytes32,bytes)")[:4]


class Fault(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Node:
    """`now_s` gives the transcript's time. Scenes change the public attributes between two exchanges."""

    def __init__(self, now_s: Callable[[], int], *, chain_id: int, token: str = TOKEN) -> None:
        self.chain_id = chain_id
        self.token = token
        self.asked: Counter[str] = Counter()
        self.final_depth = 500_000  # blocks: nothing becomes final by the way
        self.is_away = False  # answers every batch with HTTP 500
        self.is_mining = True  # False: what is sent stays in the pool
        self.refuses_sends: str | None = None  # the message with which a transaction is refused
        self.reverts = False  # a transaction that is sent is mined and fails
        self.holding: threading.Event | None = None  # a batch that asks `held_method` waits for it
        self.held_method = ""
        self.held = threading.Event()
        self.loses_held = False  # what is sent is taken and forgotten
        self.balances: dict[str, int] = {}
        self.wallets: dict[str, str] = {}  # contract wallet -> its owner's key
        self.random: set[str] = set()  # nonces of authorisations that differ from run to run
        self.on_random: Callable[[str, str], None] = lambda kind, value: None
        self.used: dict[tuple[str, str], str] = {}
        self._now_s = now_s
        self._start_s = now_s() - 1_000
        self._sent = 0
        self._salts: dict[int, int] = {}
        self._mined: dict[str, dict[str, Any]] = {}
        self._pool: dict[str, dict[str, Any]] = {}
        self._nonces: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._answering = 0
        self._server = _serve(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take_counts(self) -> dict[str, int]:
        with self._lock:
            counts = {name: n for name, n in sorted(self.asked.items()) if name not in UNCOUNTED}
            self.asked.clear()
            return counts

    # ---- What sections do to the chain.

    @property
    def pooled(self) -> list[str]:
        return list(self._pool)

    @property
    def head(self) -> int:
        return FIRST_BLOCK + (self._now_s() - self._start_s) // BLOCK_S

    def pay(self, payer: str, to: str, units: int, **options: Any) -> str:
        """A token transfer, mined now; its hash."""
        return self.transact(payer, self.token, logs=[self.transfer_log(payer, to, units)], **options)

    def pay_native(self, payer: str, to: str, wei: int, **options: Any) -> str:
        return self.transact(payer, to, value=wei, **options)

    def transfer_log(self, payer: str, to: str, units: int, *, token: str | None = None) -> dict[str, Any]:
        topics = [TRANSFER, "0x" + word(payer).hex(), "0x" + word(to).hex()]
        return {"address": token or self.token, "topics": topics, "data": "0x" + word(units).hex()}

    def used_log(self, payer: str, nonce: str) -> dict[str, Any]:
        return {"address": self.token, "topics": [USED, "0x" + word(payer).hex(), nonce], "data": "0x"}

    def transact(
        self,
        sender: str,
        to: str,
        *,
        logs: list[dict[str, Any]] | None = None,
        value: int = 0,
        succeeds: bool = True,
        is_mined: bool = True,
        height: int | None = None,
        tx_hash: str | None = None,
    ) -> str:
        with self._lock:
            self._sent += 1
            tx_hash = tx_hash or "0x" + keccak256(b"tx %d %d" % (self.chain_id, self._sent)).hex()
            entry = {"from": sender, "to": to, "value": value, "logs": logs or [], "ok": succeeds}
            if is_mined:
                self._mined[tx_hash] = entry | {"height": self.head if height is None else height}
            else:
                self._pool[tx_hash] = entry
            return tx_hash

    def mine(self, tx_hash: str) -> None:
        with self._lock:
            entry = self._pool.pop(tx_hash)
            self._mined[tx_hash] = entry | {"height": self.head}
            self._nonces[entry["from"].lower()] += 1
            for log in entry["logs"]:
                if log["topics"][0] == USED:
                    self.used[checksum(bytes.fromhex(log["topics"][1][26:])), log["topics"][2]] = tx_hash

    def mine_all(self) -> None:
        for tx_hash in list(self._pool):
            self.mine(tx_hash)

    def reorganise(self, tx_hash: str) -> None:
        """That transaction goes back to the pool; its block and all after it get other hashes."""
        with self._lock:
            entry = self._mined.pop(tx_hash)
            self._salts[entry["height"]] = self._salts.get(entry["height"], 0) + 1
            self._pool[tx_hash] = {name: value for name, value in entry.items() if name != "height"}

    def hold(self, method: str) -> threading.Event:
        """The next batch that asks this waits until the returned event is set."""
        self.held_method, self.holding = method, threading.Event()
        self.held.clear()
        return self.holding

    # ---- Answers.

    def answer(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with self._lock:
            self._answering += 1
        try:
            return self._answer(batch)
        finally:
            with self._lock:
                self._answering -= 1

    @property
    def is_busy(self) -> bool:
        return self._answering > 0

    def _answer(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        holding = self.holding
        if holding is not None and any(one["method"] == self.held_method for one in batch):
            self.holding = None
            self.held.set()
            holding.wait(HELD_S)
        answers = []
        with self._lock:
            for one in batch:
                self.asked[one["method"]] += 1
                answer: dict[str, Any] = {"jsonrpc": "2.0", "id": one["id"]}
                try:
                    answer["result"] = getattr(self, "_" + one["method"])(*one["params"])
                except Fault as fault:
                    answer["error"] = {"code": fault.code, "message": str(fault)}
                except AttributeError:
                    answer["error"] = {"code": -32601, "message": "the method does not exist"}
                answers.append(answer)
        return answers

    def _block_hash(self, height: int) -> str:
        salt = sum(n for since, n in self._salts.items() if since <= height)
        return "0x" + keccak256(b"block %d %d %d" % (self.chain_id, height, salt)).hex()

    def _eth_chainId(self) -> str:
        return hex(self.chain_id)

    def _eth_blockNumber(self) -> str:
        return hex(self.head)

    def _eth_getBlockByNumber(self, tag: str, _full: bool) -> dict[str, Any] | None:
        heights = {"latest": self.head, "pending": self.head + 1, "finalized": self.head - self.final_depth}
        height = heights[tag] if tag in heights else int(tag, 16)
        if tag not in heights and height > self.head:
            return None
        return {
            "number": hex(height),
            "hash": self._block_hash(height),
            "timestamp": hex(self._start_s + (height - FIRST_BLOCK) * BLOCK_S),
            "baseFeePerGas": hex(10**7),
        }

    def _eth_getTransactionByHash(self, tx_hash: str) -> dict[str, Any] | None:
        entry = self._mined.get(tx_hash) or self._pool.get(tx_hash)
        if entry is None:
            return None
        known = {"hash": tx_hash, "from": entry["from"], "to": entry["to"], "value": hex(entry["value"])}
        height = entry.get("height")
        at = {"blockHash": None, "blockNumber": None}
        if height is not None:
            at = {"blockHash": self._block_hash(height), "blockNumber": hex(height)}
        return known | at

    def _eth_getTransactionReceipt(self, tx_hash: str) -> dict[str, Any] | None:
        entry = self._mined.get(tx_hash)
        if entry is None:
            return None
        at = {"blockHash": self._block_hash(entry["height"]), "blockNumber": hex(entry["height"])}
        return {
            **at,
            "transactionHash": tx_hash,
            "status": "0x1" if entry["ok"] else "0x0",
            "from": entry["from"],
            "to": entry["to"],
            "gasUsed": hex(80_000),
            "effectiveGasPrice": hex(10**8),
            "logs": [
                {**log, **at, "transactionHash": tx_hash, "removed": False, "logIndex": hex(number)}
                for number, log in enumerate(entry["logs"])
                if entry["ok"]
            ],
        }

    def _eth_getCode(self, address: str, _block: str) -> str:
        return "0x6001" if checksum(bytes.fromhex(address[2:])) in self.wallets else "0x"

    def _eth_getBalance(self, _address: str, _block: str) -> str:
        return hex(10**18)

    def _eth_getTransactionCount(self, address: str, _block: str) -> str:
        return hex(self._nonces[address.lower()])

    def _eth_gasPrice(self) -> str:
        return hex(10**8)

    def _eth_maxPriorityFeePerGas(self) -> str:
        return hex(10**6)

    def _eth_estimateGas(self, call: dict[str, str], *_: Any) -> str:
        self._eth_call(call)
        return hex(90_000)

    def _eth_call(self, call: dict[str, str], *_: Any) -> str:
        payload = bytes.fromhex(call["data"][2:])
        if "to" not in call:
            return "0x01"
        to, selector, rest = checksum(bytes.fromhex(call["to"][2:])), payload[:4], payload[4:]
        if selector == IS_VALID:
            return self._judge(to, rest)
        if to != self.token:
            raise Fault(3, "execution reverted")
        if selector == BALANCE_OF:
            return "0x" + word(self._balance(checksum(rest[12:32]))).hex()
        if selector == STATE:
            key = (checksum(rest[12:32]), "0x" + rest[32:64].hex())
            return "0x" + word(int(key in self.used)).hex()
        if selector == SEPARATOR:
            return "0x" + token_separator(self.chain_id, self.token).hex()
        if selector in (BY_VRS, BY_BYTES):
            self._check_authorization(payload)
            return "0x"
        raise Fault(3, "execution reverted")

    def _judge(self, wallet: str, rest: bytes) -> str:
        """ERC-1271 of a wallet that says yes to its owner's signature with one byte more."""
        owner = self.wallets.get(wallet)
        length = int.from_bytes(rest[64:96], "big")
        signature = rest[96 : 96 + length]
        if owner is None:
            return "0x"
        signer = recover(rest[:32], signature[:65])
        is_good = signer is not None and checksum(signer) == owner
        return "0x" + (IS_VALID.ljust(32, b"\0") if is_good else bytes(32)).hex()

    def _balance(self, address: str) -> int:
        return self.balances.get(address, RICH)

    def _check_authorization(self, payload: bytes) -> tuple[str, str, int, str]:
        rest = payload[4:]
        payer, to = checksum(rest[12:32]), checksum(rest[44:64])
        value, after, before = (int.from_bytes(rest[at : at + 32], "big") for at in (64, 96, 128))
        once = "0x" + rest[160:192].hex()
        time_s = self._start_s + (self.head - FIRST_BLOCK) * BLOCK_S
        fields = {"from": payer, "to": to, "value": str(value), "nonce": once}
        fields |= {"validAfter": str(after), "validBefore": str(before)}
        digest = authorization_digest(token_separator(self.chain_id, self.token), fields)
        if payload[:4] == BY_VRS:
            signer = recover(digest, rest[224:288] + rest[223:224])
            is_signed = signer is not None and checksum(signer) == payer
        else:
            length = int.from_bytes(rest[224:256], "big")
            signature = rest[256 : 256 + length]
            signer = recover(digest, signature[:65])
            is_signed = signer is not None and checksum(signer) == self.wallets.get(payer)
        for is_wrong, text in (
            (not after < time_s, "authorization is not yet valid"),
            (not time_s < before, "authorization is expired"),
            ((payer, once) in self.used, "authorization is used or canceled"),
            (not is_signed, "invalid signature"),
            (self._balance(payer) < value, "transfer amount exceeds balance"),
        ):
            if is_wrong:
                raise Fault(3, "execution reverted: " + text)
        return payer, to, value, once

    def use_authorization(self, payer: str, to: str, value: int, once: str, sender: str) -> str:
        """The authorised transfer is mined now, in a transaction of `sender`."""
        logs = [self.used_log(payer, once), self.transfer_log(payer, to, value)]
        tx_hash = self.transact(sender, self.token, logs=logs)
        self.used[payer, once] = tx_hash
        return tx_hash

    def _eth_getLogs(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for tx_hash in self._mined:
            receipt = self._eth_getTransactionReceipt(tx_hash)
            assert receipt is not None
            for log in receipt["logs"]:
                if len(log["topics"]) == len(question["topics"]) and all(
                    topic in ways for topic, ways in zip(log["topics"], question["topics"], strict=True)
                ):
                    found.append(log)
        return found

    def _eth_sendRawTransaction(self, raw: str) -> str:
        signed = bytes.fromhex(raw[2:])
        tx_hash = "0x" + keccak256(signed).hex()
        fields = decode_rlp(signed[1:])
        if "0x" + fields[7][4:][160:192].hex() in self.random:
            self.on_random("settlement", tx_hash[2:])
        if self.refuses_sends is not None:
            raise Fault(-32000, self.refuses_sends)
        if self.loses_held:
            return tx_hash
        if tx_hash in self._mined or tx_hash in self._pool:
            raise Fault(-32000, "already known")
        unsigned = keccak256(b"\x02" + encode_rlp(fields[:9]))
        signature = fields[10].rjust(32, b"\0") + fields[11].rjust(32, b"\0")
        signer = recover(unsigned, signature + bytes([27 + int.from_bytes(fields[9], "big")]))
        assert signer is not None
        sender, payload = checksum(signer), fields[7]
        if self.is_mining:
            self._nonces[sender.lower()] += 1
        logs: list[dict[str, Any]] = []
        succeeds = not self.reverts
        if succeeds:
            try:
                payer, to, value, once = self._check_authorization(payload)
            except Fault:
                succeeds = False
            else:
                logs = [self.used_log(payer, once), self.transfer_log(payer, to, value)]
                if self.is_mining:
                    self.used[payer, once] = tx_hash
        self.transact(
            sender, self.token, logs=logs, succeeds=succeeds, is_mined=self.is_mining, tx_hash=tx_hash
        )
        return tx_hash


def decode_rlp(raw: bytes) -> Any:
    return _decode(raw, 0)[0]


def _decode(raw: bytes, at: int) -> tuple[Any, int]:
    first = raw[at]
    if first < 0x80:
        return raw[at : at + 1], at + 1
    is_list, short = first >= 0xC0, first - (0xC0 if first >= 0xC0 else 0x80)
    start = at + 1
    if short > 55:
        size, start = short - 55, at + 1 + short - 55
        short = int.from_bytes(raw[at + 1 : at + 1 + size], "big")
    end = start + short
    if not is_list:
        return raw[start:end], end
    items = []
    while start < end:
        item, start = _decode(raw, start)
        items.append(item)
    return items, end


def encode_rlp(item: Any) -> bytes:
    if isinstance(item, list):
        body = b"".join(encode_rlp(one) for one in item)
        return _head(len(body), 0xC0) + body
    if len(item) == 1 and item[0] < 0x80:
        return bytes(item)
    return _head(len(item), 0x80) + item


def _head(length: int, base: int) -> bytes:
    if length <= 55:
        return bytes([base + length])
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([base + 55 + len(size)]) + size


def _serve(node: Node) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if node.is_away:
                node.asked["(away)"] += 1
                self.send_response_only(500)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            answer = json.dumps(node.answer(json.loads(body))).encode()
            self.send_response_only(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    return start_server(Handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    disable_nagle_algorithm = True

    def handle_error(self, *_: object) -> None:
        """A gateway that was killed breaks its connections."""


def start_server(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
