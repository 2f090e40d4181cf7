"""What the policy of a wallet's owner leaves for a transfer. The gateway asks the policy when a call claims its price, which is after the transfer: money that no call may
take would stay credit at one payee. So the client reads the policy before, once. What it cannot read decides nothing: the claim does. Pure, but for `PolicyCheck`.
"""

from datetime import UTC, datetime

from tollway.client.call_io import CallIo, PolicyBinding
from tollway.client.errors import PolicyExceeded
from tollway.client.quote import ATTO_DECIMALS, is_symbol, to_atto
from tollway.money import LEDGER_DECIMALS_MAX, Asset, format_decimal
from tollway.spending_policy import LIMITS, is_target_allowed, parse_limit

_NOTHING_PAID = "Nothing was paid. Ask the owner"


class PolicyCheck:
    """Asks for the binding of the wallet at most once."""

    def __init__(self, io: CallIo) -> None:
        self._io = io
        self._is_read = False
        self._binding: PolicyBinding | None = None

    async def find_refusal(self, price: int, asset: Asset) -> PolicyExceeded | None:
        """The failure of a call at this price, in base units, that the policy does not cover; None where it may be covered."""
        if not self._is_read:
            self._is_read, self._binding = True, await self._io.fetch_binding()
        if self._binding is None:
            return None
        cost_nano = -(-to_atto(price, asset) // 10 ** (ATTO_DECIMALS - LEDGER_DECIMALS_MAX))
        return find_policy_refusal(self._binding, cost_nano=cost_nano, currency=asset.symbol)


def find_policy_refusal(binding: PolicyBinding, *, cost_nano: int, currency: str) -> PolicyExceeded | None:
    """As the gateway decides it at a claim (`ledger.budgets.refuse_spending`). A limit in another form is left to the gateway."""
    budget = binding.budget
    policy = budget.policy
    if policy is None or budget.state != "in_force":
        begin = None if policy is None or budget.state != "not_yet" else _parse_second(policy.not_before)
        return PolicyExceeded(
            f"The owner of this wallet has no policy in force here{_until(begin)}, so the wallet buys nothing. {_NOTHING_PAID} for one.",
            reason="no_policy_in_force",
            resets_at=begin,
        )
    if policy.currency != currency:
        known = policy.currency if is_symbol(policy.currency) else None
        return PolicyExceeded(
            f"The policy of this wallet's owner covers no {currency}, only {known or 'another currency'}. {_NOTHING_PAID}.",
            reason="other_currency",
            currency=known,
        )
    targets = binding.targets
    if targets is not None and not is_target_allowed(targets, allow=policy.allow, deny=policy.deny):
        return PolicyExceeded(
            f"The policy of this wallet's owner does not allow this API. {_NOTHING_PAID}, or choose another API.",
            reason="target_not_allowed",
            currency=currency,
        )
    for one in reversed(budget.left):
        try:
            left_nano = parse_limit(one.amount)
        except ValueError:
            continue
        if one.limit in LIMITS and cost_nano > left_nano:
            left = format_decimal(left_nano, decimals=LEDGER_DECIMALS_MAX)
            cost = format_decimal(cost_nano, decimals=LEDGER_DECIMALS_MAX)
            return PolicyExceeded(
                f"The call costs up to {cost} {currency}, and the policy of this wallet's owner has left: {left} {currency} of {one.limit}{_until(one.resets_at)}. {_NOTHING_PAID}, or choose a cheaper call.",
                reason="limit",
                limit=one.limit,
                left=left,
                currency=currency,
                resets_at=one.resets_at,
            )
    return None


def _parse_second(second: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(second, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _until(moment: datetime | None) -> str:
    return "" if moment is None else f" until {moment:%Y-%m-%d %H:%M:%S} UTC"
