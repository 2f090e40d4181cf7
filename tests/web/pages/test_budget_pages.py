"""The pages of budgets: an owner signs, changes and ends a policy, an agent accepts its owner, and each refusal stands at its field and changes nothing."""

import json
import re
import shlex
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest

from tests.kit.budgets import bind, policy_of, store
from tests.kit.ledger_records import claim_on, new_payment
from tests.kit.pages import RULES, PageReader
from tests.kit.payer import KeyWallet
from tests.kit.routes import PUBLIC_URL
from tests.kit.signed_in import OTHER, READER, SELLER, THIRD, USDC, SignedInHarness, open_signed_in
from tests.web.pages.test_shown_commands import parse
from tollway.ids import Address
from tollway.ledger.budgets import Budget
from tollway.ledger.ledger import Claimed
from tollway.spending_policy import POLICY_TYPES, TARGETS_MAX, SpendingPolicy, typed_digest
from tollway.storage.ledger.budget_store import BudgetStore
from tollway.web.pages.budget_pages import PENDING_SHOWN, ROWS_MAX

AGENT = OTHER
FORM = {"agent": str(AGENT.address), "currency": "USDC", "maxPerDay": "5", "notAfter": "2027-06-30"}
REVOCATION = "/my/budgets/{agent}/revocation"
ONE = f"/my/budgets/{AGENT.address}"
TYPED = re.compile(r'data-typed="([^"]*)"')
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
COMMAND = re.compile(r"<code>(tollway budget [^<]*)</code>")


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    async with open_signed_in() as harness:
        await harness.sign_in(READER)
        yield harness


def ledger(harness: SignedInHarness) -> BudgetStore:
    return BudgetStore(harness.services.database)


async def find(harness: SignedInHarness, owner: KeyWallet = READER) -> Budget | None:
    return await ledger(harness).find_budget(owner.address, AGENT.address)


def policy(harness: SignedInHarness, owner: KeyWallet = READER, **members: Any) -> SpendingPolicy:
    ends = {"owner": owner.address, "agent": AGENT.address, "gateway": PUBLIC_URL, "maxPerDay": "5"}
    return policy_of(**{**ends, "not_after": harness.services.now_ms // 1000 + 86_400, **members})


def forms_of(page: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """The hidden fields and the typed data of each form that a wallet signs."""
    parts = [part.partition("</form>")[0] for part in page.split("<form ") if "data-typed=" in part]
    return [
        (
            {name: unescape(value) for name, value in HIDDEN.findall(part)},
            json.loads(unescape(TYPED.findall(part)[0])),
        )
        for part in parts
    ]


def sign(wallet: KeyWallet, typed: dict[str, Any]) -> str:
    return "0x" + wallet.sign(typed_digest(typed["primaryType"], typed["message"])).hex()


async def send(
    harness: SignedInHarness,
    page: str,
    path: str,
    *,
    number: int = 0,
    route: str | None = None,
    by: KeyWallet = READER,
    **changes: str,
) -> httpx.Response:
    """Signs a form of a page and posts it, as the module of the page does."""
    fields, typed = forms_of(page)[number]
    fields.pop("form_token")
    return await harness.post(path, {**fields, "signature": sign(by, typed), **changes}, route=route)


async def set_policy(harness: SignedInHarness, **changes: str) -> httpx.Response:
    page = await harness.post("/my/budgets", {**FORM, **changes})
    assert page.status_code == 200, page.text
    return await send(harness, page.text, "/my/budgets/signature")


async def test_a_policy_is_checked_then_signed_and_stored(harness: SignedInHarness) -> None:
    page = await harness.post("/my/budgets", {**FORM, "maxPerCall": "0.05", "deny": "tag:x y\r\n tag:a"})
    assert page.status_code == 200
    assert await find(harness) is None
    words = PageReader(page.text).words
    assert str(AGENT.address) in words
    assert "A budget bounds what a wallet spends at this gateway alone: its key can still move" in words
    ((fields, typed),) = forms_of(page.text)
    assert list(typed["message"]) == list(POLICY_TYPES["SpendingPolicy"])
    assert json.loads(fields["policy"]) == typed["message"]
    stored = await send(harness, page.text, "/my/budgets/signature")
    assert (stored.status_code, stored.headers["location"]) == (303, f"{ONE}?done=set")
    found = await find(harness)
    assert found is not None
    assert found.policy is not None
    assert (found.policy.limits["maxPerCall"], found.policy.deny) == ("0.05", ("tag:a", "tag:x y"))
    assert found.policy.not_after == 1_814_399_999
    page = await harness.browser.get(f"{ONE}?done=set")
    assert "It counts once the agent accepts you" in PageReader(page.text).words
    assert f"<code>tollway budget accept {READER.address}</code>" in page.text


async def test_the_page_prints_the_command_that_signs_the_same(harness: SignedInHarness) -> None:
    page = await harness.post("/my/budgets", {**FORM, "maxTotal": "50", "allow": "tag:x y"})
    (command,) = map(unescape, COMMAND.findall(page.text))
    parse(command)
    words = shlex.split(command)
    assert words[:4] == ["tollway", "budget", "set", str(AGENT.address)]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options == {
        "--until": "2027-06-30T23:59:59Z",
        "--max-per-day": "5",
        "--max-total": "50",
        "--allow": "tag:x y",
        "--gateway": PUBLIC_URL,
    }


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"maxPerCall": "6"}, {"maxPerCall": "must not be above “A day”"}),
        ({"maxPerDay": "60", "maxTotal": "50"}, {"maxPerDay": "must not be above “In all”"}),
        ({"maxPerDay": ""}, {"maxTotal": "at least one of"}),
        ({"maxPerDay": "5e3"}, {"maxPerDay": "decimal"}),
        ({"maxPerDay": "-1", "maxTotal": "x"}, {"maxPerDay": "decimal", "maxTotal": "decimal"}),
        ({"agent": "0x12"}, {"agent": ""}),
        ({"agent": ""}, {"agent": ""}),
        ({"agent": str(READER.address)}, {"agent": "another wallet"}),
        ({"currency": "EURC"}, {"currency": "must be one of"}),
        ({"network": "eip155:1"}, {"network": "must be empty"}),
        ({"notAfter": "2020-01-01"}, {"notAfter": "future"}),
        ({"notAfter": "soon"}, {"notAfter": "must be a day such as 2027-06-30"}),
        ({"notAfter": "2027-02-30"}, {"notAfter": "must be a day such as 2027-06-30"}),
        ({"allow": "quotes"}, {"allow": "tag:"}),
        ({"allow": "tag:a", "deny": "tag:a"}, {"deny": "allow"}),
        ({"deny": '"><script>alert(1)</script>'}, {"deny": "tag:"}),
    ],
)
async def test_a_contradiction_stands_at_its_field_before_a_wallet_opens(
    harness: SignedInHarness, changes: dict[str, str], errors: dict[str, str]
) -> None:
    page = await harness.post("/my/budgets", {**FORM, **changes})
    assert page.status_code == 422
    assert re.findall(r'id="error-(\w+)"', page.text) == list(errors)
    for name, words in errors.items():
        assert words in PageReader(page.text.partition(f'id="error-{name}"')[2].partition("</p>")[0]).text
    assert forms_of(page.text) == []
    assert "<script>alert" not in page.text
    assert page.text.count("autofocus") == 1 or "allow" in changes or "deny" in changes
    kept = {name: value for name, value in changes.items() if name.startswith("max") and value}
    assert all(f'value="{value}"' in page.text for value in kept.values())
    assert await find(harness) is None


async def test_a_signature_of_another_wallet_stores_nothing(harness: SignedInHarness) -> None:
    page = await harness.post("/my/budgets", FORM)
    refused = await send(harness, page.text, "/my/budgets/signature", by=THIRD)
    assert refused.status_code == 422
    words = PageReader(refused.text).words
    assert f"must be the EIP-712 signature of {READER.address}" in words
    assert "Choose the account of this page in the wallet." in words
    changed = json.dumps({**json.loads(forms_of(page.text)[0][0]["policy"]), "maxPerDay": "500"})
    assert (await send(harness, page.text, "/my/budgets/signature", policy=changed)).status_code == 422
    foreign = json.dumps({**json.loads(forms_of(page.text)[0][0]["policy"]), "owner": str(THIRD.address)})
    refused = await send(harness, page.text, "/my/budgets/signature", by=THIRD, policy=foreign)
    assert refused.status_code == 422
    assert await find(harness) is await find(harness, THIRD) is None


async def test_an_older_policy_is_not_stored_again(harness: SignedInHarness) -> None:
    page = await harness.post("/my/budgets", FORM)
    harness.services.now_ms += 1
    assert (await set_policy(harness, maxPerDay="4")).status_code == 303
    refused = await send(harness, page.text, "/my/budgets/signature")
    assert refused.status_code == 409
    assert "Sign again with a higher one" in PageReader(refused.text).words
    # Within the same millisecond the next nonce is higher.
    assert (await set_policy(harness, maxPerDay="3")).status_code == 303
    found = await find(harness)
    assert found is not None
    assert found.policy is not None
    assert found.policy.limits["maxPerDay"] == "3"


async def test_a_contract_signs_on_its_network_and_no_command_does_it(harness: SignedInHarness) -> None:
    (network,) = re.findall(r'value="(eip155:\d+)"', (await harness.browser.get("/my/budgets")).text)
    page = await harness.post("/my/budgets", {**FORM, "network": network})
    assert page.status_code == 200
    assert COMMAND.findall(page.text) == []
    assert "No command signs for a contract" in PageReader(page.text).words


async def test_an_agent_accepts_its_owner_once(harness: SignedInHarness) -> None:
    await set_policy(harness)
    await harness.sign_in(AGENT)
    page = await harness.browser.get("/my/budgets")
    link = f"/my/budgets/acceptance?owner={READER.address}"
    assert f'href="{link}"' in page.text
    assert "Policies that wait for this wallet" in page.text
    page = await harness.browser.get(link)
    for command in map(unescape, COMMAND.findall(page.text)):
        parse(command)
    refused = await send(harness, page.text, "/my/budgets/acceptance", by=READER)
    assert refused.status_code == 422
    assert "must be the EIP-712 signature of" in PageReader(refused.text).words
    accepted = await send(harness, page.text, "/my/budgets/acceptance", by=AGENT)
    assert (accepted.status_code, accepted.headers["location"]) == (303, "/my/budgets?done=accepted")
    words = PageReader((await harness.browser.get("/my/budgets")).text).words
    assert f"in force Owner: {READER.address} 5 of 5 USDC today until" in words
    assert "Policies that wait" not in words
    assert forms_of((await harness.browser.get(link)).text) == []


async def test_the_page_says_what_is_spent_and_left(harness: SignedInHarness) -> None:
    services = harness.services
    bound = await bind(
        ledger(harness),
        policy(harness, maxPerCall="0.05", maxPerDay="5", maxTotal="50"),
        services.now_ms,
    )
    paid = new_payment(
        30_000, "agent", payer=AGENT.address, payee=SELLER.address, chain_id=RULES.chain_id, asset=USDC.key
    )
    (payment,) = await services.ledger.record_payments([paid], now_ms=services.now_ms)
    claim = claim_on(payment, 30_000, provider=SELLER.address, created_ms=services.now_ms)
    assert isinstance(await services.ledger.claim(claim), Claimed)
    page = PageReader((await harness.browser.get(ONE)).text).words
    assert "A call 0.05 – – –" in page
    assert "An hour – 0.03 – –" in page
    assert "A day 5 0.03 4.97 until" in page
    assert "In all 50 0.03 49.97" in page
    row = PageReader((await harness.browser.get("/my/budgets")).text).words
    assert "0.05 USDC a call 4.97 of 5 USDC today 49.97 of 50 USDC in all" in row
    assert bound.state_at(services.now_ms) == "in_force"
    # The owner and the agent read one line at the spending; another reader of the same books does not.
    for viewer in (READER, SELLER):
        await harness.name_viewer(AGENT, viewer)
    for viewer, is_told in ((READER, True), (AGENT, True), (SELLER, False)):
        await harness.sign_in(viewer)
        words = PageReader((await harness.browser.get(f"/my/spending?wallet={AGENT.address}")).text).words
        assert ("Left of the budget: 0.05 USDC a call; 4.97 of 5 USDC today" in words) is is_told


async def test_revoking_and_unbinding_are_signed_apart(harness: SignedInHarness) -> None:
    await bind(ledger(harness), policy(harness), harness.services.now_ms)
    page = (await harness.browser.get(ONE)).text
    revoke, unbind = forms_of(page)
    assert (revoke[1]["primaryType"], unbind[1]["primaryType"]) == ("PolicyRevocation", "PolicyUnbinding")
    for command in map(unescape, COMMAND.findall(page)):
        parse(command)
    path = f"{ONE}/revocation"
    for number in (0, 1):
        refused = await send(harness, page, path, route=REVOCATION, by=THIRD, number=number)
        assert refused.status_code == 422
        assert refused.text.count('role="alert"') == 1
    assert (await find(harness)) == await ledger(harness).find_binding(AGENT.address)
    assert (await send(harness, page, path, route=REVOCATION)).headers["location"] == f"{ONE}?done=revoked"
    revoked = PageReader((await harness.browser.get(f"{ONE}?done=revoked")).text).words
    assert "revoked: buys nothing" in revoked
    assert "Revoked. From the next call on this wallet buys nothing here." in revoked
    (again,) = forms_of((await harness.browser.get(ONE)).text)
    assert again[0]["unbind"] == "yes"
    page = (await harness.browser.get(ONE)).text
    assert (await send(harness, page, path, route=REVOCATION)).headers["location"] == f"{ONE}?done=unbound"
    assert await ledger(harness).find_binding(AGENT.address) is None
    assert "ended: no owner" in PageReader((await harness.browser.get(ONE)).text).words


async def test_budgets_of_others_are_not_found(harness: SignedInHarness) -> None:
    await store(ledger(harness), policy(harness, SELLER), harness.services.now_ms)
    for path in (ONE, "/my/budgets/0x12", f"/my/budgets/{READER.address}", "/my/budgets/acceptance?owner=x"):
        assert "budget_not_found" in (await harness.read(path, 404)).words
    owner = f"/my/budgets/acceptance?owner={SELLER.address}"
    assert "budget_not_found" in (await harness.read(owner, 404)).words
    for path, route in ((f"{ONE}/revocation", REVOCATION), ("/my/budgets/acceptance", None)):
        fields = {"owner": str(SELLER.address), "nonce": "1", "signature": "0x"}
        assert (await harness.post(path, fields, route=route)).status_code == 404


async def test_a_form_without_its_token_changes_nothing(harness: SignedInHarness) -> None:
    page = await harness.post("/my/budgets", FORM)
    for path in ("/my/budgets", "/my/budgets/signature", "/my/budgets/acceptance", f"{ONE}/revocation"):
        refused = await harness.post(path, {**FORM, "form_token": "0" * 64}, route=path)
        assert refused.status_code == 400
    fields, typed = forms_of(page.text)[0]
    fields["form_token"] = "0" * 64
    answer = await harness.post("/my/budgets/signature", {**fields, "signature": sign(READER, typed)})
    assert answer.status_code == 400
    assert await find(harness) is None


async def test_every_agent_is_on_a_page(harness: SignedInHarness) -> None:
    agents = [Address(bytes([1, number]) * 10) for number in range(2 * ROWS_MAX + 1)]
    for agent in agents:
        await store(ledger(harness), policy(harness, agent=agent, nonce=1), harness.services.now_ms)
    seen: list[str] = []
    path: str | None = "/my/budgets"
    while path:
        page = await harness.browser.get(path)
        rows = re.findall(r'href="/my/budgets/(0x\w{40})"', page.text)
        assert len(rows) <= ROWS_MAX
        assert len(page.content) < 20_000
        seen += rows
        path = next(iter(re.findall(r'rel="next" href="([^"]*)"', page.text)), None)
    assert sorted(seen) == sorted(map(str, agents))


async def test_a_flood_of_policies_hides_no_owner(harness: SignedInHarness) -> None:
    """Any wallet may sign a policy for any other."""
    ledger_of = ledger(harness)
    await store(ledger_of, policy(harness, SELLER), harness.services.now_ms)
    for number in range(PENDING_SHOWN + 1):
        owner = KeyWallet.named(f"owner {number}")
        await store(ledger_of, policy(harness, owner), harness.services.now_ms + 1 + number)
    await harness.sign_in(AGENT)
    page = await harness.browser.get("/my/budgets")
    assert page.text.count("Look and accept") == PENDING_SHOWN
    assert str(SELLER.address) not in page.text
    assert len(page.content) < 20_000
    assert 'name="owner"' in page.text
    assert str(SELLER.address) in (await harness.read(f"/my/budgets/acceptance?owner={SELLER.address}")).words


async def test_a_policy_with_the_most_targets_is_signed(harness: SignedInHarness) -> None:
    targets = "\r\n".join(f"provider:{Address(bytes([3, number]) * 10)}" for number in range(TARGETS_MAX))
    assert (await set_policy(harness, allow=targets)).status_code == 303
    found = await find(harness)
    assert found is not None
    assert found.policy is not None
    assert len(found.policy.allow) == TARGETS_MAX
    assert (await harness.browser.get(ONE)).status_code == 200
