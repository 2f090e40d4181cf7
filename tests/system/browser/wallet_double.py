"""A wallet for browser tests: an EIP-1193 provider announced by EIP-6963 from an init script, answered here with a key of the sandbox and its chain.

It fails a test on any method that pages may not use. It can be on another chain first, not know the chain, decline at a step, stay silent, lie about its chain, and change its account.
"""

import asyncio
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from eth_account import Account
from eth_account.messages import encode_defunct, encode_typed_data
from playwright.async_api import BrowserContext

from tollway.sandbox.chain import ChainDriver, FundedAccount

ALLOWED = frozenset(
    {
        "eth_requestAccounts",
        "eth_chainId",
        "wallet_switchEthereumChain",
        "wallet_addEthereumChain",
        "personal_sign",
        "eth_signTypedData_v4",
        "eth_sendTransaction",
        "eth_getTransactionReceipt",
        "eth_call",
    }
)
DECLINED, UNKNOWN_CHAIN = 4001, 4902

_PROVIDER = """(() => {
  const names = %s;
  for (const name of names) {
    const listeners = {};
    const provider = {
      request: async ({ method, params }) => {
        const answer = JSON.parse(await window.__wallet(JSON.stringify({ name, method, params: params ?? [] })));
        if (answer.error) throw Object.assign(new Error(answer.error.message), { code: answer.error.code });
        return answer.result;
      },
      on: (event, listener) => { (listeners[event] ??= []).push(listener); },
      removeListener: () => {},
    };
    const detail = Object.freeze({ info: { uuid: "uuid-" + name, name, icon: "data:,", rdns: "test." + name }, provider });
    const announce = () => window.dispatchEvent(new CustomEvent("eip6963:announceProvider", { detail }));
    window.addEventListener("eip6963:requestProvider", announce);
    announce();
  }
})();"""


class WalletError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(kw_only=True)
class WalletDouble:
    """`chain_id`: where the wallet is. `known`: chains that it can switch to. `declines`, `silences`: methods. `loses`: methods that are done and never answered. `lies`: switching succeeds and changes nothing.
    `drops`: a transaction gets a hash and is not sent. `holds`: it gets its hash, and no node knows it before `release`, as with a private relay. `replaces`: it is sent under another hash than the page gets. `overspends`: it sends more of the token than it has, so that its transactions revert. `sent`: the hashes of its transactions.
    `accounts`: the first is in use; `next_account` replaces it after the first connection. `last_chain`: where it is after the second connection. `asked`: every request."""

    driver: ChainDriver
    accounts: list[FundedAccount]
    chain_id: int
    known: set[int] = field(default_factory=set)
    declines: set[str] = field(default_factory=set)
    silences: set[str] = field(default_factory=set)
    loses: set[str] = field(default_factory=set)
    lies: bool = False
    overspends: bool = False
    drops: bool = False
    holds: bool = False
    replaces: bool = False
    next_account: FundedAccount | None = None
    last_chain: int | None = None
    names: tuple[str, ...] = ("Test wallet",)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    async def install(self, context: BrowserContext) -> None:
        await context.expose_binding("__wallet", self._answer)
        await context.add_init_script(_PROVIDER % json.dumps(self.names))

    @property
    def counts(self) -> Counter[str]:
        return Counter(method for method, _ in self.asked)

    async def release(self) -> None:
        """Sends what it holds."""
        while self.held:
            await self.driver.rpc("eth_sendRawTransaction", self.held.pop(0))

    async def _answer(self, source: Any, raw: str) -> str:
        asked = json.loads(raw)
        method, params = asked["method"], asked["params"]
        self.asked.append((method, params))
        if method not in ALLOWED:
            self.wrong.append(method)
        try:
            if method in self.silences:
                await asyncio.Event().wait()
            if method in self.declines:
                raise WalletError(DECLINED, "User rejected the request.")
            result = await self._run(method, params)
            if method in self.loses:
                await asyncio.Event().wait()
            return json.dumps({"result": result})
        except WalletError as error:
            return json.dumps({"error": {"code": error.code, "message": str(error)}})

    async def _run(self, method: str, params: list[Any]) -> Any:
        account = self.accounts[0]
        match method:
            case "eth_requestAccounts":
                if self.next_account is not None:
                    self.accounts = [self.next_account]
                    self.next_account = None
                if self.last_chain is not None and self.counts[method] > 1:
                    self.chain_id = self.last_chain
                return [str(account.address)]
            case "eth_chainId":
                return hex(self.chain_id)
            case "wallet_switchEthereumChain":
                wanted = int(params[0]["chainId"], 16)
                if wanted not in self.known and wanted != self.chain_id:
                    raise WalletError(UNKNOWN_CHAIN, "Unrecognized chain ID.")
                self.chain_id = self.chain_id if self.lies else wanted
                return None
            case "wallet_addEthereumChain":
                self.known.add(int(params[0]["chainId"], 16))
                return None
            case "eth_signTypedData_v4":
                self._check_ready(params[0])
                message = encode_typed_data(full_message=json.loads(params[1]))
                return "0x" + bytes(Account.sign_message(message, account.key).signature).hex()
            case "personal_sign":
                self._check_ready(params[1])
                message = encode_defunct(hexstr=params[0])
                return "0x" + bytes(Account.sign_message(message, account.key).signature).hex()
            case "eth_sendTransaction":
                self._check_ready(params[0]["from"])
                return await self._send(account, params[0])
            case _:
                return await self.driver.rpc(method, *params)

    def _check_ready(self, address: str) -> None:
        """A wallet on another chain hangs without a word; here it is an error."""
        if self.chain_id != self.driver.chain_id:
            raise WalletError(-32603, "wrong chain")
        if address.lower() != str(self.accounts[0].address).lower():
            raise WalletError(4100, "no such account")

    async def _send(self, account: FundedAccount, transaction: dict[str, Any]) -> str:
        if int(transaction["chainId"], 16) != self.chain_id:
            raise WalletError(-32602, "the transaction is for another chain")
        data = transaction.get("data", "0x")
        nonce = await self.driver.rpc("eth_getTransactionCount", str(account.address), "pending")
        signed = Account.sign_transaction(
            {
                "to": transaction["to"],
                "value": int(transaction.get("value", "0x0"), 16),
                "data": data[:-64] + "f" * 64 if self.overspends else data,
                "gas": 200_000,
                "maxFeePerGas": 10**11,
                "maxPriorityFeePerGas": 10**9,
                "nonce": int(nonce, 16),
                "chainId": int(self.driver.chain_id),
            },
            account.key,
        )
        unsent = "0x" + hashlib.sha256(bytes(signed.raw_transaction)).hexdigest()
        if self.drops:
            return unsent
        raw = "0x" + bytes(signed.raw_transaction).hex()
        if self.holds:
            self.held.append(raw)
            self.sent.append("0x" + bytes(signed.hash).hex())
            return self.sent[-1]
        sent = await self.driver.rpc("eth_sendRawTransaction", raw)
        self.sent.append(str(sent))
        return unsent if self.replaces else str(sent)
