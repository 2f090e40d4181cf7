"""`/budgets`: what owners and agents store, and what is refused; each refusal changes nothing."""

from typing import Any

import coincurve
import httpx
import pytest
from eth_account import Account

from tests.kit.budgets import policy_of
from tests.kit.routes import NOW_MS, PUBLIC_URL, RouteHarness
from tests.model.ledger import MemoryLedger
from tollway.chain.networks import ChainRules
from tollway.chain.signer import derive_address, sign_digest
from tollway.client.record_reader import read_record
from tollway.client.records import BudgetList, WalletBudget
from tollway.ids import Address, ChainId
from tollway.ledger.budgets import refuse_spending
from tollway.ledger.ledger import BudgetExceeded
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset
from tollway.spending_policy import (
    FIELDS,
    NONCE_MAX,
    SpendingPolicy,
    acceptance_digest,
    policy_digest,
    policy_members,
    revocation_digest,
    unbinding_digest,
)
from tollway.web.api.budget_routes import budget_router

OWNER_KEY, AGENT_KEY, OTHER_KEY = (coincurve.PrivateKey(bytes([number] * 32)) for number in (1, 2, 3))
OWNER, AGENT, OTHER = map(derive_address, (OWNER_KEY, AGENT_KEY, OTHER_KEY))
KEYS = {OWNER: OWNER_KEY, AGENT: AGENT_KEY, OTHER: OTHER_KEY}
CHAIN = ChainId(84532)
USDC = Asset(chain_id=CHAIN, token=Address(b"\x0a" * 20), symbol="USDC", decimals=6)
RULES = ChainRules(chain_id=CHAIN, kind="test", confirmations=((0, 1),), assets=(USDC,))
NOW_S = NOW_MS // 1000


def sign(wallet: Address, digest: bytes) -> str:
    return "0x" + sign_digest(KEYS[wallet], digest).hex()


def policy(**members: Any) -> SpendingPolicy:
    defaults = {"owner": OWNER, "agent": AGENT, "gateway": PUBLIC_URL, "not_after": NOW_S + 86_400}
    return policy_of(**{"maxPerDay": "5", **defaults, **members})


class Contract:
    """The signatures of contract wallets, by chain."""

    def __init__(self) -> None:
        self.asked: list[ChainId] = []

    async def is_signed_by(
        self, address: Address, digest: bytes, signature: bytes, *, chain_id: ChainId, client_address: str
    ) -> bool:
        self.asked.append(chain_id)
        return signature == b"\x07" * 70


class Site(RouteHarness):
    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.ledger = MemoryLedger(now_ms=lambda: self.now_ms)
        self.contract = Contract()
        super().__init__(
            budgets=self.ledger,
            origin=PUBLIC_URL,
            shared_ms=lambda: self.now_ms,
            sign_in=self.contract,
            assets=(USDC,),
            rules={CHAIN: RULES},
        )
        self.open(budget_router)

    async def ask(
        self, method: str, wallet: Address | None, path: str = f"/{AGENT}", json: Any = None
    ) -> httpx.Response:
        return await self.send(method, f"/api/v2/budgets{path}", json, wallet=wallet)

    async def put(self, one: SpendingPolicy, by: Address = OWNER, **body: Any) -> httpx.Response:
        signature = sign(by, policy_digest(one))
        json = {"policy": policy_members(one), "signature": signature, **body}
        return await self.ask("PUT", by, json=json)

    async def accept(self, owner: Address = OWNER, by: Address = AGENT, nonce: int = 1) -> httpx.Response:
        digest = acceptance_digest(agent=AGENT, owner=owner, gateway=PUBLIC_URL, nonce=nonce)
        body = {"owner": str(owner), "nonce": nonce, "signature": sign(by, digest)}
        return await self.ask("PUT", by, f"/{AGENT}", body)

    async def revoke(self, nonce: int, by: Address = OWNER, **more: Any) -> httpx.Response:
        write_digest = unbinding_digest if more.get("unbind") else revocation_digest
        digest = write_digest(owner=by, agent=AGENT, gateway=PUBLIC_URL, nonce=nonce)
        return await self.ask("DELETE", by, json={"nonce": nonce, "signature": sign(by, digest), **more})

    async def states(self, wallet: Address = AGENT) -> list[str]:
        found = await self.ask("GET", wallet)
        return [one["state"] for one in found.json().get("budgets", [])]


@pytest.fixture
def site() -> Site:
    return Site()


def errors_of(answer: httpx.Response) -> list[tuple[str, str]]:
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), answer.json()
    return [
        (error.get("pointer") or error.get("parameter"), error["code"]) for error in answer.json()["errors"]
    ]


async def test_a_policy_is_pending_until_the_agent_accepts_its_owner(site: Site) -> None:
    stored = await site.put(policy())
    assert (stored.status_code, stored.json()["state"], stored.json()["isBound"]) == (200, "pending", False)
    assert await site.states(OWNER) == await site.states(AGENT) == ["pending"]
    accepted = await site.accept()
    assert (accepted.status_code, accepted.json()["state"]) == (200, "in_force")
    assert accepted.json()["policy"] == policy_members(policy())
    reset = {"limit": "maxPerDay", "amount": "5", "resetsAt": "2026-11-22T00:00:00.000Z"}
    assert accepted.json()["left"] == [reset]
    # A later policy of this owner needs no other acceptance.
    assert (await site.put(policy(maxPerDay="7", nonce=2))).json()["state"] == "in_force"
    assert (await site.ask("GET", OWNER, "")).json()["budgets"][0]["left"][0]["amount"] == "7"


async def test_revoking_leaves_the_wallet_bound_and_unbinding_frees_it(site: Site) -> None:
    await site.put(policy())
    await site.accept()
    assert (await site.revoke(2)).json()["state"] == "revoked"
    assert (await site.ask("GET", AGENT)).json()["budgets"][0]["isBound"] is True
    assert (await site.revoke(3, unbind=True)).json()["isBound"] is False
    assert await site.ledger.find_binding(AGENT) is None


async def test_a_session_unbinds_nothing_and_a_signature_does_what_it_names(site: Site) -> None:
    """The proof of the request, a session too, says who asks; what is signed by the owner says what becomes of the wallet. Each refusal changes nothing."""
    await site.put(policy())
    await site.accept()
    members: dict[str, Any] = {"owner": OWNER, "agent": AGENT, "gateway": PUBLIC_URL, "nonce": 2}
    for unbind, digest, signer in (
        (True, revocation_digest(**members), OWNER),
        (False, unbinding_digest(**members), OWNER),
        (True, unbinding_digest(**members), AGENT),
        (True, unbinding_digest(**{**members, "gateway": "https://other.example"}), OWNER),
        (True, unbinding_digest(**{**members, "agent": OTHER}), OWNER),
        (True, unbinding_digest(**{**members, "nonce": 3}), OWNER),
    ):
        body = {"nonce": 2, "signature": sign(signer, digest), "unbind": unbind}
        assert errors_of(await site.ask("DELETE", OWNER, json=body)) == [("/signature", "wrong_signer")]
    unsigned = await site.ask("DELETE", OWNER, json={"nonce": 2, "unbind": True})
    assert errors_of(unsigned) == [("/signature", "required")]
    assert (await site.ask("DELETE", AGENT, json=body)).status_code == 404
    assert (await site.ask("DELETE", None, json=body)).status_code == 401
    assert await site.states() == ["in_force"]
    body = {"nonce": 2, "signature": sign(OWNER, unbinding_digest(**members)), "unbind": True}
    assert (await site.ask("DELETE", OWNER, json=body)).json()["isBound"] is False


async def test_budgets_are_shown_to_their_two_wallets_alone(site: Site) -> None:
    await site.put(policy())
    for wallet, path in ((OTHER, f"/{AGENT}"), (OWNER, f"/{OTHER}"), (OTHER, f"/{OTHER}")):
        answer = await site.ask("GET", wallet, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "budget_not_found")
    assert (await site.ask("GET", None)).status_code == 401
    assert (await site.ask("GET", OTHER, "")).json() == {"budgets": []}


@pytest.mark.parametrize(
    ("members", "errors"),
    [
        ({"owner": OTHER}, [("/policy/owner", "other_wallet")]),
        ({"agent": OTHER}, [("/policy/agent", "other_wallet")]),
        ({"gateway": "https://other.example"}, [("/policy/gateway", "other_gateway")]),
        ({"gateway": PUBLIC_URL + "/"}, [("/policy/gateway", "other_gateway")]),
        ({"gateway": ""}, [("/policy/gateway", "other_gateway")]),
        ({"currency": "EURC"}, [("/policy/currency", "unknown_currency")]),
        ({"currency": "usdc"}, [("/policy/currency", "unknown_currency")]),
        ({"network": "eip155:1"}, [("/policy/network", "unknown_network")]),
        ({"network": "main"}, [("/policy/network", "unknown_network")]),
        ({"not_after": NOW_S}, [("/policy/notAfter", "expired")]),
        ({"not_before": NOW_S + 86_400}, [("/policy/notAfter", "before_begin")]),
        ({"maxPerDay": ""}, [("/policy/maxTotal", "no_limit")]),
        ({"maxPerDay": "2", "maxPerMonth": "1"}, [("/policy/maxPerDay", "above_longer_limit")]),
        (
            {"maxPerDay": "", "maxPerCall": "2", "maxTotal": "1"},
            [("/policy/maxPerCall", "above_longer_limit")],
        ),
        (
            {"maxPerHour": "6", "maxTotal": "4"},
            [("/policy/maxPerHour", "above_longer_limit"), ("/policy/maxPerDay", "above_longer_limit")],
        ),
        ({"maxPerDay": "1e3"}, [("/policy/maxPerDay", "amount")]),
        ({"maxPerDay": "9223372037"}, [("/policy/maxPerDay", "amount")]),
        ({"allow": ("tag:b", "tag:a")}, [("/policy/allow", "not_sorted")]),
        ({"allow": ("a",)}, [("/policy/allow/0", "target")]),
        ({"allow": tuple(f"tag:{n}" for n in range(65))}, [("/policy/allow", "too_many")]),
        ({"allow": ("tag:a",), "deny": ("tag:a",)}, [("/policy/deny", "in_both_lists")]),
        ({"nonce": 2**53}, [("/policy/nonce", "out_of_range")]),
        ({"nonce": -1}, [("/policy/nonce", "out_of_range")]),
        (
            {"owner": OTHER, "gateway": "x"},
            [("/policy/owner", "other_wallet"), ("/policy/gateway", "other_gateway")],
        ),
    ],
)
async def test_a_bad_policy_is_refused_with_each_of_its_errors(
    site: Site, members: dict[str, Any], errors: list[tuple[str, str]]
) -> None:
    one = policy()
    wire = policy_members(
        policy_of(
            **{
                "maxPerDay": "5",
                "owner": one.owner,
                "agent": one.agent,
                "gateway": one.gateway,
                "not_after": one.not_after,
                **members,
            }
        )
    )
    body = {"policy": wire, "signature": sign(OWNER, policy_digest(one))}
    assert errors_of(await site.ask("PUT", OWNER, json=body)) == errors
    assert await site.states() == []


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("/policy", "required"), ("/signature", "required")]),
        ({"policy": {}, "signature": "0x"}, [("/signature", "signature")]),
        ({"policy": [], "signature": "0x00"}, [("/policy", "type")]),
        ({"policy": {"own": 1}, "signature": "0x00"}, None),
    ],
)
async def test_a_body_of_another_form_is_refused(site: Site, body: Any, errors: Any) -> None:
    found = errors_of(await site.ask("PUT", OWNER, json=body))
    assert found == errors if errors is not None else found[0] == ("/policy/own", "unknown_field")


async def test_another_signature_is_refused(site: Site) -> None:
    for one, signer in ((policy(), AGENT), (policy(maxPerDay="6"), OWNER)):
        body = {"policy": policy_members(policy()), "signature": sign(signer, policy_digest(one))}
        assert errors_of(await site.ask("PUT", OWNER, json=body)) == [("/signature", "wrong_signer")]
    assert await site.states() == []
    await site.put(policy())
    bad = acceptance_digest(agent=AGENT, owner=OTHER, gateway=PUBLIC_URL, nonce=1)
    for digest, signer in (
        (bad, AGENT),
        (acceptance_digest(agent=AGENT, owner=OWNER, gateway=PUBLIC_URL, nonce=1), OWNER),
        (acceptance_digest(agent=AGENT, owner=OWNER, gateway="https://other.example", nonce=1), AGENT),
        (acceptance_digest(agent=AGENT, owner=OWNER, gateway=PUBLIC_URL, nonce=2), AGENT),
        (acceptance_digest(agent=OTHER, owner=OWNER, gateway=PUBLIC_URL, nonce=1), AGENT),
    ):
        body = {"owner": str(OWNER), "nonce": 1, "signature": sign(signer, digest)}
        assert errors_of(await site.ask("PUT", AGENT, f"/{AGENT}", body)) == [("/signature", "wrong_signer")]
    for write_digest, members in ((revocation_digest, {}), (unbinding_digest, {"unbind": True})):
        for changes in ({"gateway": "https://other.example"}, {"agent": OTHER}, {"nonce": 8}):
            named = {"owner": OWNER, "agent": AGENT, "gateway": PUBLIC_URL, "nonce": 9, **changes}
            signature = sign(OWNER, write_digest(**named))
            body = {"nonce": 9, "signature": signature, **members}
            assert errors_of(await site.ask("DELETE", OWNER, json=body)) == [("/signature", "wrong_signer")]
    assert await site.states() == ["pending"]


DOMAIN = {"name": "Tollway", "version": "1"}


@pytest.mark.parametrize(
    ("domain", "status"),
    [
        (DOMAIN, 200),
        ({**DOMAIN, "name": "Other"}, 422),
        ({**DOMAIN, "version": "2"}, 422),
        ({**DOMAIN, "chainId": 84532}, 422),
        ({**DOMAIN, "verifyingContract": "0x" + "0a" * 20}, 422),
    ],
    ids=["ours", "another name", "another version", "with a chain", "with a contract"],
)
async def test_a_policy_is_signed_in_one_domain(site: Site, domain: dict[str, Any], status: int) -> None:
    kinds = {"name": "string", "version": "string", "chainId": "uint256", "verifyingContract": "address"}
    types = {"EIP712Domain": {name: kinds[name] for name in domain}, "SpendingPolicy": FIELDS}
    members = policy_members(policy())
    typed = {
        "types": {
            name: [{"name": field, "type": kind} for field, kind in fields.items()]
            for name, fields in types.items()
        },
        "primaryType": "SpendingPolicy",
        "domain": domain,
        "message": members,
    }
    signature = Account.sign_typed_data(OWNER_KEY.secret, full_message=typed).signature.hex()
    answer = await site.ask("PUT", OWNER, json={"policy": members, "signature": "0x" + signature})
    assert answer.status_code == status
    if status != 200:
        assert errors_of(answer) == [("/signature", "wrong_signer")]
    assert await site.states() == (["pending"] if status == 200 else [])


async def test_nobody_accepts_for_the_agent_and_nobody_revokes_for_the_owner(site: Site) -> None:
    await site.put(policy())
    assert (await site.accept(by=OWNER)).status_code == 422
    for answer in (
        await site.accept(owner=OTHER),
        await site.revoke(5, by=AGENT),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "budget_not_found")
    assert await site.states() == ["pending"]


async def test_a_replayed_or_lower_nonce_is_refused(site: Site) -> None:
    await site.put(policy(nonce=5))
    assert (await site.put(policy(nonce=5))).status_code == 200
    await site.accept()
    for answer in (
        await site.put(policy(maxPerDay="6", nonce=5)),
        await site.put(policy(nonce=4)),
        await site.revoke(5),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["reason"], problem["nonce"]) == (
            409,
            "already_exists",
            "nonce_not_higher",
            5,
        )
    assert (await site.revoke(6)).status_code == 200
    assert (await site.put(policy(nonce=5))).json()["reason"] == "nonce_not_higher"
    await site.revoke(7, unbind=True)
    await site.put(policy(nonce=8))
    refused = await site.accept()
    assert (refused.status_code, refused.json()["reason"]) == (409, "nonce_not_higher"), "an acceptance too"
    await site.accept(nonce=2)
    await site.revoke(9)
    assert (await site.ask("GET", OWNER)).json()["budgets"][0]["state"] == "revoked"


async def test_a_wallet_has_one_owner(site: Site) -> None:
    await site.put(policy())
    await site.accept()
    assert (await site.put(policy(owner=OTHER), by=OTHER)).json()["state"] == "pending"
    refused = await site.accept(owner=OTHER)
    assert (refused.status_code, refused.json()["reason"]) == (409, "bound_to_another_owner")
    assert await site.states() == ["in_force", "pending"]


async def test_a_contract_signs_on_the_network_of_its_policy(site: Site) -> None:
    members = policy_members(policy(network="eip155:84532"))
    for signature, status in (("0x" + "07" * 70, 200), ("0x" + "08" * 70, 422)):
        answer = await site.ask("PUT", OWNER, json={"policy": members, "signature": signature})
        assert answer.status_code == status
    await site.accept()
    key_signed = await site.put(policy(nonce=2))
    assert (key_signed.status_code, key_signed.json()["reason"]) == (409, "bound_to_another_owner")
    revocation = {"nonce": 3, "signature": "0x" + "07" * 70}
    assert (await site.ask("DELETE", OWNER, json=revocation)).json()["state"] == "revoked"
    assert site.contract.asked == [CHAIN] * 3
    await site.ask("DELETE", OWNER, json={"nonce": 4, "signature": "0x" + "07" * 70, "unbind": True})
    key_signed = await site.put(policy(nonce=NONCE_MAX))
    assert (key_signed.status_code, key_signed.json()["reason"]) == (409, "bound_to_another_owner")
    again = {"policy": {**members, "nonce": 5}, "signature": "0x" + "07" * 70}
    assert (await site.ask("PUT", OWNER, json=again)).status_code == 200, "no other one took its nonces"


async def test_a_policy_that_no_agent_accepted_may_change_its_network(site: Site) -> None:
    members = policy_members(policy(network="eip155:84532"))
    await site.ask("PUT", OWNER, json={"policy": members, "signature": "0x" + "07" * 70})
    assert (await site.put(policy(nonce=2))).status_code == 200


async def test_an_expired_policy_that_an_agent_accepts_buys_nothing(site: Site) -> None:
    await site.put(policy(not_after=NOW_S + 5))
    site.now_ms += 5_000
    assert ((await site.accept()).json()["state"], await site.states()) == ("expired", ["expired"])
    (bound,) = site.ledger.bound_budgets()
    refused = refuse_spending(bound, cost_nano=1, currency="USDC", targets=frozenset(), now_ms=site.now_ms)
    assert refused == BudgetExceeded(reason="no_policy_in_force")


async def test_an_owner_has_a_maximum_of_pending_policies_and_a_rate(site: Site) -> None:
    limits = DEFAULT_LIMITS
    for number in range(limits.pending_budgets_max):
        one = policy(agent=Address(number.to_bytes(20, "big")))
        await site.ledger.store_policy(one, "0x", pending_max=1_000, now_ms=NOW_MS)
    refused = await site.put(policy())
    assert (refused.status_code, refused.json()["reason"]) == (422, "too_many_pending")
    for _ in range(limits.policies_per_hour - 1):
        await site.put(policy())
    assert (await site.put(policy())).status_code == 429


async def test_the_client_reads_what_the_routes_write(site: Site) -> None:
    """In each state, as the agent and as the owner: one record for the command line and for programs."""
    one = policy(maxPerCall="1", allow=("tag:a",), not_before=NOW_S - 5)

    async def check(state: str) -> WalletBudget:
        for wallet, path in ((AGENT, f"/{AGENT}"), (OWNER, f"/{AGENT}"), (OWNER, "")):
            (found,) = read_record(BudgetList, (await site.ask("GET", wallet, path)).json()).budgets
            assert (found.owner, found.agent, found.state) == (str(OWNER), str(AGENT), state)
        return found

    await site.put(one)
    assert not (await check("pending")).is_bound
    await site.accept()
    found = await check("in_force")
    assert found.policy is not None
    assert (found.policy.max_per_call, found.policy.max_total) == ("1", "")
    assert (found.policy.allow, found.policy.not_before) == (("tag:a",), one.not_before)
    assert [(left.limit, left.amount) for left in found.left] == [("maxPerCall", "1"), ("maxPerDay", "5")]
    site.now_ms = one.not_after * 1000
    await check("expired")
    await site.revoke(2)
    assert (await check("revoked")).is_bound
