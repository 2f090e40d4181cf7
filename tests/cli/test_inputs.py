"""Inputs of a command: read, or refused with a sentence. No key comes from an argument."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.kit.threaded_server import serve_in_thread
from tollway.cli.inputs import has_key, read_content, read_draft, read_headers, read_nodes, read_wallet
from tollway.client.errors import NodeUnreachable

KEY = "0x" + "11" * 32
ADDRESS = "0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A"


@contextmanager
def node(answer: bytes) -> Iterator[str]:
    """A chain node that says the same to every question."""

    class Node(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Node)
    with serve_in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}"


def test_a_node_without_a_chain_id_is_asked_for_it() -> None:
    assert read_nodes(("84532=https://node.test/?a=b",)) == {84532: "https://node.test/?a=b"}
    with node(b'{"result":"0x14a34"}') as url:
        assert read_nodes((url, "1=http://main.test")) == {84532: url, 1: "http://main.test"}


@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"[]", b"{}", b'{"result":null}', b'{"result":"zz"}', b'{"result":{}}', b"[" * 100_000],
    ids=("empty", "html", "list", "no result", "null", "no number", "object", "bomb"),
)
def test_a_node_without_a_valid_chain_id_is_named(answer: bytes) -> None:
    with node(answer) as url, pytest.raises(NodeUnreachable) as caught:
        read_nodes((f"{url}/key-of-the-node",))
    host = url.removeprefix("http://")
    assert re.match(f"{host} (answers HTTP 200 without|names no chain|does not answer)", caught.value.detail)
    assert "key-of-the-node" not in caught.value.detail


def test_a_dead_node_is_named_by_its_host() -> None:
    with pytest.raises(NodeUnreachable) as caught:
        read_nodes(("http://user:secret@127.0.0.1:1/key-of-the-node",))
    assert caught.value.detail == (
        "127.0.0.1:1 does not answer (ConnectError). Check the URL of your chain node (--rpc, TOLLWAY_RPC), or try again later."
    )


@pytest.mark.parametrize("url", ["no url", "ftp://node.test", "http://[::1"])
def test_a_text_that_names_no_node_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="takes URLs with http:// or https://"):
        read_nodes((url,))


@pytest.mark.parametrize(
    ("name", "content", "draft"),
    [
        ("a.json", b'{"name":"a"}', {"name": "a"}),
        ("a.toml", b'name = "a"', {"name": "a"}),
        ("a", b"{}", {}),
    ],
)
def test_a_draft_is_json_or_toml(tmp_path: Path, name: str, content: bytes, draft: object) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_draft(tmp_path / name) == draft
    assert read_draft(None) == {}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"name = 1", "neither JSON nor TOML"),
        ("a.toml", b"{}", "neither JSON nor TOML"),
        ("a.toml", b"\xff", "neither JSON nor TOML"),
        ("a.json", b"[]", "must contain one object"),
        ("a.json", b"[" * 100_000, "neither JSON nor TOML"),
        ("a.json", None, "cannot be read"),
    ],
)
def test_a_bad_draft_is_refused_in_plain_words(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_draft(tmp_path / name)


def test_a_body_comes_from_the_option_a_file_or_stdin(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\x00\xff")
    assert read_content(None) is None
    assert read_content("ä") == "ä".encode()
    assert read_content(f"@{tmp_path / 'body'}") == b"\x00\xff"
    with pytest.raises(ValueError, match="cannot be read"):
        read_content(f"@{tmp_path / 'nothing'}")


def test_headers_are_names_and_values() -> None:
    assert read_headers(["Accept: a/b", "X-Time:12:30 "]) == {"Accept": "a/b", "X-Time": "12:30"}
    for bad in ("Accept", ": value", " : value"):
        with pytest.raises(ValueError, match="Name: value"):
            read_headers([bad])


def by_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    path.write_text(KEY)
    path.chmod(0o600)
    return path


def by_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    monkeypatch.setenv("TOLLWAY_PRIVATE_KEY", KEY)
    return None


@pytest.mark.parametrize("give", [by_file, by_environment])
def test_a_key_comes_from_a_file_or_the_environment(
    give: Callable[[Path, pytest.MonkeyPatch], Path | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOLLWAY_PRIVATE_KEY", raising=False)
    monkeypatch.delenv("TOLLWAY_KEY_FILE", raising=False)
    assert not has_key(None)
    file = give(tmp_path / "key", monkeypatch)
    assert has_key(file)
    assert str(read_wallet(file).address) == ADDRESS
