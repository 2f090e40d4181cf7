"""The bound form of a paid GET without a body, as the client signs it (`client/wallet.py`), with faster curve
arithmetic."""

import secrets
import time
from dataclasses import dataclass

import coincurve

from tollway.identity.signatures import paid_call_digest
from tollway.ids import ChainId, TxHash, keccak256
from tollway.payments.proof import Binding, format_binding

VALID_S = 290
_NO_BODY = keccak256(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCalls:
    """Calls of one payment to one listing. `origin`: of the gateway's public URL."""

    chain_id: int
    origin: str
    api_id: str
    tx_hash: TxHash
    key: coincurve.PrivateKey

    def sign(self, target: str) -> tuple[tuple[str, str], ...]:
        """The headers of one more call, valid for five minutes, with their own nonce and signature. `target`: path
        and query after the listing."""
        binding = Binding(
            valid_until=int(time.time()) + VALID_S, nonce=secrets.token_bytes(32), body_hash=_NO_BODY
        )
        digest = paid_call_digest(
            chain_id=ChainId(self.chain_id),
            gateway=self.origin,
            api_id=self.api_id,
            method="GET",
            target=target.encode(),
            body_hash=_NO_BODY,
            transaction=self.tx_hash,
            valid_until=binding.valid_until,
            nonce=binding.nonce,
        )
        raw = self.key.sign_recoverable(digest, hasher=None)
        return (
            ("X-Payment-Tx", str(self.tx_hash)),
            ("X-Payment-Network", f"eip155:{self.chain_id}"),
            ("X-Signature", "0x" + (raw[:64] + bytes((27 + raw[64],))).hex()),
            ("X-Signature-Params", format_binding(binding)),
        )
