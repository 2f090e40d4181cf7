"""The formula and the program of docs/metering.md: a proxy before an API in the shape of OpenAI's, called through a gateway."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway import InProcessGateway, open_gateway, serve_app
from tests.kit.page_blocks import read_blocks
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.registry.metering import Metering, describe_metering, read_metering
from tollway.sandbox.completions import PATH, respond_completion
from tollway.sandbox.provider import SampleProvider, run_provider

PAGE = (Path(__file__).parents[2] / "docs" / "metering.md").read_text()
BLOCKS = {block.language: block.text for block in read_blocks(PAGE)}
CREDIT = 200_000
CHAT = {"messages": [{"role": "user", "content": "one two three"}]}
JSON = ("Content-Type", "application/json")


def read_formula() -> Metering:
    return read_metering(json.loads(BLOCKS["json"]))


@pytest.fixture
async def model() -> AsyncIterator[SampleProvider]:
    async with run_provider(services={PATH: respond_completion}) as provider:
        yield provider


@pytest.fixture
async def gateway(model: SampleProvider, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcessGateway]:
    """It sells the program of the page, which stands before the model."""
    monkeypatch.setenv("MODEL_URL", model.base_url)
    monkeypatch.setenv("MODEL_KEY", "secret")
    program: dict[str, Any] = {}
    exec(compile(BLOCKS["python"], "docs/metering.md", "exec"), program)
    async with (
        program["model"],
        serve_app(program["app"], limits=DEFAULT_LIMITS) as port,
        open_gateway() as gateway,
    ):
        endpoint = f"http://127.0.0.1:{port}"
        await gateway.publish(endpoint=endpoint, price=Price.parse("0.02"), metering=read_formula())
        yield gateway


async def take(gateway: InProcessGateway, *, status: int = 200, **asked: Any) -> tuple[bytes, int]:
    """The body of the response to a completion, and the units that it took."""
    payment = await gateway.pay(CREDIT)
    exchange = await gateway.ask(
        "POST",
        PATH,
        [*gateway.plain_proof(payment.tx_hash), JSON],
        [json.dumps({**CHAT, **asked}).encode()],
    )
    assert (exchange.status, exchange.is_ended) == (status, True)
    await gateway.check_balanced()
    return exchange.body, CREDIT - await gateway.remaining_units(payment)


def test_the_formula_is_what_the_page_says_in_words() -> None:
    assert describe_metering(read_formula()) == (
        "0.0001 per call, 0.002 per 1,000 prompt tokens, 0.008 per 1,000 completion tokens"
    )


async def test_a_whole_and_a_streamed_completion_cost_the_same(
    gateway: InProcessGateway, model: SampleProvider
) -> None:
    whole, taken = await take(gateway)
    assert json.loads(whole)["usage"]["total_tokens"] == 6
    streamed, taken_by_stream = await take(gateway, stream=True)
    assert streamed.endswith(b"data: [DONE]\n\n")
    assert taken == taken_by_stream == 100 + 3 * 2 + 3 * 8
    assert {name.lower(): value for name, value in model.seen[-1].headers}["authorization"] == "Bearer secret"


async def test_the_program_bounds_what_a_call_costs(gateway: InProcessGateway, model: SampleProvider) -> None:
    chat = [{"role": "user", "content": "a " * 1_900}]
    _, taken = await take(gateway, messages=chat, max_tokens=10**9)
    assert taken == 100 + 1_900 * 2 + 1_000 * 8
    chat = [{"role": "user", "content": "a" * 4_000}]
    assert (await take(gateway, status=413, messages=chat))[1] == 0
    assert model.count(PATH) == 1


async def test_a_refusal_of_the_model_costs_nothing(gateway: InProcessGateway) -> None:
    assert (await take(gateway, status=400, messages=[]))[1] == 0
