"""`/api/v2/budgets`: the policy of an owner for the wallet of an agent, the acceptance of the owner by the agent, and what is left.

The owner proves its wallet and signs the policy itself; both must be one address. A signature is checked before anything is stored, and its nonce counts once.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from tollway.errors import Code, FieldError, Problem, Refusal
from tollway.identity.authenticator import Identity
from tollway.identity.signatures import parse_signature, recover
from tollway.ids import Address, format_network, parse_network
from tollway.ledger.budgets import BoundToAnother, Budget, NoBudget, NonceTooLow, TooManyPending
from tollway.money import LEDGER_DECIMALS_MAX, format_decimal
from tollway.rate_limits.limiter import Quota
from tollway.spending_policy import (
    LIMIT_LENGTH_MAX,
    LIMITS,
    NONCE_MAX,
    TARGETS_MAX,
    TIME_MAX_S,
    Contradiction,
    SpendingPolicy,
    acceptance_digest,
    check_target,
    find_contradictions,
    parse_limit,
    policy_digest,
    policy_members,
    revocation_digest,
    unbinding_digest,
)
from tollway.validation import RequestModel, in_range, read_parsed, read_text, read_texts, value_error
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.http.json import parse_json_object
from tollway.web.http.problems import refuse_fields
from tollway.web.http.query import NoParameters, format_time, format_time_if, read_members, read_query

SIGNATURE_LENGTH_MAX = 2 * 4_096 + 2
TARGET_LENGTH_MAX = 80


def _read_wallet(value: object) -> Address:
    return read_parsed(value, Address.parse, code="address", length_max=42)


def _read_signature(value: object) -> bytes:
    return read_parsed(value, parse_signature, code="signature", length_max=SIGNATURE_LENGTH_MAX)


def _read_limit(value: object) -> str:
    if value == "":
        return ""
    read_parsed(value, parse_limit, code="amount", length_max=LIMIT_LENGTH_MAX)
    return str(value)


def _read_target(text: str) -> str:
    try:
        return check_target(text)
    except ValueError as exc:
        raise value_error("target", str(exc)) from exc


def _read_targets(value: object, info: ValidationInfo) -> tuple[str, ...]:
    return read_texts(value, info, _read_target, count_max=TARGETS_MAX, length_max=TARGET_LENGTH_MAX)


def _whole(most: int) -> PlainValidator:
    check = in_range(0, most)

    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise value_error("type", "must be an integer")
        return check(value)

    return PlainValidator(read)


_Wallet = Annotated[Address, PlainValidator(_read_wallet)]
_Signature = Annotated[bytes, PlainValidator(_read_signature)]
_Limit = Annotated[str, PlainValidator(_read_limit)]
_Targets = Annotated[tuple[str, ...], PlainValidator(_read_targets)]
_Text = Annotated[str, PlainValidator(lambda value: read_text(value, length_max=256))]
_Nonce = Annotated[int, _whole(NONCE_MAX)]
_Second = Annotated[int, _whole(TIME_MAX_S)]


class PolicyBody(RequestModel):
    """The fifteen members of a policy, as they were signed."""

    owner: _Wallet
    agent: _Wallet
    network: _Text
    gateway: _Text
    currency: _Text
    max_per_call: _Limit
    max_per_hour: _Limit
    max_per_day: _Limit
    max_per_month: _Limit
    max_total: _Limit
    allow: _Targets
    deny: _Targets
    not_before: _Second
    not_after: _Second
    nonce: _Nonce


class BudgetBody(RequestModel):
    """The body of `PUT /budgets/{agent}` by the owner."""

    policy: dict[str, Any]
    signature: _Signature


class AcceptanceBody(RequestModel):
    """The body of `PUT /budgets/{agent}` by the agent: it accepts the owner."""

    owner: _Wallet
    nonce: _Nonce
    signature: _Signature


class RevocationBody(RequestModel):
    """The body of `DELETE /budgets/{agent}`. `unbind`: the wallet has no owner any more, instead of buying nothing. `signature`: of a `PolicyUnbinding` then, otherwise of a
    `PolicyRevocation`."""

    nonce: _Nonce
    signature: _Signature
    unbind: bool = False


def budget_router(context: WebContext) -> Router:
    handlers = _BudgetHandlers(context)
    return Router(
        [
            Route("/api/v2/budgets", handlers.list_owned, methods=["GET"]),
            Route("/api/v2/budgets/{agent}", handlers.show_budgets, methods=["GET"]),
            Route("/api/v2/budgets/{agent}", handlers.put_budget, methods=["PUT"]),
            Route("/api/v2/budgets/{agent}", handlers.delete_budget, methods=["DELETE"]),
        ]
    )


class BudgetActs:
    """What a wallet does with budgets, by JSON or by a form. Each checks the signature, and charges the quota of the wallet, before anything is stored. Safe to call from many tasks at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._budgets, self._limits = context.budgets, context.limits
        self._quota = Quota(
            "policies",
            "policies of owners",
            amount=context.limits.policies_per_hour,
            per="hour",
            rate_limiter=context.rate_limiter,
        )

    async def store_policy(
        self, owner: Address, agent: Address, members: Mapping[str, Any], *, client_address: str
    ) -> Budget:
        """The budget with the policy in `members` (of `BudgetBody`). Raises Refusal."""
        body = read_members(BudgetBody, members)
        policy = read_policy_body(body.policy)
        check_policy(policy, self._context, owner=owner, agent=agent)
        await self._quota.charge(owner, client_address=client_address)
        await self.check_owner(
            policy_digest(policy), body.signature, policy.owner, policy.network, client_address
        )
        stored = await self._budgets.store_policy(
            policy,
            "0x" + body.signature.hex(),
            pending_max=self._limits.pending_budgets_max,
            now_ms=self._context.shared_ms(),
        )
        return self._require(stored)

    async def accept_owner(
        self, agent: Address, members: Mapping[str, Any], *, client_address: str
    ) -> Budget:
        """The budget to which the agent is bound by `members` (of `AcceptanceBody`). Raises Refusal."""
        body = read_members(AcceptanceBody, members)
        await self._quota.charge(agent, client_address=client_address)
        digest = acceptance_digest(
            agent=agent, owner=body.owner, gateway=self._context.origin, nonce=body.nonce
        )
        await self.check_owner(digest, body.signature, agent, "", client_address)
        now_ms = self._context.shared_ms()
        return self._require(
            await self._budgets.accept_owner(agent, body.owner, nonce=body.nonce, now_ms=now_ms)
        )

    async def revoke(
        self, owner: Address, agent: Address, members: Mapping[str, Any], *, client_address: str
    ) -> Budget:
        """The budget without its policy, by `members` (of `RevocationBody`). Raises Refusal."""
        body = read_members(RevocationBody, members)
        known = await self._budgets.find_budget(owner, agent)
        if known is None:
            raise Refusal(NOT_FOUND)
        await self._quota.charge(owner, client_address=client_address)
        write_digest = unbinding_digest if body.unbind else revocation_digest
        digest = write_digest(owner=owner, agent=agent, gateway=self._context.origin, nonce=body.nonce)
        await self.check_owner(digest, body.signature, owner, known.network, client_address)
        revoked = await self._budgets.revoke_policy(
            owner,
            agent,
            nonce=body.nonce,
            is_unbinding=body.unbind,
            now_ms=self._context.shared_ms(),
        )
        return self._require(revoked)

    async def check_owner(
        self, digest: bytes, signature: bytes, signer: Address, network: str, client_address: str
    ) -> None:
        """A contract signs on the chain that its policy names; everything else is signed by a key."""
        if network == "":
            is_signed = recover(digest, signature) == signer
        else:
            is_signed = await self._context.sign_in.is_signed_by(
                signer,
                digest,
                signature,
                chain_id=parse_network(network),
                client_address=client_address,
            )
        if not is_signed:
            detail = f"must be the EIP-712 signature of {signer} for these members at {self._context.origin}"
            raise refuse_fields(FieldError(code="wrong_signer", detail=detail, pointer="/signature"))

    def _require(self, outcome: Budget | NoBudget | NonceTooLow | TooManyPending | BoundToAnother) -> Budget:
        if isinstance(outcome, Budget):
            return outcome
        raise Refusal(_explain(outcome, pending_max=self._limits.pending_budgets_max))


class _BudgetHandlers:
    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._budgets, self._limits = context.budgets, context.limits
        self._acts = BudgetActs(context)

    async def authenticate(self, request: Request) -> Identity:
        identity = await self._context.authenticate(request)
        read_query(NoParameters, request.scope["query_string"])
        return identity

    async def put_budget(self, request: Request) -> JSONResponse:
        caller, agent = await self.authenticate(request), _read_agent(request)
        members, client_address = parse_json_object(await request.body()), client_address_of(request)
        if caller.address == agent:
            return self.answer(await self._acts.accept_owner(agent, members, client_address=client_address))
        return self.answer(
            await self._acts.store_policy(caller.address, agent, members, client_address=client_address)
        )

    async def delete_budget(self, request: Request) -> JSONResponse:
        caller, agent = await self.authenticate(request), _read_agent(request)
        members, client_address = parse_json_object(await request.body()), client_address_of(request)
        return self.answer(
            await self._acts.revoke(caller.address, agent, members, client_address=client_address)
        )

    async def show_budgets(self, request: Request) -> JSONResponse:
        """The one of an owner; the agent sees the one to which it is bound, and the pending ones."""
        caller, agent = await self.authenticate(request), _read_agent(request)
        if caller.address == agent:
            found = await self._budgets.list_budgets(agent, limit=self._limits.pending_budgets_max)
        else:
            own = await self._budgets.find_budget(caller.address, agent)
            found = () if own is None else (own,)
        if not found:
            raise Refusal(NOT_FOUND)
        return self.list_answer(found)

    async def list_owned(self, request: Request) -> JSONResponse:
        caller = await self.authenticate(request)
        return self.list_answer(
            await self._budgets.list_owned(caller.address, limit=self._limits.owned_budgets_max)
        )

    def answer(self, budget: Budget) -> JSONResponse:
        return JSONResponse(budget_json(budget, now_ms=self._context.shared_ms()))

    def list_answer(self, found: tuple[Budget, ...]) -> JSONResponse:
        now_ms = self._context.shared_ms()
        return JSONResponse({"budgets": [budget_json(one, now_ms=now_ms) for one in found]})


def _read_agent(request: Request) -> Address:
    try:
        return Address.parse(request.path_params["agent"])
    except ValueError as exc:
        raise refuse_fields(FieldError(code="malformed", detail=str(exc), parameter="agent")) from exc


def read_policy_body(members: Mapping[str, Any]) -> SpendingPolicy:
    """The policy in a body. Raises Refusal (422) with all errors of form."""
    try:
        body = read_members(PolicyBody, members)
    except Refusal as refusal:
        errors = (_below_policy(error) for error in refusal.problem.errors)
        raise refuse_fields(*errors) from refusal
    return SpendingPolicy(
        owner=body.owner,
        agent=body.agent,
        network=body.network,
        gateway=body.gateway,
        currency=body.currency,
        limits={name: str(members[name]) for name in LIMITS},
        allow=body.allow,
        deny=body.deny,
        not_before=body.not_before,
        not_after=body.not_after,
        nonce=body.nonce,
    )


def _below_policy(error: FieldError) -> FieldError:
    return FieldError(code=error.code, detail=error.detail, pointer=f"/policy{error.pointer or ''}")


def check_policy(policy: SpendingPolicy, context: WebContext, *, owner: Address, agent: Address) -> None:
    """Refuses a policy that contradicts itself, the request or this gateway. Raises Refusal (422) with all errors."""
    found = [*_find_foreign(policy, context, owner=owner, agent=agent)]
    found += find_contradictions(policy, now_s=context.shared_ms() // 1000)
    if found:
        raise refuse_fields(
            *(FieldError(code=one.code, detail=one.detail, pointer=f"/policy/{one.member}") for one in found)
        )


def _find_foreign(
    policy: SpendingPolicy, context: WebContext, *, owner: Address, agent: Address
) -> Iterator[Contradiction]:
    """What belongs to another wallet or another gateway."""
    if policy.owner != owner:
        yield Contradiction("owner", "other_wallet", f"must be the wallet of the request, {owner}")
    if policy.agent != agent:
        yield Contradiction("agent", "other_wallet", f"must be the wallet of the path, {agent}")
    if policy.gateway != context.origin:
        yield Contradiction("gateway", "other_gateway", f"must be {context.origin}")
    currencies = sorted({asset.symbol for asset in context.encoder.assets})
    if policy.currency not in currencies:
        yield Contradiction("currency", "unknown_currency", f"must be one of: {', '.join(currencies)}")
    networks = ["", *map(format_network, sorted(context.rules))]
    if policy.network not in networks:
        detail = f"must be empty for an owner with a key, or for a contract one of: {', '.join(networks[1:])}"
        yield Contradiction("network", "unknown_network", detail)


def _explain(
    outcome: NoBudget | NonceTooLow | TooManyPending | BoundToAnother, *, pending_max: int
) -> Problem:
    match outcome:
        case NoBudget():
            return NOT_FOUND
        case NonceTooLow(nonce=nonce):
            return Problem(
                code=Code.ALREADY_EXISTS,
                detail=f"A nonce counts once and must rise; the highest one here is {nonce}. Sign again with a higher one, such as the time in milliseconds.",
                reason="nonce_not_higher",
                members={"nonce": nonce},
            )
        case TooManyPending():
            detail = f"An owner has at most {pending_max} policies that no agent has accepted. Let the agents accept, or revoke some."
            return Problem(code=Code.VALIDATION_FAILED, detail=detail, reason="too_many_pending")
        case BoundToAnother():
            return Problem(
                code=Code.ALREADY_EXISTS,
                detail="This wallet has accepted another owner. That owner must unbind it first, or the operator of this gateway. An owner that it once accepted keeps the network of its policies.",
                reason="bound_to_another_owner",
            )


def budget_json(budget: Budget, *, now_ms: int) -> dict[str, Any]:
    """A budget as both of its wallets see it. Amounts are decimals in the currency of the policy."""
    current = budget.at(now_ms)
    policy = budget.policy
    return {
        "owner": str(budget.owner),
        "agent": str(budget.agent),
        "state": budget.state_at(now_ms),
        "isBound": budget.bound_ms is not None,
        "nonce": budget.nonce,
        "policy": None if policy is None else policy_members(policy),
        "signature": budget.signature,
        "storedAt": format_time(budget.stored_ms),
        "boundAt": format_time_if(budget.bound_ms),
        "spent": {
            "hour": _amount(current.hour.spent_nano),
            "day": _amount(current.day.spent_nano),
            "month": _amount(current.month.spent_nano),
            "total": _amount(current.total_nano),
        },
        "left": [
            {"limit": name, "amount": _amount(left_nano), "resetsAt": format_time_if(until_ms)}
            for name, left_nano, until_ms in current.list_left()
        ],
    }


def _amount(nano: int) -> str:
    return format_decimal(nano, decimals=LEDGER_DECIMALS_MAX)


NOT_FOUND = Problem(
    code=Code.BUDGET_NOT_FOUND,
    detail="This wallet is neither the agent nor an owner with a policy for that agent.",
)
