"""Codes and sessions of the operator's pages, on both dialects."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import coincurve
import pytest
from sqlalchemy import Table

from tests.kit.chain import MemoryChain
from tests.kit.clocks import Clock
from tests.kit.ledger_records import NOW_MS
from tests.kit.lookup_counter import LookupCounter
from tests.kit.narrowing import existing, problem_of
from tests.kit.payer import KeyWallet
from tollway.chain.port import ContractResult
from tollway.errors import Code, Refusal
from tollway.identity.admin_sessions import CODE_TTL_S, SESSION_TTL_S, AdminSignIn, create_code
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import SignatureVerifier, eip191_digest
from tollway.identity.siwe import STATEMENT, format_sign_in, parse_origin, parse_sign_in
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.accounts.identity_store import SqlSessions
from tollway.storage.engine.database import Database
from tollway.storage.operator.operator_writes import SqlAdminSessions, admin_code_table, admin_session_table

OPERATOR = KeyWallet(key=coincurve.PrivateKey(b"\x41" * 32))
WALLET = OPERATOR.address
PUBLIC, ADMIN = parse_origin("https://gw.example.com"), parse_origin("http://127.0.0.1:9402")


class Setup:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = Clock(NOW_MS)
        numbers = count(1)
        self.entropy = lambda size: bytes([next(numbers)]) * size
        self.store = SqlAdminSessions(database)
        self.sign_in = self.open_gateway(frozenset({WALLET}))

    def open_gateway(self, operators: frozenset[Address], chain: MemoryChain | None = None) -> AdminSignIn:
        """The sign-in of a gateway with these wallets in its settings."""
        sign_in = SignIn(
            SqlSessions(self.database),
            SignatureVerifier(chain or MemoryChain(ChainId(84532)), limits=DEFAULT_LIMITS),
            LookupCounter(),
            origin=PUBLIC,
            limits=DEFAULT_LIMITS,
            now_ms=self.clock,
            entropy=self.entropy,
        )
        given: Any = {"public_origin": PUBLIC, "now_ms": self.clock, "entropy": self.entropy}
        return AdminSignIn(self.store, sign_in, operators=operators, **given)

    async def read_rows(self, table: Table) -> list[Any]:
        return await self.database.read(lambda connection: list(connection.execute(table.select())))

    async def make_code(self) -> str:
        return await create_code(self.store, actor="alice@gw-1", now_ms=self.clock.ms, entropy=self.entropy)


@pytest.fixture
def setup(database: Database) -> Setup:
    return Setup(database)


async def test_a_code_opens_one_session_of_its_actor(setup: Setup) -> None:
    code = await setup.make_code()
    token = existing(await setup.sign_in.open_session(code))
    session = existing(await setup.sign_in.find_session(token))
    assert (session.actor, session.created_ms) == ("alice@gw-1", NOW_MS)
    assert await setup.sign_in.open_session(code) is None
    assert await setup.sign_in.find_session(code) is None
    await setup.sign_in.close_session(session)
    assert await setup.sign_in.find_session(token) is None


async def test_of_many_callers_with_one_code_one_gets_in(setup: Setup) -> None:
    code = await setup.make_code()
    tokens = await asyncio.gather(*(setup.sign_in.open_session(code) for _ in range(8)))
    assert sum(token is not None for token in tokens) == 1


@pytest.mark.parametrize(("late_ms", "counts"), [(-1, True), (0, False), (1, False)])
async def test_a_code_counts_for_five_minutes(setup: Setup, late_ms: int, counts: bool) -> None:
    code = await setup.make_code()
    setup.clock.ms += CODE_TTL_S * 1000 + late_ms
    assert (await setup.sign_in.open_session(code) is not None) is counts


@pytest.mark.parametrize(("late_ms", "is_open"), [(-1, True), (0, False)])
async def test_a_session_lasts_eight_hours(setup: Setup, late_ms: int, is_open: bool) -> None:
    token = existing(await setup.sign_in.open_session(await setup.make_code()))
    setup.clock.ms += SESSION_TTL_S * 1000 + late_ms
    assert (await setup.sign_in.find_session(token) is not None) is is_open


async def test_a_sign_in_deletes_what_has_expired(setup: Setup) -> None:
    assert await setup.sign_in.open_session(await setup.make_code()) is not None
    await setup.make_code()
    setup.clock.ms += SESSION_TTL_S * 1000
    assert await setup.sign_in.open_session(await setup.make_code()) is not None
    for table, left in ((admin_code_table, 0), (admin_session_table, 1)):
        assert len(await setup.read_rows(table)) == left


# ---- Wallets of the setting `operators`.


async def sign_in_by_wallet(setup: Setup, sign_in: AdminSignIn) -> str:
    challenge = await sign_in.create_challenge(ADMIN)
    text = challenge.format_message(address=WALLET, chain_id=ChainId(1))
    signature = OPERATOR.sign(eip191_digest(text.encode()))
    return await show(sign_in, text, signature)


async def show(sign_in: AdminSignIn, text: str, signature: bytes) -> str:
    return await sign_in.open_wallet_session(
        origin=ADMIN, text=text, signature=signature, client_address="127.0.0.1"
    )


async def test_a_session_of_a_wallet_has_its_address_and_lasts_eight_hours(setup: Setup) -> None:
    token = await sign_in_by_wallet(setup, setup.sign_in)
    session = existing(await setup.sign_in.find_session(token))
    assert (session.actor, session.wallet) == (str(WALLET), WALLET)
    setup.clock.ms += SESSION_TTL_S * 1000
    assert await setup.sign_in.find_session(token) is None


class AgreeingWallet(MemoryChain):
    """A chain of which a node, or a contract at the address, accepts every signature (ERC-1271, ERC-6492)."""

    def __init__(self) -> None:
        super().__init__(ChainId(84532))
        self.calls = 0

    async def call_contract(self, chain_id: ChainId, **asked: Any) -> ContractResult:
        self.calls += 1
        accepted = b"\x01" if asked["to"] is None else bytes.fromhex("1626ba7e").ljust(32, b"\0")
        return ContractResult(reverted=False, payload=accepted)


NOT_OF_A_KEY = {
    "one byte": b"\x01",
    "of no key": b"\x07" * 65,
    "of a contract": b"\x07" * 100,
    "of a contract that is not deployed": b"\x07" * 64 + bytes.fromhex("6492" * 16),
}


async def test_no_answer_of_a_node_opens_a_session(setup: Setup) -> None:
    chain = AgreeingWallet()
    sign_in = setup.open_gateway(frozenset({WALLET}), chain)
    for name, signature in NOT_OF_A_KEY.items():
        challenge = await sign_in.create_challenge(ADMIN)
        text = challenge.format_message(address=WALLET, chain_id=chain.chain_ids[0])
        assert (await problem_of(show(sign_in, text, signature))).code is Code.INVALID_SIGNATURE, name
        assert chain.calls == 0, name
    assert await setup.read_rows(admin_session_table) == []


async def test_a_message_for_another_gateway_opens_no_session(setup: Setup) -> None:
    """Gateways are opened under one name, such as localhost: a page of one could show the message of another. The statement names the gateway."""
    challenge = await setup.sign_in.create_challenge(ADMIN)
    own = parse_sign_in(challenge.format_message(address=WALLET, chain_id=ChainId(1)))
    assert own.statement == "Sign in to the operator's pages of https://gw.example.com"

    async def show_with(statement: str | None) -> str:
        text = format_sign_in(replace(own, statement=statement))
        return await show(setup.sign_in, text, OPERATOR.sign(eip191_digest(text.encode())))

    for statement in (None, STATEMENT, "Sign in to the operator's pages of https://other.example"):
        with pytest.raises(Refusal, match="its statement names no gateway or another one"):
            await show_with(statement)
    assert await setup.sign_in.find_session(await show_with(own.statement)) is not None


async def test_a_session_of_a_link_is_of_no_wallet(setup: Setup) -> None:
    token = existing(await setup.sign_in.open_session(await setup.make_code()))
    for operators in (frozenset[Address](), frozenset({WALLET})):
        assert existing(await setup.open_gateway(operators).find_session(token)).wallet is None


async def test_a_wallet_has_its_session_at_gateways_that_name_it_only(setup: Setup) -> None:
    """A request at a gateway that still has older settings does not end the session at the others."""
    token = await sign_in_by_wallet(setup, setup.sign_in)
    for operators in (frozenset[Address](), frozenset({KeyWallet.named("another wallet").address})):
        assert await setup.open_gateway(operators).find_session(token) is None
    assert existing(await setup.sign_in.find_session(token)).wallet == WALLET


async def test_a_wallet_session_deletes_what_has_expired(setup: Setup) -> None:
    await sign_in_by_wallet(setup, setup.sign_in)
    setup.clock.ms += SESSION_TTL_S * 1000
    await sign_in_by_wallet(setup, setup.sign_in)
    assert len(await setup.read_rows(admin_session_table)) == 1
