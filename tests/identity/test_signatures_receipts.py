"""The gateway's own signature: one secret gives one key, and the signature proves it."""

from eth_account import Account

from tollway.identity.signatures import ReceiptSigner, recover
from tollway.ids import Address, keccak256

DIGEST = keccak256(b"an offer")


def test_the_same_secret_makes_the_same_notary_and_another_makes_another() -> None:
    assert ReceiptSigner.derive(b"a" * 32).address == ReceiptSigner.derive(b"a" * 32).address
    assert ReceiptSigner.derive(b"a" * 32).address != ReceiptSigner.derive(b"b" * 32).address


def test_a_signature_names_its_notary() -> None:
    receipt_signer = ReceiptSigner.derive(b"a" * 32)
    signature = receipt_signer.sign(DIGEST)
    assert len(signature) == 65
    assert signature[64] in (27, 28)
    assert recover(DIGEST, signature) == receipt_signer.address
    assert Address.parse(Account._recover_hash(DIGEST, signature=signature)) == receipt_signer.address


def test_the_key_is_not_the_secret_and_never_shows() -> None:
    receipt_signer = ReceiptSigner.derive(b"a" * 32)
    assert str(receipt_signer.address) in repr(receipt_signer)
    assert (b"a" * 32).hex() not in repr(receipt_signer)
    assert Account.from_key(b"a" * 32).address != str(receipt_signer.address)
