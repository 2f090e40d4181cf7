"""The signer behind the wallet of the demo's pages: a funded account of the sandbox, for the methods that a page of Tollway requests of any wallet.

It signs what the pages ask for and nothing else: an authorisation of the sandbox's token, a call of a gateway, what a budget needs, a message. It uses the key on no other chain than the sandbox.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from tollway.client import Wallet
from tollway.identity.signatures import eip191_digest, paid_call_digest
from tollway.ids import Address, ChainId, TxHash
from tollway.payments.eip3009 import transfer_digest
from tollway.sandbox.chain import ChainDriver, FundedAccount, Playground, RpcRefused
from tollway.spending_policy import POLICY_TYPES, typed_digest
from tollway.web.pages.demo_wallet import WalletRefused

MESSAGE_BYTES_MAX = 4_096
DATA_BYTES_MAX = 256
"""Of the call data of a transaction or of a read: a transfer has 68."""


class SandboxSigner:
    """Responds to EIP-1193 requests with the key of `account`. Raises `WalletRefused` for every request that no page of Tollway sends."""

    def __init__(self, driver: ChainDriver, playground: Playground, account: FundedAccount) -> None:
        self._driver = driver
        self._playground = playground
        self._key = account.key
        self._wallet = Wallet.from_key(account.key)
        self._methods: Mapping[str, Callable[..., Awaitable[object]]] = {
            "personal_sign": self._sign_message,
            "eth_signTypedData_v4": self._sign_typed,
            "eth_sendTransaction": self._send_transaction,
            "eth_getTransactionReceipt": self._read_receipt,
            "eth_call": self._call,
        }

    @property
    def address(self) -> Address:
        return self._wallet.address

    @property
    def chain_id(self) -> ChainId:
        return self._driver.chain_id

    async def respond(self, method: str, params: Sequence[object]) -> object:
        run = self._methods.get(method)
        if run is None:
            raise WalletRefused(f"The demo's wallet has no method {method[:64]}.")
        try:
            return await run(*params)
        except RpcRefused as refused:
            raise WalletRefused(f"The sandbox's chain refused the request: {refused}") from refused
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            raise WalletRefused(f"The demo's wallet cannot read the parameters of {method}.") from exc

    async def _sign_message(self, message: str, account: str) -> str:
        self._check_own(account)
        raw = _parse_hex(message)
        if len(raw) > MESSAGE_BYTES_MAX:
            raise WalletRefused(f"The demo's wallet signs messages of at most {MESSAGE_BYTES_MAX} bytes.")
        return self._sign(eip191_digest(raw))

    async def _sign_typed(self, account: str, text: str) -> str:
        self._check_own(account)
        typed = from_json(text)
        if typed["primaryType"] in POLICY_TYPES:
            return self._sign(self._hash_policy(typed["primaryType"], typed["domain"], typed["message"]))
        if typed["domain"]["chainId"] != self.chain_id:
            raise WalletRefused(f"The demo's wallet signs for chain {self.chain_id} alone.")
        match typed["primaryType"]:
            case "TransferWithAuthorization":
                return self._sign(self._hash_transfer(typed["domain"], typed["message"]))
            case "PaidCall":
                return self._sign(self._hash_call(typed["domain"], typed["message"]))
        raise WalletRefused("The demo's wallet signs payments, calls and budgets, and no other typed data.")

    def _hash_transfer(self, domain: Mapping[str, Any], message: Mapping[str, Any]) -> bytes:
        usdc = self._playground.usdc
        own = usdc.domain
        assert own is not None
        assert usdc.token is not None
        named = (domain["name"], domain["version"], Address.parse(domain["verifyingContract"]))
        if named != (own.name, own.version, usdc.token):
            raise WalletRefused("The demo's wallet signs transfers of the sandbox's token alone.")
        self._check_own(message["from"])
        return transfer_digest(
            own,
            chain_id=self.chain_id,
            token=usdc.token,
            payer=self.address,
            payee=Address.parse(message["to"]),
            base_units=int(message["value"]),
            valid_after=int(message["validAfter"]),
            valid_before=int(message["validBefore"]),
            nonce=_parse_word(message["nonce"]),
        )

    def _hash_policy(self, name: str, domain: Mapping[str, Any], message: Mapping[str, Any]) -> bytes:
        """Each type has its signer as its first field."""
        if domain != {"name": "Tollway", "version": "1"}:
            raise WalletRefused("The demo's wallet signs budgets of Tollway alone.")
        self._check_own(message[next(iter(POLICY_TYPES[name]))])
        return typed_digest(name, message)

    def _hash_call(self, domain: Mapping[str, Any], message: Mapping[str, Any]) -> bytes:
        if (domain["name"], domain["version"]) != ("Tollway", "1"):
            raise WalletRefused("The demo's wallet signs calls of Tollway alone.")
        return paid_call_digest(
            chain_id=self.chain_id,
            gateway=message["gateway"],
            api_id=message["apiId"],
            method=message["method"],
            target=message["target"].encode(),
            body_hash=_parse_word(message["bodyHash"]),
            transaction=TxHash.parse(message["transaction"]),
            valid_until=int(message["validUntil"]),
            nonce=_parse_word(message["nonce"]),
        )

    async def _send_transaction(self, given: Mapping[str, str]) -> str:
        """Sends a transfer of the token, or of the native currency. A revert shows in the receipt."""
        self._check_own(given["from"])
        if int(given["chainId"], 16) != self.chain_id:
            raise WalletRefused(f"The demo's wallet sends on chain {self.chain_id} alone.")
        to, payload = Address.parse(given["to"]), _parse_hex(given.get("data", "0x"))
        if len(payload) > DATA_BYTES_MAX or (payload and to != self._playground.token.address):
            raise WalletRefused("The demo's wallet sends transfers alone.")
        value = int(given["value"], 16)
        return str(await self._driver.send(key=self._key, to=to, value=value, payload=payload))

    async def _read_receipt(self, tx_hash: str) -> object:
        receipt = await self._driver.rpc("eth_getTransactionReceipt", str(TxHash.parse(tx_hash)))
        return None if receipt is None else {"status": receipt["status"]}

    async def _call(self, given: Mapping[str, str], block: str = "latest") -> object:
        to, payload = Address.parse(given["to"]), _parse_hex(given["data"])
        if to != self._playground.token.address or len(payload) > DATA_BYTES_MAX:
            raise WalletRefused("The demo's wallet reads the sandbox's token alone.")
        return await self._driver.rpc("eth_call", {"to": str(to), "data": "0x" + payload.hex()}, "latest")

    def _check_own(self, account: str) -> None:
        if Address.parse(account) != self.address:
            raise WalletRefused("The demo's wallet has another account.")

    def _sign(self, digest: bytes) -> str:
        return "0x" + self._wallet.sign_digest(digest).hex()


def _parse_hex(text: str) -> bytes:
    if not text.startswith("0x"):
        raise ValueError("no hex")
    return bytes.fromhex(text[2:])


def _parse_word(text: str) -> bytes:
    word = _parse_hex(text)
    if len(word) != 32:
        raise ValueError("no 32 bytes")
    return word
