import json
from importlib.resources import files

import pytest
from eth_abi.abi import decode
from eth_account import Account
from eth_account.messages import encode_defunct, encode_typed_data
from hypothesis import given
from hypothesis import strategies as st

from tollway.chain.port import ContractResult
from tollway.errors import ChainUnavailable
from tollway.identity.signatures import (
    SignatureVerifier,
    eip191_digest,
    paid_call_digest,
    parse_signature,
    recover,
    transaction_digests,
)
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.limits import DEFAULT_LIMITS

N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
DIGEST = keccak256(b"what was signed")
CONTRACT = Address(b"\xc0" * 20)
MAGIC_WORD = bytes.fromhex("1626ba7e") + bytes(28)
MAGIC_TAIL = bytes.fromhex("6492" * 16)
CHAIN = ChainId(84532)
YES = ContractResult(reverted=False, payload=MAGIC_WORD)


def changed(signature: bytes, *, r: int | None = None, s: int | None = None, v: int | None = None) -> bytes:
    r_bytes = signature[:32] if r is None else r.to_bytes(32, "big")
    s_bytes = signature[32:64] if s is None else s.to_bytes(32, "big")
    return r_bytes + s_bytes + (signature[64:] if v is None else bytes([v]))


def high_s(signature: bytes) -> bytes:
    return changed(signature, s=N - int.from_bytes(signature[32:64], "big"), v=55 - signature[64])


class TestRecover:
    def test_finds_the_wallet_that_signed(self, wallet) -> None:
        signature = wallet.sign(DIGEST)
        assert recover(DIGEST, signature) == wallet.address
        assert recover(DIGEST, changed(signature, v=signature[64] - 27)) == wallet.address

    def test_agrees_with_eth_account(self) -> None:
        account = Account.from_key(b"\x33" * 32)
        signed = account.sign_message(encode_defunct(b"hello"))
        assert str(recover(eip191_digest(b"hello"), bytes(signed.signature))) == account.address

    @pytest.mark.parametrize("v", [2, 3, 26, 29, 31, 35, 36, 255])
    def test_refuses_every_other_v(self, wallet, v: int) -> None:
        assert recover(DIGEST, changed(wallet.sign(DIGEST), v=v)) is None

    def test_refuses_rubbish(self, wallet) -> None:
        good = wallet.sign(DIGEST)
        rubbish = {
            "high s": high_s(good),
            "zero r": changed(good, r=0),
            "zero s": changed(good, s=0),
            "r of the order": changed(good, r=N),
            "s of the order": changed(good, s=N),
            "short": good[:64],
            "long": good + b"\0",
            "empty": b"",
        }
        for name, signature in rubbish.items():
            assert recover(DIGEST, signature) is None, name
        assert recover(DIGEST[:31], good) is None

    @given(st.binary(min_size=65, max_size=65))
    def test_never_raises(self, signature: bytes) -> None:
        recover(DIGEST, signature)


class TestParse:
    def test_65_bytes_are_ecdsa_and_the_rest_is_for_contracts(self, wallet) -> None:
        good = wallet.sign(DIGEST)
        assert parse_signature("0x" + good.hex()) == good
        assert parse_signature("0X" + good.hex().upper()) == good
        for length in (1, 64, 66, 4096):
            assert parse_signature("0x" + "ab" * length) == b"\xab" * length

    def test_refuses(self, wallet) -> None:
        good = wallet.sign(DIGEST)
        wrong = {
            "nothing": "",
            "no bytes": "0x",
            "no prefix": good.hex(),
            "half a byte": "0x" + good.hex()[:-1],
            "not hex": "0x" + "zz" * 65,
            "a space": "0x" + "a b " * 32 + "ab",
            "full-width digits": "0x" + "１２" * 65,
            "too long": "0x" + "ab" * 4097,
            "high s": "0x" + high_s(good).hex(),
            "v 2": "0x" + changed(good, v=2).hex(),
            "v 35": "0x" + changed(good, v=35).hex(),
        }
        for name, text in wrong.items():
            with pytest.raises(ValueError, match=r"^must "):
                pytest.fail(f"{name} was taken: {parse_signature(text)}")

    def test_a_signature_is_not_shown(self, wallet) -> None:
        parsed = parse_signature("0x" + wallet.sign(DIGEST).hex())
        assert wallet.sign(DIGEST).hex()[:8] not in repr(parsed)
        assert "raw" not in repr(parsed)


class TestDigests:
    def test_the_plain_form_signs_the_text_or_the_raw_hash(self) -> None:
        tx_hash = TxHash.parse("0x" + "AB" * 32)
        text, raw = transaction_digests(tx_hash)
        account = Account.from_key(b"\x44" * 32)
        by_text = account.sign_message(encode_defunct(text="0x" + "ab" * 32))
        by_raw = account.sign_message(encode_defunct(hexstr="0x" + "ab" * 32))
        assert str(recover(text, bytes(by_text.signature))) == account.address
        assert str(recover(raw, bytes(by_raw.signature))) == account.address

    @given(
        chain_id=st.integers(0, 10**15),
        texts=st.tuples(*[st.text(max_size=40)] * 4),
        words=st.tuples(*[st.binary(min_size=32, max_size=32)] * 3),
        valid_until=st.integers(0, 2**64),
    )
    def test_the_bound_form_is_eip712(self, chain_id, texts, words, valid_until) -> None:
        gateway, api_id, method, target = texts
        body_hash, transaction, nonce = words
        fields = "string gateway,string apiId,string method,string target,bytes32 bodyHash,bytes32 transaction,uint256 validUntil,bytes32 nonce"
        types = [dict(zip(("type", "name"), one.split(" "), strict=True)) for one in fields.split(",")]
        values = (gateway, api_id, method, target, body_hash, transaction, valid_until, nonce)
        message = {one["name"]: value for one, value in zip(types, values, strict=True)}
        domain = {"name": "Tollway", "version": "1", "chainId": chain_id}
        signable = encode_typed_data(domain, {"PaidCall": types}, message)
        expected = keccak256(b"\x19\x01" + signable.header + signable.body)
        assert expected == paid_call_digest(
            chain_id=ChainId(chain_id),
            gateway=gateway,
            api_id=api_id,
            method=method,
            target=target.encode(),
            body_hash=body_hash,
            transaction=TxHash(transaction),
            valid_until=valid_until,
            nonce=nonce,
        )

    def test_the_bound_form_refuses_words_of_another_size(self) -> None:
        good = {
            "chain_id": CHAIN, "gateway": "", "api_id": "", "method": "", "target": b"",
            "body_hash": bytes(32), "transaction": TxHash(32), "valid_until": 1, "nonce": bytes(32),
        }  # fmt: skip
        wrong = [{"body_hash": b""}, {"nonce": bytes(31)}, {"transaction": TxHash(33)}, {"valid_until": -1}]
        paid_call_digest(**good)
        for change in wrong:
            with pytest.raises(ValueError):
                paid_call_digest(**{**good, **change})


@pytest.fixture
def verifier(chain) -> SignatureVerifier:
    return SignatureVerifier(chain, limits=DEFAULT_LIMITS)


class TestJudge:
    async def test_a_plain_wallet_needs_no_chain(self, verifier, chain, wallet) -> None:
        chain.answer = None
        signature = wallet.sign(DIGEST)
        assert await verifier.is_signed_by(wallet.address, DIGEST, signature, [CHAIN])
        assert await verifier.is_signed_for_authentication(wallet.address, DIGEST, signature, [])
        assert not verifier.is_chain_needed(wallet.address, DIGEST, signature, [CHAIN])
        assert chain.asked == []

    async def test_a_contract_is_called_with_limits_on_gas_bytes_and_time(self, verifier, chain) -> None:
        chain.answer = YES
        assert await verifier.is_signed_by(CONTRACT, DIGEST, b"anything", [CHAIN])
        (asked,) = chain.asked
        assert asked["calldata"][:4] == bytes.fromhex("1626ba7e")
        assert decode(["bytes32", "bytes"], asked["calldata"][4:]) == (DIGEST, b"anything")
        assert (asked["to"], asked["gas"]) == (CONTRACT, 200_000)
        assert (asked["bytes_max"], asked["deadline_s"]) == (4096, 2.0)

    @pytest.mark.parametrize(
        "answer",
        [
            ContractResult(reverted=True, payload=MAGIC_WORD),
            ContractResult(reverted=False, payload=b""),
            ContractResult(reverted=False, payload=MAGIC_WORD[:4]),
            ContractResult(reverted=False, payload=MAGIC_WORD[::-1]),
            ContractResult(reverted=False, payload=b"\xff" * 32),
            ContractResult(reverted=False, payload=bytes.fromhex("1626ba7e") + b"\x01" * 28),
            ContractResult(reverted=False, payload=MAGIC_WORD + bytes(1 << 20)),
            ContractResult(reverted=False, payload=bytes(31) + b"\x01"),
        ],
    )
    async def test_only_the_exact_magic_value_is_valid(self, verifier, chain, answer: ContractResult) -> None:
        chain.answer = answer
        assert not await verifier.is_signed_by(CONTRACT, DIGEST, b"anything", [CHAIN])

    async def test_a_delegated_account_may_sign_by_contract_or_by_key(self, verifier, chain, wallet) -> None:
        chain.answer = ContractResult(reverted=True, payload=b"")
        assert await verifier.is_signed_by(wallet.address, DIGEST, wallet.sign(DIGEST), [CHAIN])
        chain.answer = YES
        assert await verifier.is_signed_by(wallet.address, DIGEST, b"its contract reads this", [CHAIN])

    async def test_a_chain_that_is_away_is_no_no(self, verifier, chain) -> None:
        chain.answer = None
        with pytest.raises(ChainUnavailable):
            await verifier.is_signed_by(CONTRACT, DIGEST, b"anything", [CHAIN])

    async def test_one_willing_chain_is_enough(self, verifier, chain) -> None:
        away, here = ChainId(1), ChainId(2)

        async def call_contract(chain_id: ChainId, **_asked: object) -> ContractResult:
            if chain_id == away:
                raise ChainUnavailable
            return YES

        chain.chain_ids, chain.call_contract = (away, here), call_contract
        assert await verifier.is_signed_by(CONTRACT, DIGEST, b"anything", [away, here])

    async def test_a_chain_that_is_not_configured_does_not_count(self, verifier, chain) -> None:
        chain.answer = YES
        assert not await verifier.is_signed_by(CONTRACT, DIGEST, b"anything", [ChainId(1)])
        assert not verifier.is_chain_needed(CONTRACT, DIGEST, b"anything", [ChainId(1)])
        assert chain.asked == []

    async def test_a_signature_of_a_size_out_of_bounds_causes_no_call(self, verifier, chain) -> None:
        chain.answer = YES
        for signature in (b"", b"x" * 4097, b"x" * 4097 + MAGIC_TAIL):
            assert not await verifier.is_signed_for_authentication(CONTRACT, DIGEST, signature, [CHAIN])
        assert chain.asked == []

    async def test_a_wrapped_signature_goes_to_the_validator_for_visitors_only(self, verifier, chain) -> None:
        chain.answer = ContractResult(reverted=False, payload=b"\x01")
        wrapped = b"made of three parts" + MAGIC_TAIL
        assert await verifier.is_signed_for_authentication(CONTRACT, DIGEST, wrapped, [CHAIN])
        assert not await verifier.is_signed_by(CONTRACT, DIGEST, wrapped, [CHAIN])
        validator, wallet_itself = chain.asked
        artifact = json.loads((files("tollway.identity.contracts") / "SignatureValidator.json").read_text())
        question = validator["calldata"].removeprefix(bytes.fromhex(artifact["bytecode"][2:]))
        asked = decode(["address", "bytes32", "bytes"], question)
        assert asked == (str(CONTRACT).lower(), DIGEST, wrapped)
        assert (validator["to"], validator["gas"]) == (None, 3_000_000)
        assert wallet_itself["to"] == CONTRACT

    @pytest.mark.parametrize(
        "answer",
        [
            ContractResult(reverted=True, payload=b"\x01"),
            ContractResult(reverted=False, payload=b"\x00"),
            ContractResult(reverted=False, payload=b""),
            ContractResult(reverted=False, payload=MAGIC_WORD),
        ],
    )
    async def test_only_one_byte_of_the_validator_is_yes(self, verifier, chain, answer) -> None:
        chain.answer = answer
        assert not await verifier.is_signed_for_authentication(CONTRACT, DIGEST, b"x" + MAGIC_TAIL, [CHAIN])
