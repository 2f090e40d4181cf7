"""The README is what the demo does: its walk-through and its commands; and so are the exchanges of docs/recipes.md and the commands of docs/budgets.md, but for values that differ in each run."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.page_blocks import read_blocks

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
BUDGETS = (ROOT / "docs" / "budgets.md").read_text()
RECIPES = (ROOT / "docs" / "recipes.md").read_text()
DEADLINE_S = 60.0
VOLATILE = (
    (r"\S*/bin/tollway\b|\S+ -c 'from tollway.cli import main; main\(\)'", "tollway"),
    (r"\b0x[0-9a-fA-F]+(…[0-9a-fA-F]{0,4})?", "HEX"),
    (r"\b(api|call|req|key)_[0-9a-z]{20,}", "ID"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r"/\S*/(caller\.key|payments\.sqlite3)", r"FOLDER/\1"),
    (r"\b\d+\.\d+ USD\b", "QUOTE USD"),
    (r"[\d,]+ gas a call", "GAS a call"),
    (r'("price": )"[\d.]+"', r"\1QUOTE"),
    (r'id="[^"]+"', "id=ID"),
    (r"payment-required: \S+", "payment-required: TERMS"),
)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[str]:
    """The output of a demo that keeps running."""
    (tmp_path / "temporary").mkdir()
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", "from tollway.cli import main; main()", "demo", "--port", "0"],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while " mcp --max-price" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        yield output.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=DEADLINE_S)


def steady(text: str) -> str:
    """The text without the values that differ in each run."""
    for pattern, word in VOLATILE:
        text = re.sub(pattern, word, text)
    return text


def find_block(words: str, page: str = README) -> str:
    (block,) = (block.text for block in read_blocks(page) if words in block.text)
    return block


def test_the_walk_through_is_the_demo_s(demo: str) -> None:
    printed = steady(find_block("Tollway demo:")).splitlines()
    assert steady(demo).splitlines()[: len(printed)] == printed


def test_the_first_call_is_what_the_demo_prints(demo: str, tmp_path: Path) -> None:
    printed = [line.strip() for line in demo.splitlines() if line.startswith("   ")]
    block = find_block("tollway search quotes").splitlines()
    assert set(map(steady, block)) <= set(map(steady, printed))
    wanted = set(map(steady, block))
    commands = [line for line in printed if steady(line) in wanted]
    assert len(commands) == len(block)
    output = run_on_terminal("\n".join(commands), tmp_path)
    position = 0
    for line in map(steady, find_block("Pays 0.01 USDC to").splitlines()):
        position = output.find(line, position)
        assert position >= 0, f"{line!r} is not in\n{output}"


def test_the_budget_is_what_the_demo_prints(demo: str, tmp_path: Path) -> None:
    """All blocks of the page in their order, on one terminal. Some commands are refused, as the page says."""
    (export,) = [line.strip() for line in demo.splitlines() if line.strip().startswith("export ")]
    program = next(
        line.split(" search ")[0].strip() for line in demo.splitlines() if " search quotes" in line
    )
    (listing, *_) = re.findall(r"api_[0-9a-z]{26}", demo)
    lines = [line for block in read_blocks(BUDGETS) for line in block.text.splitlines()]
    owner, agent = list(dict.fromkeys(re.findall(r"0x[0-9a-fA-F]{40}", BUDGETS)))
    values = {owner: "$OWNER", agent: "$AGENT", re.findall(r"api_[0-9a-z]{26}", BUDGETS)[0]: listing}
    script = [export, f'tollway() {{ {program} "$@"; }}']
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            for old, new in values.items():
                command = command.replace(old, new)
            script += [f"echo {shlex.quote(steady(line))}", f"{command} || true"]
            if command.startswith("tollway wallet new"):
                address = "$(tollway wallet address{} | tr -cd '0-9a-zA-Z{{}}\":' | grep -o '0x[0-9a-fA-F]*')"
                script.append(f"OWNER={address.format(' --key-file owner.key')} AGENT={address.format('')}")
    output = run_on_terminal("\n".join(script), tmp_path)
    position = 0
    for line in map(steady, lines):
        position = output.find(line, position)
        assert position >= 0, f"{line!r} is not in\n{output}"
        position += len(line)


def run_on_terminal(script: str, folder: Path) -> str:
    """The steady output of a shell script on a terminal of 200 columns."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, 200))
    shell = subprocess.Popen(
        ["/bin/sh", "-eu", "-c", script],
        cwd=folder,
        env={"PATH": os.defpath, "HOME": str(folder), "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    chunks = []
    try:
        while chunk := os.read(master, 65_536):
            chunks.append(chunk)
    except OSError:  # Linux: the last process has closed the terminal
        pass
    finally:
        os.close(master)
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", b"".join(chunks).decode())
    assert shell.wait(timeout=DEADLINE_S) == 0, output
    return steady(output)


@pytest.mark.parametrize("status", ["402 Payment Required", "200 OK"])
def test_the_exchanges_are_those_of_the_demo(demo: str, status: str) -> None:
    command, *expected = find_block(f"HTTP/1.1 {status}", RECIPES).splitlines()
    printed = next(line.strip() for line in demo.splitlines() if line.strip().startswith("curl -i "))
    words = shlex.split(printed)
    with_proof = [word for word in words[2:] if status == "200 OK" or word == words[-1]]
    assert steady(command).startswith("$ curl -s -i ")
    arguments = [with_proof[-1]] if status != "200 OK" else with_proof
    done = subprocess.run(
        ["curl", "-s", "-i", *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    received = steady(done.stdout.replace("\r\n", "\n"))
    position = 0
    for piece in re.split(r"\s*…\s*|\n(?=[a-z-]+: )", steady("\n".join(expected))):
        text = piece.replace("\n", "") if piece.lstrip().startswith(('{"', '"', "}")) else piece.strip()
        found = received.find(text, position)
        assert found >= 0, f"{text!r} is not in\n{received}"
        position = found if re.match(r"[a-z-]+: ", text) is None else position
