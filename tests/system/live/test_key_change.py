"""The secret key changes while two gateways on one PostgreSQL serve: no caller gets a second 402, no secret is lost,
and every signature can be verified at either gateway with any of its keys."""

import contextlib
import itertools
import os
from dataclasses import dataclass, field, replace
from typing import Any

import coincurve
import pytest

from tests.kit.authorization_payer import MPP, RECEIPTS, V2, AuthorizationPayer, Header
from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.payer import decode_header
from tests.kit.signed_calls import QUICK
from tollway.client.provider import ForwardedVerifier
from tollway.ids import Address, keccak256
from tollway.payments.call_receipt import x402_receipt_digest
from tollway.payments.offer_receipt import offer_digest
from tollway.registry.catalog import Revised
from tollway.registry.listing import UpstreamAuth
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.engine.database import connect_database
from tollway.storage.engine.encryption import Sealer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]

OLD, NEW = (sign * 2 + "00112233445566778899aabbccddee" * 2 for sign in ("1a", "2b"))
PUBLIC_URL = "http://127.0.0.1:1"
"""Nobody is there: both gateways are asked where they listen."""
AUTH = UpstreamAuth(location="header", name="X-Key", value="hush-hush")
_PATHS = (f"/echo/changed-{number}" for number in itertools.count(1))


@dataclass
class Harness:
    """Two gateways on one database, a listing with a secret, and signatures from before the change."""

    cluster: Any
    stack: contextlib.AsyncExitStack
    database_url: str
    gas_key: str
    gateways: list[Any] = field(default_factory=list)
    api_id: str = ""
    shopper: Any = None
    keyed: list[Header] = field(default_factory=list)
    keyed_body: bytes = b""
    challenged: list[tuple[AuthorizationPayer, str, Header]] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    directories: list[bytes] = field(default_factory=list)

    async def start(self, *keys: str) -> Any:
        return await self.stack.enter_async_context(
            self.cluster.gateway(
                database_url=self.database_url,
                public_url=PUBLIC_URL,
                settings={
                    **QUICK,
                    "TOLLWAY_GAS_KEYS_SANDBOX": self.gas_key,
                    "TOLLWAY_SECRET_KEY": "\n".join(keys),
                },
            )
        )

    async def change(self, position: int, *keys: str) -> None:
        """A rolling restart of one gateway."""
        assert await self.gateways[position].stop() == 0
        self.gateways[position] = await self.start(*keys)
        await self.check()

    async def open(self, *keys: str) -> None:
        self.gateways = [await self.start(*keys), await self.start(*keys)]
        provider, self.shopper = await self.cluster.wallets(2)
        self.api_id = await self.cluster.publish(self.gateways[0], provider)
        await self._set_secret(keys[0])
        tx_hash = await self.cluster.send_tokens(self.shopper, provider.address, PRICE_UNITS)
        self.keyed = [*plain(self.shopper, tx_hash), ("Idempotency-Key", "of-before")]
        reply = await self.cluster.call(self.gateways[0], self.api_id, "/echo/keyed", headers=self.keyed)
        assert reply.status == 200, reply.body
        self.keyed_body = reply.body
        await self.check()

    async def _set_secret(self, key: str) -> None:
        """Writes the secret to the database: the sample provider has no https, which a listing with a secret needs."""
        database = connect_database(self.database_url)
        await database.open()
        sealer = Sealer(bytes.fromhex(key), entropy=os.urandom)
        catalog = CatalogStore(database, sealer=sealer, now_ms=lambda: 1)
        entry = await catalog.find(self.api_id)  # type: ignore[arg-type]  # an id
        assert entry is not None
        changed = replace(entry.listing, upstream_auth=AUTH)
        assert isinstance(await catalog.revise(changed, expected_revision=entry.listing.revision), Revised)
        await database.close()

    async def check(self) -> None:
        """Checks everything that callers may expect of either gateway, with signatures from now and from before."""
        self.directories = [await self._read_directory(gateway) for gateway in self.gateways]
        for payer, path, header in self.challenged:
            assert (await payer.call(path, [header])).status == 200, "a challenge of before is good"
            self._check_forwarded(path)
        for gateway in self.gateways:
            reply = await self.cluster.call(gateway, self.api_id, "/echo/keyed", headers=self.keyed)
            assert (reply.status, reply.body) == (200, self.keyed_body)
            assert reply.headers["Idempotency-Replayed"] == "true"
        assert self.cluster.provider.count("/echo/keyed", method="GET") == 1
        published = [await self._read_signers(gateway) for gateway in self.gateways]
        for asked, paid in (self.gateways, reversed(self.gateways)):
            await self._trade(asked, paid, published)
        self.challenged = [await self._take_challenge(gateway) for gateway in self.gateways]
        for receipt in self.receipts:
            signer = signer_of(x402_receipt_digest(receipt["payload"]), receipt["signature"])
            assert all(signer in signers for signers in published)

    async def _trade(self, asked: Any, paid: Any, published: list[set[Address]]) -> None:
        """Pays the 402 of one gateway at the other, in both dialects."""
        payer = AuthorizationPayer(
            cluster=self.cluster, gateway=asked, api_id=self.api_id, signer=self.shopper
        )
        for dialect in (MPP, V2):
            path = next(_PATHS)
            quote = await payer.quote(path)
            for offer in quote.required["extensions"]["offer-receipt"]["info"]["offers"]:
                signer = signer_of(offer_digest(offer["payload"]), offer["signature"])
                assert all(signer in signers for signers in published)
            reply = await replace(payer, gateway=paid).call(path, [payer.show(quote, dialect)])
            assert reply.status == 200, reply.body
            self._check_forwarded(path)
            if dialect == V2:
                told = decode_header(reply.headers[RECEIPTS[V2]].encode())
                self.receipts.append(told["extensions"]["offer-receipt"]["info"]["receipt"])

    async def _take_challenge(self, gateway: Any) -> tuple[AuthorizationPayer, str, Header]:
        """A challenge of this gateway, which is paid at the other one after the next change."""
        (other,) = (each for each in self.gateways if each is not gateway)
        payer = AuthorizationPayer(
            cluster=self.cluster, gateway=gateway, api_id=self.api_id, signer=self.shopper
        )
        path = next(_PATHS)
        header = payer.show(await payer.quote(path), MPP)
        return replace(payer, gateway=_Current(self, self.gateways.index(other))), path, header

    def _check_forwarded(self, path: str) -> None:
        """The call has the listing's secret, and the provider verifies it with the keys of either gateway."""
        (seen,) = (seen for seen in self.cluster.provider.seen if seen.path == path)
        assert (AUTH.name, AUTH.value) in seen.headers
        for directory in self.directories:
            verifier = ForwardedVerifier(
                PUBLIC_URL,
                endpoint=self.cluster.provider.base_url,
                api_ids=[self.api_id],
                fetch=lambda _, directory=directory: directory,  # type: ignore[misc]
            )
            forwarded = verifier.verify(seen.method, seen.target, seen.headers)
            assert forwarded.payer == str(self.shopper.address)

    async def _read_directory(self, gateway: Any) -> bytes:
        reply = await self.cluster.send(gateway.base_url + "/.well-known/http-message-signatures-directory")
        assert reply.status == 200
        return bytes(reply.body)

    async def _read_signers(self, gateway: Any) -> set[Address]:
        reply = await self.cluster.send(gateway.base_url + "/.well-known/did.json")
        accounts = [method["blockchainAccountId"] for method in reply.json["verificationMethod"]]
        return {Address.parse(account.rpartition(":")[2]) for account in accounts}


@dataclass(frozen=True)
class _Current:
    """The process that runs at this place now."""

    harness: Harness
    position: int

    @property
    def base_url(self) -> str:
        return str(self.harness.gateways[self.position].base_url)


def signer_of(digest: bytes, signature: str) -> Address:
    raw = bytes.fromhex(signature[2:])
    recoverable = raw[:64] + bytes((raw[64] - 27,))
    key = coincurve.PublicKey.from_signature_and_message(recoverable, digest, hasher=None)
    return Address(keccak256(key.format(compressed=False)[1:])[12:])


async def test_the_key_changes_while_two_gateways_serve(cluster: Any) -> None:
    async with contextlib.AsyncExitStack() as stack:
        gas = await cluster.wallet()
        harness = Harness(
            cluster=cluster, stack=stack, database_url=await cluster.make_postgres(), gas_key=gas.private_key
        )
        await harness.open(OLD)
        await harness.change(0, OLD, NEW)
        await harness.change(1, NEW, OLD)  # beside a gateway that still encrypts and signs with the old key
        await harness.change(0, NEW, OLD)

        code, told = await cluster.operate(harness.gateways[0], "secrets")
        assert (code, told["listingSecrets"]["older"]) == (0, 1)
        assert told["storedResponses"]["older"] >= 1
        code, told = await cluster.operate(harness.gateways[0], "secrets", "reencrypt")
        assert (code, told["listingSecrets"]) == (0, {"current": 1, "older": 0, "lost": 0, "lostIds": []})
        assert told["storedResponses"]["older"] == told["storedResponses"]["lost"] == 0
        await harness.check()

        harness.receipts.clear()  # without the old key its receipts cannot be verified
        await harness.change(1, NEW)
        code, told = await cluster.operate(harness.gateways[1], "doctor")
        (seals,) = [finding for finding in told["findings"] if finding["check"] == "secrets"]
        assert seals["level"] == "ok"
        assert (await cluster.audit(harness.gateways[0])).is_balanced
