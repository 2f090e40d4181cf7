"""Signatures of the wallet, verified with eth-account."""

import json

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_account.typed_transactions import TypedTransaction
from hexbytes import HexBytes

from tollway.client.call_io import UnsignedTransfer
from tollway.client.wallet import KeyUnusable, Wallet, create_key_file
from tollway.identity.http_signatures import SignedRequest, read_http_proofs
from tollway.identity.signatures import recover
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.proof import parse_proof

KEY = b"\x11" * 32
ACCOUNT = Account.from_key(KEY)
TX = TxHash(b"\x0a" * 32)


def test_transfer_is_recovered_as_eip1559_by_eth_account():
    wallet = Wallet.from_key(KEY)
    wish = UnsignedTransfer(
        chain_id=ChainId(84532),
        nonce=7,
        to=Address(b"\x22" * 20),
        value=5,
        calldata=b"\x01\x02",
        gas=60_000,
        fee_max_wei=100,
        tip_wei=3,
    )
    signed = wallet.sign_transfer(wish)
    assert Account.recover_transaction(signed.raw) == ACCOUNT.address
    assert keccak256(signed.raw) == signed.tx_hash
    fields = TypedTransaction.from_bytes(HexBytes(signed.raw)).as_dict()
    assert (fields["chainId"], fields["nonce"], fields["value"]) == (84532, 7, 5)
    assert bytes(fields["to"]) == wish.to
    assert (fields["maxFeePerGas"], fields["maxPriorityFeePerGas"], fields["gas"]) == (100, 3, 60_000)


def test_call_signature_is_the_typed_data_that_other_libraries_sign():
    headers = Wallet.from_key(KEY).sign_call(
        chain_id=ChainId(84532),
        tx_hash=TX,
        gateway="https://gw.example.com",
        api_id="api_1",
        method="POST",
        target=b"/quote/ETH?x=%20",
        body=b"{}",
        now_s=1_700_000_000,
        nonce=b"\x07" * 32,
    )
    proof = parse_proof([(name.lower().encode(), value.encode()) for name, value in headers])
    assert proof.tx_hash == TX
    assert proof.chain_id == 84532
    assert proof.binding.valid_until - 1_700_000_000 <= 300
    assert proof.binding.body_hash == keccak256(b"{}")
    typed = {
        "types": {
            "EIP712Domain": [
                {"name": "name", "type": "string"},
                {"name": "version", "type": "string"},
                {"name": "chainId", "type": "uint256"},
            ],
            "PaidCall": [
                {"name": "gateway", "type": "string"},
                {"name": "apiId", "type": "string"},
                {"name": "method", "type": "string"},
                {"name": "target", "type": "string"},
                {"name": "bodyHash", "type": "bytes32"},
                {"name": "transaction", "type": "bytes32"},
                {"name": "validUntil", "type": "uint256"},
                {"name": "nonce", "type": "bytes32"},
            ],
        },
        "primaryType": "PaidCall",
        "domain": {"name": "Tollway", "version": "1", "chainId": 84532},
        "message": {
            "gateway": "https://gw.example.com",
            "apiId": "api_1",
            "method": "POST",
            "target": "/quote/ETH?x=%20",
            "bodyHash": keccak256(b"{}"),
            "transaction": bytes(TX),
            "validUntil": proof.binding.valid_until,
            "nonce": b"\x07" * 32,
        },
    }
    message = encode_typed_data(full_message=typed)
    assert Account.recover_message(message, signature=proof.signature) == ACCOUNT.address


def test_signed_request_is_read_back_as_this_wallets():
    wallet = Wallet.from_key(KEY)
    origin = parse_origin("https://gw.example.com")
    request = SignedRequest(
        method="POST", raw_path=b"/api/v2/apis", query=b"dryRun=true", headers=[], body=b"{}"
    )
    headers = wallet.sign_request(
        request, origin=origin, chain_id=ChainId(8453), now_s=1_700_000_000, nonce="n1"
    )
    shown = SignedRequest(
        method="POST",
        raw_path=b"/api/v2/apis",
        query=b"dryRun=true",
        headers=[(name.lower().encode(), value.encode()) for name, value in headers],
        body=b"{}",
    )
    (proof,) = read_http_proofs(shown, origin=origin, limits=DEFAULT_LIMITS, now_ms=1_700_000_001_000)
    assert proof.address == wallet.address
    assert recover(proof.digest, proof.signature) == wallet.address


def test_key_never_shows():
    wallet = Wallet.from_key(KEY)
    assert KEY.hex() not in repr(wallet)
    with pytest.raises(KeyUnusable) as caught:
        Wallet.from_key("0x" + "11" * 31)
    assert "11" * 10 not in str(caught.value)
    assert caught.value.__cause__ is None


def test_new_key_file_is_private_and_never_overwritten(tmp_path):
    path = tmp_path / "keys" / "w.key"
    address = create_key_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Wallet.from_file(path).address == address
    with pytest.raises(FileExistsError):
        create_key_file(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_refuses_a_key_file_that_others_may_read(tmp_path, mode):
    path = tmp_path / "w.key"
    create_key_file(path)
    path.chmod(mode)
    with pytest.raises(KeyUnusable, match="chmod 600"):
        Wallet.from_file(path)


def test_opens_a_keystore_with_its_password(tmp_path):
    path = tmp_path / "keystore.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(Account.encrypt(KEY, "pw", kdf="pbkdf2", iterations=10)))
    assert Wallet.from_file(path, password="pw").address == Address.parse(ACCOUNT.address)
    for password in (None, "no"):
        with pytest.raises(KeyUnusable):
            Wallet.from_file(path, password=password)


def test_key_comes_from_the_environment(tmp_path):
    create_key_file(tmp_path / "k")
    assert Wallet.from_environment({"TOLLWAY_PRIVATE_KEY": KEY.hex()}).address == Address.parse(
        ACCOUNT.address
    )
    assert Wallet.from_environment({"TOLLWAY_KEY_FILE": str(tmp_path / "k")})
    with pytest.raises(KeyUnusable):
        Wallet.from_environment({})
