"""`tollway demo` in a process of its own, with real children, ended by real signals."""

import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.live

DEADLINE_S = 60.0
STEPS = (
    "1. The provider publishes an API",
    "2. The provider proves the ownership of the endpoint",
    "3. An agent that knows only the gateway's URL finds the API and reads how to call it",
    "4. The caller sends a request without a payment",
    "5. The caller pays the provider on the chain",
    "6. The caller sends the request with the proof of payment",
    "7. The caller sends the same proof again",
    "8. The caller pays another call with a signature (x402)",
    "9. The caller pays a completion by what it uses",
    "10. The caller pays ten calls by one deposit (an x402 payment channel)",
    "11. The gateway claims the channel for the provider",
    "12. The caller reads its history",
)
OUTCOMES = (
    r" 1 listed                 0\.01 USDC a request: api_[0-9a-z]{26}",
    r" 2 ownership verified     by a file at the endpoint's origin",
    r" 3 found                  by the search \"quotes\"; its agent document is read",
    r" 4 called without payment 402: the price is 0\.01 USDC, to 0x[0-9a-fA-F]{4}…[0-9a-fA-F]{4}",
    r" 5 paid                   0\.01 USDC to the provider, transaction 0x[0-9a-f]{4}…[0-9a-f]{4}",
    r" 6 served                 200: ETH [0-9.]+ USD; charged 0\.01 USDC",
    r" 7 refused                409 payment_already_used: it covered one call",
    r" 8 paid by x402           200; transaction 0x[0-9a-f]{4}…[0-9a-f]{4}, gas by the gateway",
    r" 9 paid by use            at most 0\.01: cost 0\.0025, 0\.0075 USDC came back",
    r"10 paid by a channel      10 calls: 0\.1 USDC of a deposit of 1 USDC",
    r"11 claimed                0\.1 USDC in 2 transactions: 2[34],[0-9]{3} gas a call",
    r"12 history                13 calls, 0\.1225 USDC",
)


class Demo:
    """A running demo in a process group of its own, whose temporary files all go below `folder`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.output = folder / "output.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from tollway.cli import main; main()", "demo", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    def wait(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def text(self) -> str:
        return self.output.read_text()

    def is_group_gone(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def end(self) -> None:
        """For a test that failed half-way: only the group that it started."""
        if not self.is_group_gone():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=DEADLINE_S)


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.end()


def test_tells_a_paid_call_in_one_line_for_each_step(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, "--once", "--port", "0")
    demos.append(demo)
    assert demo.wait() == 0, demo.text()
    title, *lines = [line for line in demo.text().splitlines() if line]
    assert title.startswith("Tollway demo")
    for line, outcome in zip(lines, OUTCOMES, strict=False):
        assert re.fullmatch(outcome, line)
        assert len(line) <= 80
    assert lines[len(OUTCOMES) :][0].startswith("Done: thirteen paid calls")
    assert len(lines) == len(OUTCOMES) + 1


def test_verbose_prints_every_request_of_a_paid_call_and_exits_0(tmp_path: Path, demos: list[Demo]) -> None:
    file = tmp_path / "sandbox.json"
    demo = Demo(tmp_path, "--once", "--verbose", "--port", "0", "--sandbox-file", str(file))
    demos.append(demo)
    assert demo.wait() == 0, demo.text()
    text = demo.text()
    positions = [text.find(step) for step in STEPS]
    assert -1 not in positions
    assert positions == sorted(positions)
    for shown in (
        "< 201 Created",
        "< 402 Payment Required",
        "< 200 OK",
        '"state": "verified"',
        "payment_already_used",
        "succeeded",
        "gas by the gateway",
    ):
        assert shown in text
    assert_is_sandbox(json.loads(file.read_text()))
    assert list(demo.temporary.iterdir()) == []
    assert demo.is_group_gone()


def test_stays_up_for_play_until_ctrl_c_and_leaves_nothing(tmp_path: Path, demos: list[Demo]) -> None:
    file = tmp_path / "sandbox.json"
    file.write_text("left over from an earlier run")
    demo = Demo(tmp_path, "--port", "0", "--sandbox-file", str(file))
    demos.append(demo)
    wait_ready(demo, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    sandbox = json.loads(file.read_text())
    assert_is_sandbox(sandbox)
    with httpx.Client(trust_env=False, timeout=10) as http:
        assert_is_furnished(http, sandbox)
        assert http.get(f"{sandbox['gatewayUrl']}/api/v2/apis/{sandbox['apiId']}").status_code == 200
        url, headers = copy_paid_call(demo)
        answer = http.get(url, headers=headers)
        assert (answer.status_code, answer.headers["tollway-payment-state"]) == (200, "charged")
        # A long response is under way when the demo ends.
        stream = url.replace("/quote/BTC", "/stream?count=1000")
        with http.stream("GET", stream, headers=headers) as response:
            assert response.status_code == 200
            demo.process.send_signal(signal.SIGINT)
            assert demo.wait() == 0, demo.text()
    assert "Stopped." in demo.text()
    assert demo.is_group_gone()
    assert list(demo.temporary.iterdir()) == []
    assert not file.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_make_demo_speaks_before_each_thing_that_takes_time() -> None:
    """`make -n` names the commands of a checkout without anything installed."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["make", "-n", "demo", "VENV=.no-venv", "STAMPS=.no-stamps"],
        cwd=root,
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    slow = re.compile(r"-m venv|-m pip|npm install|bin/tollway demo")
    commands = [line for line in done.stdout.splitlines() if re.search(r"echo|" + slow.pattern, line)]
    first = [line for line in commands if "exit 1" not in line]
    assert "echo" in first[0], first
    places = [number for number, line in enumerate(first) if slow.search(line)]
    spoken = [number for number, line in enumerate(first) if "echo" in line]
    for name in ("-m venv", "-m pip", "npm install"):
        place = next(number for number in places if name in first[number])
        assert any(number <= place for number in spoken), name


def test_every_printed_command_runs_in_another_terminal(tmp_path: Path, demos: list[Demo]) -> None:
    file = tmp_path / "sandbox.json"
    demo = Demo(tmp_path, "--port", "0", "--sandbox-file", str(file))
    demos.append(demo)
    wait_ready(demo, file)
    commands = [line.strip() for line in demo.text().splitlines() if line.startswith("   ")]
    pages = [
        line.split()[-1] for line in demo.text().splitlines() if "web page " in line or "contract " in line
    ]
    assert [httpx.get(page, trust_env=False).status_code for page in pages] == [200, 200]
    commands = [line for line in commands if re.match(r"export |env |curl |\S*(tollway|python)", line)]
    assert len(commands) == 7
    first_call, others = "\n".join(commands[:5]), commands[5:]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for script, output in ((first_call, '"symbol": "BTC"'), (others[0], "200 OK"), (others[1], "")):
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", script],
            cwd=elsewhere,
            env={"PATH": os.defpath, "HOME": str(elsewhere)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert (done.returncode, output in done.stdout) == (0, True), (script, done.stdout, done.stderr)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_it_is_ready_stops_everything_too(
    tmp_path: Path, demos: list[Demo], number: signal.Signals
) -> None:
    demo = Demo(tmp_path, "--port", "0")
    demos.append(demo)
    deadline = time.monotonic() + DEADLINE_S
    while not list(demo.temporary.iterdir()):  # from then on there is something to stop
        assert demo.process.poll() is None, demo.text()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.killpg(demo.process.pid, number)  # as a terminal does: to the whole group
    assert demo.wait() == 130, demo.text()
    assert demo.is_group_gone()
    assert list(demo.temporary.iterdir()) == []


def test_a_taken_port_is_a_sentence_and_exit_1(tmp_path: Path, demos: list[Demo]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for number, option in enumerate(("--port", "--chain-port")):
            folder = tmp_path / str(number)
            folder.mkdir()
            other = ("--port", "0") if option == "--chain-port" else ()
            demo = Demo(folder, "--once", option, str(port), *other)
            demos.append(demo)
            assert demo.wait() == 1
            assert "The demo failed: " in demo.text()
            assert "Traceback" not in demo.text()
            assert demo.is_group_gone()
            assert list(demo.temporary.iterdir()) == []


def test_refuses_a_sandbox_file_in_no_folder_before_it_starts_anything(
    tmp_path: Path, demos: list[Demo]
) -> None:
    demo = Demo(tmp_path, "--once", "--sandbox-file", str(tmp_path / "nowhere" / "sandbox.json"))
    demos.append(demo)
    assert demo.wait() == 1
    assert "there is no folder" in demo.text()


def wait_ready(demo: Demo, file: Path) -> None:
    """Until the demo has written the sandbox file and the last of its lines."""
    deadline = time.monotonic() + DEADLINE_S
    while not file.exists() or " mcp --max-price" not in demo.text():
        assert demo.process.poll() is None, demo.text()
        assert time.monotonic() < deadline, demo.text()
        time.sleep(0.02)


def assert_is_sandbox(document: dict[str, Any]) -> None:
    assert list(document) == [
        "gatewayUrl", "rpcUrl", "chainId", "network", "token", "accounts", "upstreamUrl", "apiId",
    ]  # fmt: skip
    assert document["chainId"] == 84532
    assert document["network"] == "eip155:84532"
    assert document["token"] == {
        "symbol": "USDC",
        "address": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
        "decimals": 6,
    }
    assert [account["role"] for account in document["accounts"]] == ["provider", "caller", "stranger"]
    for account in document["accounts"]:
        assert list(account) == ["role", "address", "privateKey"]
        assert re.fullmatch(r"0x[0-9a-f]{64}", account["privateKey"])
    for name in ("gatewayUrl", "rpcUrl", "upstreamUrl"):
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+", document[name])
    assert document["apiId"].startswith("api_")


def assert_is_furnished(http: httpx.Client, sandbox: dict[str, Any]) -> None:
    """Every account holds at least 1,000 USDC and 10 ETH, after the walk-through too."""

    def ask(method: str, *params: object) -> int:
        question = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return int(http.post(sandbox["rpcUrl"], json=question).json()["result"], 16)

    for account in sandbox["accounts"]:
        holder = account["address"][2:].lower().rjust(64, "0")
        balance_of = {"to": sandbox["token"]["address"], "data": "0x70a08231" + holder}
        assert ask("eth_call", balance_of, "latest") >= 1_000 * 10**6
        assert ask("eth_getBalance", account["address"], "latest") >= 10 * 10**18


def copy_paid_call(demo: Demo) -> tuple[str, dict[str, str]]:
    """The URL and the headers of the printed line with curl."""
    (line,) = (line for line in demo.text().splitlines() if "curl -i" in line)
    words = shlex.split(line)
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H")
    return words[-1], headers
