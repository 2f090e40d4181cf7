"""The idempotency key of a create: its form, the request that creates, stored responses, refusals."""

import os
from hashlib import sha256

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tests.kit.stores import ControlStores
from tollway.errors import Code, Refusal, StorageUnavailable
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.registry.catalog import CreationBegun, CreationInProgress, CreationResponse, KeyedCreation
from tollway.storage.catalog.creation_store import finish_creation
from tollway.web.api.idempotent_create import IdempotentCreate, read_creation_key

ALICE = Address(b"\xaa" * 20)
LIMITS = Limits(response_bytes_max=10, creation_keys_max=2)


def request_with(*keys: str, body: bytes = b"{}") -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"idempotency-key", key.encode()) for key in keys]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


@pytest.fixture
def stores() -> ControlStores:
    return ControlStores(limits=LIMITS)


@pytest.fixture
def idempotent_create(stores: ControlStores) -> IdempotentCreate:
    return IdempotentCreate(stores.creations, limits=LIMITS, entropy=os.urandom)


async def begin(idempotent_create: IdempotentCreate, key: str = "k", *, body: bytes = b"{}") -> CreationBegun:
    begun = await idempotent_create.begin(request_with(key, body=body), ALICE)
    assert isinstance(begun, CreationBegun)
    return begun


def answer_with(body: bytes) -> CreationResponse:
    return CreationResponse(listing_id=ListingId("api_1"), location="/there", etag='"r1"', body=body)


async def finish(stores: ControlStores, begun: CreationBegun, answer: CreationResponse) -> None:
    assert await stores.database.write(lambda connection: finish_creation(connection, begun, answer))


async def refusal(idempotent_create: IdempotentCreate, key: str = "k", *, body: bytes = b"{}") -> Refusal:
    with pytest.raises(Refusal) as refused:
        await idempotent_create.begin(request_with(key, body=body), ALICE)
    return refused.value


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ((), None),
        (("k",), "k"),
        (('"k"',), "k"),
        (("a b",), "a b"),
        (("é" * 255,), "é" * 255),
        (('"',), '"'),
    ],
)
def test_a_key_is_any_text_with_or_without_quotes(keys: tuple[str, ...], key: str | None) -> None:
    assert read_creation_key(request_with(*keys)) == key


@pytest.mark.parametrize("keys", [("",), ('""',), ("x" * 256,), ("é" * 256,)])
def test_a_malformed_key_raises_a_refusal(keys: tuple[str, ...]) -> None:
    with pytest.raises(Refusal) as refused:
        read_creation_key(request_with(*keys))
    problem = refused.value.problem
    assert problem.code is Code.INVALID_REQUEST
    assert problem.errors[0].parameter == "Idempotency-Key"


async def test_without_a_key_the_store_is_not_used(
    idempotent_create: IdempotentCreate, stores: ControlStores
) -> None:
    stores.creation_database.is_away = True
    assert await idempotent_create.begin(request_with(), ALICE) is None
    async with idempotent_create.holding(None):
        pass


async def test_a_key_is_bound_to_the_bytes_of_the_body(
    idempotent_create: IdempotentCreate, stores: ControlStores
) -> None:
    await begin(idempotent_create, body=b"one")
    asked = KeyedCreation(wallet=ALICE, key="k", fingerprint=sha256(b"one").digest())
    assert isinstance(await stores.creations.begin(asked, claim=b"other"), CreationInProgress)
    assert (await refusal(idempotent_create, body=b"two")).problem.code is Code.IDEMPOTENCY_KEY_REUSED


async def test_a_repeat_of_a_running_request_is_refused_with_a_wait(
    idempotent_create: IdempotentCreate,
) -> None:
    await begin(idempotent_create)
    problem = (await refusal(idempotent_create)).problem
    assert (problem.code, problem.retry_after_s) == (Code.IDEMPOTENCY_IN_PROGRESS, 60)


async def test_a_repeat_returns_the_stored_response_with_its_header(
    idempotent_create: IdempotentCreate, stores: ControlStores
) -> None:
    await finish(stores, await begin(idempotent_create), idempotent_create.keep(answer_with(b"0123456789")))
    again = await idempotent_create.begin(request_with("k"), ALICE)
    assert isinstance(again, Response)
    assert (again.status_code, again.body) == (201, b"0123456789")
    names = ("location", "etag", "idempotency-replayed", "content-type")
    told = ["/there", '"r1"', "true", "application/json"]
    assert [again.headers[name] for name in names] == told


async def test_without_a_stored_body_the_refusal_names_the_listing(
    idempotent_create: IdempotentCreate, stores: ControlStores
) -> None:
    await finish(stores, await begin(idempotent_create), idempotent_create.keep(answer_with(b"0123456789+")))
    problem = (await refusal(idempotent_create)).problem
    assert problem.code is Code.ALREADY_EXISTS
    assert problem.members == {"apiId": "api_1", "location": "/there"}


async def test_too_many_keys_of_a_wallet_are_refused_with_the_rate(
    idempotent_create: IdempotentCreate,
) -> None:
    await begin(idempotent_create, "1")
    await begin(idempotent_create, "2")
    problem = (await refusal(idempotent_create, "3")).problem
    assert problem.code is Code.RATE_LIMITED
    assert problem.members == {"rateLimit": {"policy": "creation-keys", "limit": 2, "windowSeconds": 86_400}}


async def test_a_creation_that_fails_frees_its_key(idempotent_create: IdempotentCreate) -> None:
    with pytest.raises(ZeroDivisionError):
        async with idempotent_create.holding(await begin(idempotent_create)):
            raise ZeroDivisionError
    async with idempotent_create.holding(await begin(idempotent_create)):
        pass
    assert (await refusal(idempotent_create)).problem.code is Code.IDEMPOTENCY_IN_PROGRESS


async def test_a_failure_to_free_the_key_hides_no_other_failure(
    idempotent_create: IdempotentCreate, stores: ControlStores
) -> None:
    begun = await begin(idempotent_create)
    stores.creation_database.is_away = True
    with pytest.raises(ZeroDivisionError):
        async with idempotent_create.holding(begun):
            raise ZeroDivisionError


async def test_an_unavailable_store_refuses_a_creation_with_a_key(
    idempotent_create: IdempotentCreate, stores: ControlStores
) -> None:
    stores.creation_database.is_away = True
    with pytest.raises(StorageUnavailable):
        await idempotent_create.begin(request_with("k"), ALICE)
