"""`tollway receipt verify` and `tollway history CALL --receipt`: saving a receipt, and verifying it without a network."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.kit.receipts import CALL_RECEIPT, DID_DOCUMENT, SIGNER, signed_receipt
from tests.kit.threaded_server import serve_in_thread
from tollway.cli.receipt import format_amount, format_second
from tollway.identity.did_document import describe_signers, key_id
from tollway.ids import Address
from tollway.payments.call_receipt import sign_call_receipt


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "receipt.json").write_text(json.dumps(signed_receipt()))
    (tmp_path / "did.json").write_text(json.dumps(DID_DOCUMENT))
    return tmp_path


@pytest.fixture
def verify(run, folder):
    def go(*words, receipt=None, keys=DID_DOCUMENT, code=0, **options):
        if receipt is not None:
            (folder / "receipt.json").write_text(receipt if isinstance(receipt, str) else json.dumps(receipt))
        (folder / "did.json").write_text(json.dumps(keys))
        words = words or ("--keys", str(folder / "did.json"))
        result = run("receipt", "verify", str(folder / "receipt.json"), *words, **options)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout or result.stderr)

    return go


def test_a_saved_receipt_is_verified_without_a_network(verify):
    told = verify()
    assert (told["valid"], told["signer"], told["mismatches"]) == (True, str(SIGNER.address), [])
    assert told["keys"] == {"authority": "127.0.0.1:8402", "fetchedFrom": None}
    assert told["notSigned"] == ["kid"]
    assert told["receipt"] == CALL_RECEIPT
    proved, not_proved = told["says"]
    assert "http://127.0.0.1:8402 signed this statement about its books" in proved
    assert "Not proved: that money moved on a chain" in not_proved


def test_each_mismatch_is_named_and_the_exit_code_is_1(verify):
    receipt = signed_receipt()
    receipt["payload"]["amount"] = "1"
    told = verify(receipt=receipt, code=1)
    assert (told["valid"], told["says"]) == (False, [])
    assert [(one["code"], one["field"]) for one in told["mismatches"]] == [("changed", "payload")]


def test_a_member_that_stands_twice_is_not_valid(verify):
    text = json.dumps(signed_receipt()).replace('"amount": ', '"amount": "99999", "amount": ', 1)
    assert "has the member amount twice" in verify(receipt=text, code=1)["error"]["detail"]


def test_a_key_that_the_document_does_not_list_is_named(verify):
    keys = describe_signers(authority="127.0.0.1:8402", signers=[Address(b"\x22" * 20)])
    told = verify(keys=keys, code=1)
    assert str(SIGNER.address) in told["mismatches"][0]["detail"]


def test_the_document_of_another_gateway_is_not_enough(verify):
    keys = describe_signers(authority="gw.example.com", signers=[SIGNER.address])
    (mismatch,) = verify(keys=keys, code=1)["mismatches"]
    assert mismatch["code"] == "other_gateway"


@pytest.mark.parametrize(
    ("receipt", "keys", "told"),
    [
        ("{", DID_DOCUMENT, "is no JSON"),
        ("[]", DID_DOCUMENT, "is no JSON object"),
        (" " * 65_537, DID_DOCUMENT, "larger than 65536 bytes"),
        (None, {"id": "did:web:gw.example.com"}, "did.json: the DID document has no list"),
    ],
)
def test_files_that_cannot_be_read_are_exit_code_2(verify, receipt, keys, told):
    assert told in verify(receipt=receipt, keys=keys, code=2)["error"]["detail"]


def test_a_file_that_is_not_there(run, folder):
    result = run("receipt", "verify", str(folder / "none.json"))
    assert result.exit_code == 2
    assert "none.json cannot be read" in json.loads(result.stderr)["error"]["detail"]


class Keys(BaseHTTPRequestHandler):
    def log_message(self, *_words):
        pass

    def do_GET(self):
        self.server.seen.append(self.path)
        status, content = self.server.answer
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    server.seen, server.authority = [], f"127.0.0.1:{server.server_address[1]}"
    document = describe_signers(authority=server.authority, signers=[SIGNER.address])
    server.answer = (200, json.dumps(document).encode())
    with serve_in_thread(server):
        yield server


def receipt_of(authority):
    gateway = f"http://{authority}"
    fields = {**CALL_RECEIPT, "gateway": gateway, "resourceUrl": f"{gateway}/api/v2/gateway/api_7k2m9q"}
    return sign_call_receipt(fields, kid=key_id(authority), has_x402=True, sign=SIGNER.sign)


def test_without_saved_keys_they_are_fetched_from_the_gateway_and_the_output_says_so(verify, site):
    told = verify("--json", receipt=receipt_of(site.authority))
    url = f"http://{site.authority}/.well-known/did.json"
    assert (told["valid"], told["keys"]["fetchedFrom"], site.seen) == (True, url, ["/.well-known/did.json"])
    assert any(line.startswith(f"The keys were fetched from {url}") for line in told["says"])


@pytest.mark.parametrize("status", [404, 302, 500])
def test_keys_that_cannot_be_fetched_are_exit_code_3(verify, site, status):
    site.answer = (status, b"")
    told = verify("--json", receipt=receipt_of(site.authority), code=3)
    assert told["error"]["detail"].endswith(
        f"responds with status {status}; give a saved one with --keys FILE"
    )


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("http://gw.example.com", "must be https, or on loopback"),
        ("ftp://gw.example.com", "must be https, or on loopback"),
        (7, "names no gateway"),
    ],
)
def test_keys_are_fetched_over_https_or_on_loopback_only(verify, named, told):
    receipt = signed_receipt()
    receipt["payload"]["gateway"] = named
    assert told in verify("--json", receipt=receipt, code=2)["error"]["detail"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "0.01 USDC (10000 base units)"),
        ({"amount": "0"}, "0 USDC (0 base units)"),
        ({"decimals": 10**9}, "10000 base units"),
        ({"amount": "1e9"}, "1e9 base units"),
        ({"amount": "٣"}, "٣ base units"),
    ],
)
def test_amounts(fields, told):
    assert format_amount({**CALL_RECEIPT, **fields}) == told


@pytest.mark.parametrize(
    ("second", "told"), [(0, ""), (1795356000, "2026-11-22 14:00:00 UTC"), (1 << 255, str(1 << 255))]
)
def test_times(second, told):
    assert format_second(second) == told


# ---- Saving.


def test_a_receipt_is_saved_and_verified(run, gateway, folder):
    gateway.receipt = signed_receipt()
    file = folder / "saved.json"
    result = run("history", "call_01", "--receipt", str(file))
    assert result.exit_code == 0, result.output
    assert gateway.seen[-1][:2] == ("GET", "/api/v2/history/call_01/receipt")
    assert json.loads(file.read_text()) == signed_receipt()
    verified = run("receipt", "verify", str(file), "--keys", str(folder / "did.json"))
    assert (verified.exit_code, json.loads(verified.stdout)["valid"]) == (0, True)


def test_a_file_is_never_replaced(run, gateway, folder):
    gateway.receipt = signed_receipt()
    before = (folder / "receipt.json").read_text()
    result = run("history", "call_01", "--receipt", str(folder / "receipt.json"))
    assert result.exit_code == 2
    assert "exists, and a receipt does not replace it" in json.loads(result.stderr)["error"]["detail"]
    assert (folder / "receipt.json").read_text() == before


def test_a_dash_prints_the_receipt(run, gateway):
    gateway.receipt = signed_receipt()
    assert json.loads(run("history", "call_01", "--receipt", "-").stdout) == signed_receipt()


@pytest.mark.parametrize("words", [(), ("resolve", "call_01", "--charge")])
def test_a_receipt_is_of_one_call(run, words):
    result = run("history", *words, "--receipt", "r.json")
    assert result.exit_code == 2
    assert "tollway history CALL --receipt FILE" in json.loads(result.stderr)["error"]["detail"]
