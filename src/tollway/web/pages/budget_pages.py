"""The pages of budgets: what the agents of a reader may spend at this gateway, and whose agent the reader's wallet is.

A policy is checked before the wallet opens, and what it signs is on the page. A wallet signs in the browser, and a plain form carries the signature to the checks of `/api/v2/budgets`.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from tollway.errors import Code, FieldError, Problem, Refusal
from tollway.identity.viewers import DAY_MS
from tollway.ids import Address, format_network
from tollway.ledger.budgets import Budget
from tollway.spending_policy import LIMITS, SpendingPolicy, policy_members, write_policy, write_typed_data
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.budget_routes import NOT_FOUND, BudgetActs, budget_json, check_policy, read_policy_body
from tollway.web.api.context import WebContext
from tollway.web.http.json import parse_json_object
from tollway.web.http.problems import status_of
from tollway.web.http.query import format_time, parse_time
from tollway.web.pages.my_routes import end_of_day
from tollway.web.pages.page_session import Fields, PageAccess, Reader, read_field, redirect_to
from tollway.web.pages.public_views import name_network

BUDGETS = "/my/budgets"
SIGNATURE, ACCEPTANCE = f"{BUDGETS}/signature", f"{BUDGETS}/acceptance"
_ONE = f"{BUDGETS}/{{agent}}"
REVOCATION = f"{_ONE}/revocation"
ROWS_MAX = 10
"""Agents of a page: each has a line for each limit, and a page has 20 kB at most."""
PENDING_SHOWN = 4
"""Policies that wait for the reader's acceptance. Any wallet may sign one for any other; the form finds each by its owner."""
SUGGESTED_DAYS = 30
_SIGNED = frozenset({Code.VALIDATION_FAILED, Code.ALREADY_EXISTS})
"""Refusals that a form shows. Every other one is a page of its own."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CHOICES = ("agent", "network", "currency", *LIMITS, "notAfter", "allow", "deny")


def budget_page_router(context: WebContext, access: PageAccess) -> Router:
    pages = BudgetPages(context, access)
    return Router(
        [
            access.page(BUDGETS, pages.list_budgets),
            access.form(BUDGETS, pages.check_form),
            access.form(SIGNATURE, pages.store_policy),
            access.page(ACCEPTANCE, pages.show_acceptance),
            access.form(ACCEPTANCE, pages.accept),
            access.page(_ONE, pages.show_budget),
            access.form(REVOCATION, pages.revoke),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """What a wallet is about to sign. `typed`: the JSON of `eth_signTypedData_v4`. `command`: signs and sends the same without a browser; empty where no command does."""

    typed: str
    nonce: int
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyForm:
    """The form of a policy. `given`: its fields as texts. `errors`: sentences by field, under another name what belongs to none."""

    given: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


class BudgetPages:
    """The handlers. Many tasks may call them at once."""

    def __init__(self, context: WebContext, access: PageAccess) -> None:
        self._context = context
        self._budgets, self._limits = context.budgets, context.limits
        self._acts = BudgetActs(context)
        self._respond = access.respond

    # ---- The list.

    async def list_budgets(self, request: Request, reader: Reader) -> Response:
        return await self._respond_list(request, reader, PolicyForm(given=self._suggest()))

    async def _respond_list(self, request: Request, reader: Reader, form: PolicyForm) -> Response:
        owned = await self._budgets.list_owned(reader.address, limit=self._limits.owned_budgets_max)
        after = request.query_params.get("after", "").lower()
        first = 1 + next((place for place, one in enumerate(owned) if str(one.agent).lower() == after), -1)
        shown = owned[first : first + ROWS_MAX]
        of_reader = await self._budgets.list_budgets(reader.address, limit=self._limits.pending_budgets_max)
        pending = [one for one in of_reader if one.state_at(self._context.shared_ms()) == "pending"]
        return self._respond(
            request,
            reader,
            "my_budgets.j2",
            status=form.status,
            done=request.query_params.get("done", ""),
            rows=self._describe_all(shown),
            count=len(owned),
            newest=BUDGETS if first else None,
            older=f"{BUDGETS}?after={shown[-1].agent}" if first + ROWS_MAX < len(owned) else None,
            bound=self._describe_all([one for one in of_reader if one.bound_ms is not None]),
            pending=self._describe_all(pending[:PENDING_SHOWN]),
            are_more=len(pending) > PENDING_SHOWN,
            list_limits=list_limits,
            **self._form_records(form),
        )

    def _describe_all(self, budgets: Sequence[Budget]) -> tuple[Mapping[str, Any], ...]:
        now_ms = self._context.shared_ms()
        return tuple(budget_json(one, now_ms=now_ms) for one in budgets)

    # ---- One agent.

    async def show_budget(self, request: Request, reader: Reader) -> Response:
        return await self._respond_budget(request, reader, await self._find_own(request, reader))

    async def revoke(self, request: Request, reader: Reader, fields: Fields) -> Response:
        budget = await self._find_own(request, reader)
        act = "unbound" if read_field(fields, "unbind") == "yes" else "revoked"
        members = {
            "nonce": read_whole(fields, "nonce"),
            "signature": read_field(fields, "signature"),
            "unbind": act == "unbound",
        }
        try:
            await self._acts.revoke(
                reader.address, budget.agent, members, client_address=client_address_of(request)
            )
        except Refusal as refused:
            return await self._respond_budget(request, reader, budget, failed=act, refused=refused)
        return redirect_to(f"{BUDGETS}/{budget.agent}?done={act}")

    async def _respond_budget(
        self,
        request: Request,
        reader: Reader,
        budget: Budget,
        *,
        failed: str = "",
        refused: Refusal | None = None,
    ) -> Response:
        """`failed`: the form that was refused."""
        form = PolicyForm(given=self._suggest() if budget.policy is None else read_given(budget.policy))
        (one,) = self._describe_all([budget])
        return self._respond(
            request,
            reader,
            "my_budget.j2",
            status=200 if refused is None else status_of_refused(refused),
            done=request.query_params.get("done", ""),
            one=one,
            limits=list_limits(one),
            revocation=self._sign_revocation(budget, is_unbinding=False),
            unbinding=self._sign_revocation(budget, is_unbinding=True),
            failed=failed,
            failure="" if refused is None else explain(refused),
            **self._form_records(form),
        )

    def _sign_revocation(self, budget: Budget, *, is_unbinding: bool) -> Signing:
        members = {
            "owner": str(budget.owner),
            "agent": str(budget.agent),
            "gateway": self._context.origin,
            "nonce": self._make_nonce(budget.nonce),
        }
        words = ("revoke", str(budget.agent), *(("--unbind",) if is_unbinding else ()))
        primary_type = "PolicyUnbinding" if is_unbinding else "PolicyRevocation"
        return self._sign(primary_type, members, words if budget.network == "" else ())

    async def _find_own(self, request: Request, reader: Reader) -> Budget:
        """Raises Refusal (404) for an agent for which the reader has signed no policy."""
        try:
            agent = Address.parse(request.path_params["agent"])
        except ValueError:
            agent = reader.address
        found = await self._budgets.find_budget(reader.address, agent)
        if found is None:
            raise Refusal(_NO_AGENT)
        return found

    # ---- A policy: the form, then the signature.

    async def check_form(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """Stores nothing: the page that answers has what the wallet signs, or the form with its errors."""
        given = {name: read_text_field(fields, name) for name in _CHOICES}
        try:
            policy = await self._read_policy(reader, given)
        except Refusal as refused:
            return await self._respond_list(request, reader, refuse_form(given, refused))
        (one,) = self._describe_all([_preview(policy, now_ms=self._context.shared_ms())])
        return self._respond(
            request,
            reader,
            "my_budget_signature.j2",
            one=one,
            limits=list_limits(one),
            policy=write_policy(policy),
            signing=self._sign("SpendingPolicy", policy_members(policy), write_set_command(policy, given)),
        )

    async def _read_policy(self, reader: Reader, given: Mapping[str, str]) -> SpendingPolicy:
        """Raises Refusal (422) with all errors."""
        try:
            agent = Address.parse(given["agent"])
            known = await self._budgets.find_budget(reader.address, agent)
        except ValueError:
            agent, known = reader.address, None
        members: dict[str, Any] = {
            **{name: given[name] for name in ("agent", "network", "currency", *LIMITS)},
            "owner": str(reader.address),
            "gateway": self._context.origin,
            "allow": read_lines(given["allow"]),
            "deny": read_lines(given["deny"]),
            "notBefore": 0,
            "notAfter": read_day(given["notAfter"]),
            "nonce": self._make_nonce(0 if known is None else known.nonce),
        }
        policy = read_policy_body(members)
        check_policy(policy, self._context, owner=reader.address, agent=agent)
        return policy

    async def store_policy(self, request: Request, reader: Reader, fields: Fields) -> Response:
        members = parse_json_object(read_field(fields, "policy").encode())
        policy = read_policy_body(members)
        try:
            await self._acts.store_policy(
                reader.address,
                policy.agent,
                {"policy": members, "signature": read_field(fields, "signature")},
                client_address=client_address_of(request),
            )
        except Refusal as refused:
            return await self._respond_list(request, reader, refuse_form(read_given(policy), refused))
        return redirect_to(f"{BUDGETS}/{policy.agent}?done=set")

    # ---- The agent's side.

    async def show_acceptance(self, request: Request, reader: Reader) -> Response:
        owner = request.query_params.get("owner", "")
        return await self._respond_acceptance(request, reader, await self._find_offer(reader, owner))

    async def accept(self, request: Request, reader: Reader, fields: Fields) -> Response:
        owner = read_field(fields, "owner")
        budget = await self._find_offer(reader, owner)
        members = {
            "owner": owner,
            "nonce": read_whole(fields, "nonce"),
            "signature": read_field(fields, "signature"),
        }
        try:
            await self._acts.accept_owner(reader.address, members, client_address=client_address_of(request))
        except Refusal as refused:
            return await self._respond_acceptance(request, reader, budget, refused)
        return redirect_to(f"{BUDGETS}?done=accepted")

    async def _respond_acceptance(
        self, request: Request, reader: Reader, budget: Budget, refused: Refusal | None = None
    ) -> Response:
        (one,) = self._describe_all([budget])
        members = {
            "agent": str(reader.address),
            "owner": str(budget.owner),
            "gateway": self._context.origin,
            "nonce": self._make_nonce(budget.accepted_nonce or 0),
        }
        return self._respond(
            request,
            reader,
            "my_budget_acceptance.j2",
            status=200 if refused is None else status_of_refused(refused),
            one=one,
            limits=list_limits(one),
            failure="" if refused is None else explain(refused),
            signing=self._sign("PolicyAcceptance", members, ("accept", str(budget.owner))),
        )

    async def _find_offer(self, reader: Reader, owner: str) -> Budget:
        """The policy of an owner for the reader. Raises Refusal (404) without one."""
        try:
            found = await self._budgets.find_budget(Address.parse(owner), reader.address)
        except ValueError as exc:
            raise Refusal(_NO_OFFER) from exc
        if found is None or found.policy is None:
            raise Refusal(_NO_OFFER)
        return found

    # ---- What they share.

    def _sign(self, primary_type: str, members: Mapping[str, Any], words: Sequence[str]) -> Signing:
        gateway = ("--gateway", self._context.public_url)
        return Signing(
            typed=json.dumps(write_typed_data(primary_type, members), separators=(",", ":")),
            nonce=members["nonce"],
            command=shlex.join(("tollway", "budget", *words, *gateway)) if words else "",
        )

    def _make_nonce(self, highest: int) -> int:
        """A nonce must be above every earlier one of the wallet."""
        return max(self._context.shared_ms(), highest + 1)

    def _suggest(self) -> Mapping[str, str]:
        until = format_time(self._context.shared_ms() + SUGGESTED_DAYS * DAY_MS)[:10]
        return {**dict.fromkeys(_CHOICES, ""), "notAfter": until}

    def _form_records(self, form: PolicyForm) -> Mapping[str, Any]:
        """What the form of a policy holds. `networks`: of owners that are contracts."""
        return {
            "form": form,
            "currencies": sorted({asset.symbol for asset in self._context.encoder.assets}),
            "networks": [
                (format_network(chain_id), name_network(chain_id, self._context.profiles))
                for chain_id in sorted(self._context.rules)
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """A limit of a policy and its window. Amounts are decimals in the policy's currency. `spent`: empty for one call. `limit`, `left`, `resets_at`: None without a limit."""

    name: str
    spent: str
    limit: str | None
    left: str | None
    resets_at: str | None


def list_limits(one: Mapping[str, Any]) -> tuple[LimitRow, ...]:
    """The rows of a budget (of `budget_json`), from the shortest window to the longest."""
    left = {row["limit"]: row for row in one["left"]}
    policy = one["policy"] or {}
    windows = ("", "hour", "day", "month", "total")
    return tuple(
        LimitRow(
            name=name,
            spent=one["spent"].get(window, ""),
            limit=policy.get(name) or None,
            left=left[name]["amount"] if name in left else None,
            resets_at=left[name]["resetsAt"] if name in left else None,
        )
        for name, window in zip(LIMITS, windows, strict=True)
    )


def _preview(policy: SpendingPolicy, *, now_ms: int) -> Budget:
    """The budget that the policy would be."""
    return Budget(
        owner=policy.owner,
        agent=policy.agent,
        network=policy.network,
        nonce=policy.nonce,
        policy=policy,
        signature=None,
        currency=policy.currency,
        stored_ms=now_ms,
    )


# ---- The form.


def read_text_field(fields: Fields, name: str) -> str:
    return read_field(fields, name).replace("\r\n", "\n")


def read_whole(fields: Fields, name: str) -> int | str:
    """A number of a form; another text as it is, which no body of the API takes."""
    text = read_field(fields, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(2**64)) else text


def read_lines(text: str) -> list[str]:
    """The targets of a form, one in a line, as a policy has them."""
    return sorted({line.strip() for line in text.split("\n")} - {""})


def read_day(text: str) -> int:
    """The last second of a day in UTC; 0 for another text, which no policy has."""
    try:
        return parse_time(end_of_day(text)) // 1000 if _DAY.fullmatch(text) else 0
    except ValueError:
        return 0


def read_given(policy: SpendingPolicy) -> Mapping[str, str]:
    """The fields of the form of a policy."""
    return {
        "agent": str(policy.agent),
        "network": policy.network,
        "currency": policy.currency,
        **policy.limits,
        "notAfter": format_time(policy.not_after * 1000)[:10],
        "allow": "\n".join(policy.allow),
        "deny": "\n".join(policy.deny),
    }


def write_set_command(policy: SpendingPolicy, given: Mapping[str, str]) -> Sequence[str]:
    """The words of `tollway budget set` for a policy; none for a contract, which has no key."""
    if policy.network != "":
        return ()
    currency = {} if policy.currency == "USDC" else {"--currency": policy.currency}
    options = {**currency, "--until": f"{given['notAfter']}T23:59:59Z"}
    options |= {option_of(name): limit for name, limit in policy.limits.items() if limit}
    pairs = [*options.items(), *(("--allow", one) for one in policy.allow)]
    pairs += (("--deny", one) for one in policy.deny)
    return ("set", str(policy.agent), *(word for pair in pairs for word in pair))


def option_of(limit: str) -> str:
    """`maxPerDay` -> `--max-per-day`."""
    return "--" + re.sub(r"[A-Z]", lambda found: f"-{found[0].lower()}", limit)


# ---- Refusals.


def refuse_form(given: Mapping[str, str], refused: Refusal) -> PolicyForm:
    """The form as it was sent, with the sentences of the refusal at their fields. Raises a refusal that is of no form again."""
    status = status_of_refused(refused)
    grouped: dict[str, list[str]] = {}
    for error in refused.problem.errors:
        grouped.setdefault(name_field(error), []).append(error.detail)
    if "notAfter" in grouped and read_day(given["notAfter"]) == 0:
        grouped["notAfter"] = ["must be a day such as 2027-06-30"]
    errors = {name: "; ".join(dict.fromkeys(found)) for name, found in grouped.items()}
    return PolicyForm(given=given, errors=errors or {"": refused.problem.detail}, status=status)


def explain(refused: Refusal) -> str:
    """The sentence of a refused signature."""
    errors = (f"{name_field(error)}: {error.detail}" for error in refused.problem.errors)
    return "; ".join(errors) or refused.problem.detail


def name_field(error: FieldError) -> str:
    """The member of a policy or of a body; empty for none."""
    return (error.pointer or "").removeprefix("/policy").removeprefix("/").partition("/")[0]


def status_of_refused(refused: Refusal) -> int:
    """Raises a refusal that is of no form again."""
    if refused.problem.code not in _SIGNED:
        raise refused
    return status_of(refused.problem.code)


_NO_AGENT = Problem(
    code=NOT_FOUND.code,
    detail="This wallet has signed no policy for that agent. /my/budgets lists your agents, and has the form of a policy.",
)
_NO_OFFER = Problem(
    code=NOT_FOUND.code,
    detail="No policy of that owner waits for this wallet. Check the address; a policy that was not accepted within days is deleted: let the owner sign it again.",
)
