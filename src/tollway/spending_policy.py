"""Signed spending policies: what an owner lets the wallet of an agent spend at one gateway, and the EIP-712 digests that owner and agent sign. Pure.

Everything is typed data in the domain Tollway, version 1, without a chain: a person signs it with any network active in the wallet. A changed list of fields, or a changed
meaning of one, is a new version of the domain; that windows are the UTC hour, day and calendar month of the claim is a part of version 1. The callers' client imports this module.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from pydantic_core import from_json

from tollway.ids import Address, keccak256
from tollway.money import LEDGER_DECIMALS_MAX, UNITS_MAX

LIMITS: Final = ("maxPerCall", "maxPerHour", "maxPerDay", "maxPerMonth", "maxTotal")
"""From the shortest to the longest."""
TARGETS_MAX: Final = 64
"""The maximum of `allow` and of `deny`."""
TIME_MAX_S: Final = 253_402_300_799
"""The end of the year 9999."""
NONCE_MAX: Final = 2**53 - 1
"""The largest integer that JSON carries exactly; unix milliseconds are far below."""
LIMIT_LENGTH_MAX: Final = 32

FIELDS: Final[Mapping[str, str]] = {
    "owner": "address",
    "agent": "address",
    "network": "string",
    "gateway": "string",
    "currency": "string",
    **dict.fromkeys(LIMITS, "string"),
    "allow": "string[]",
    "deny": "string[]",
    "notBefore": "uint256",
    "notAfter": "uint256",
    "nonce": "uint256",
}
ACCEPTANCE_FIELDS: Final[Mapping[str, str]] = {
    "agent": "address",
    "owner": "address",
    "gateway": "string",
    "nonce": "uint256",
}
REVOCATION_FIELDS: Final[Mapping[str, str]] = {
    "owner": "address",
    "agent": "address",
    "gateway": "string",
    "nonce": "uint256",
}
POLICY_TYPES: Final[Mapping[str, Mapping[str, str]]] = {
    "SpendingPolicy": FIELDS,
    "PolicyAcceptance": ACCEPTANCE_FIELDS,
    "PolicyRevocation": REVOCATION_FIELDS,
    "PolicyUnbinding": REVOCATION_FIELDS,
}
_DOMAIN_MEMBERS: Final = {"name": "Tollway", "version": "1"}

_LIMIT = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+))?")
_TARGET = re.compile(r"api:[A-Za-z0-9_]{1,64}|tag:\S(?:.{0,30}\S)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingPolicy:
    """The members of a signed policy, with the texts as they were signed. `limits`: by the names of `LIMITS`; empty for none.

    `network`: empty for an owner with a key, CAIP-2 for a contract. `allow` and `deny` name targets: `api:<id>`, `provider:<address>`, `tag:<tag>`; an empty
    `allow` is every API, and `deny` wins. Times in unix seconds; `not_before` 0 is at once.
    """

    owner: Address
    agent: Address
    network: str
    gateway: str
    currency: str
    limits: Mapping[str, str]
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    not_before: int
    not_after: int
    nonce: int

    def limit_nano(self, name: str) -> int | None:
        """A limit in 10^-9 of the currency; None for none."""
        text = self.limits[name]
        return None if text == "" else parse_limit(text)


def parse_limit(text: str) -> int:
    """A decimal string in 10^-9, rounded down. Raises ValueError for another text, and for more than a balance can hold."""
    match = _LIMIT.fullmatch(text) if len(text) <= LIMIT_LENGTH_MAX else None
    if match is None:
        raise ValueError("must be a decimal string such as 0.05, or empty for no limit")
    nano: int = int(match[1]) * 10**LEDGER_DECIMALS_MAX + int((match[2] or "").ljust(9, "0")[:9])
    if nano > UNITS_MAX:
        raise ValueError(f"must be at most {UNITS_MAX // 10**LEDGER_DECIMALS_MAX}")
    return nano


def check_target(text: str) -> str:
    """Returns the target. Raises ValueError where it has another form, or an address that is not in EIP-55."""
    kind, _, name = text.partition(":")
    is_provider = kind == "provider" and str(Address.parse(name)) == name
    if not is_provider and _TARGET.fullmatch(text) is None:
        raise ValueError("must be api:<id>, provider:<address in EIP-55> or tag:<tag>")
    return text


def name_targets(listing_id: str, provider: object, tags: Iterable[str]) -> frozenset[str]:
    """What `allow` and `deny` of a policy may call a listing. `provider`: an address, or its text in EIP-55."""
    return frozenset({f"api:{listing_id}", f"provider:{provider}", *(f"tag:{tag}" for tag in tags)})


def is_target_allowed(targets: frozenset[str], *, allow: Collection[str], deny: Collection[str]) -> bool:
    """Whether a policy with these lists covers a listing that has these names."""
    return targets.isdisjoint(deny) and not (allow and targets.isdisjoint(allow))


# ---- Contradictions.


class Contradiction(NamedTuple):
    """What no claim could follow. `member`: of the policy."""

    member: str
    code: str
    detail: str


def find_contradictions(policy: SpendingPolicy, *, now_s: int) -> Iterator[Contradiction]:
    """Each limit and each target of the policy has its form already."""
    if policy.owner == policy.agent:
        yield Contradiction("agent", "own_wallet", "must be another wallet than owner")
    given = [(name, nano) for name in LIMITS if (nano := policy.limit_nano(name)) is not None]
    if not given:
        yield Contradiction("maxTotal", "no_limit", f"at least one of {', '.join(LIMITS)} must be given")
    for (name, nano), (longer, longer_nano) in pairwise(given):
        if nano > longer_nano:
            yield Contradiction(name, "above_longer_limit", f"must not be above {longer}")
    for member, targets in (("allow", policy.allow), ("deny", policy.deny)):
        if list(targets) != sorted(set(targets)):
            yield Contradiction(member, "not_sorted", "must be sorted, each target once")
    if not set(policy.allow).isdisjoint(policy.deny):
        yield Contradiction("deny", "in_both_lists", "must not name a target of allow")
    if policy.not_after <= policy.not_before:
        yield Contradiction("notAfter", "before_begin", "must be after notBefore")
    elif policy.not_after <= now_s:
        yield Contradiction("notAfter", "expired", "must be in the future")


# ---- Texts.


def policy_members(policy: SpendingPolicy) -> dict[str, object]:
    """The members under the names and in the order in which they are signed."""
    return {
        "owner": str(policy.owner),
        "agent": str(policy.agent),
        "network": policy.network,
        "gateway": policy.gateway,
        "currency": policy.currency,
        **policy.limits,
        "allow": list(policy.allow),
        "deny": list(policy.deny),
        "notBefore": policy.not_before,
        "notAfter": policy.not_after,
        "nonce": policy.nonce,
    }


def write_policy(policy: SpendingPolicy) -> str:
    """The policy as stored text."""
    return json.dumps(policy_members(policy), separators=(",", ":"))


@lru_cache(maxsize=1024)  # each claim of a bound wallet reads its policy
def read_policy(text: str) -> SpendingPolicy:
    """Reads the text of `write_policy`."""
    members = from_json(text)
    return SpendingPolicy(
        owner=Address.parse(members["owner"]),
        agent=Address.parse(members["agent"]),
        network=members["network"],
        gateway=members["gateway"],
        currency=members["currency"],
        limits={name: members[name] for name in LIMITS},
        allow=tuple(members["allow"]),
        deny=tuple(members["deny"]),
        not_before=members["notBefore"],
        not_after=members["notAfter"],
        nonce=members["nonce"],
    )


# ---- Digests.


def policy_digest(policy: SpendingPolicy) -> bytes:
    """What the owner signs: EIP-712 `SpendingPolicy`."""
    return typed_digest("SpendingPolicy", policy_members(policy))


def acceptance_digest(*, agent: Address, owner: Address, gateway: str, nonce: int) -> bytes:
    """What the agent signs: EIP-712 `PolicyAcceptance`."""
    members = {"agent": agent, "owner": owner, "gateway": gateway, "nonce": nonce}
    return typed_digest("PolicyAcceptance", members)


def revocation_digest(*, owner: Address, agent: Address, gateway: str, nonce: int) -> bytes:
    """What the owner signs to revoke: EIP-712 `PolicyRevocation`."""
    members = {"owner": owner, "agent": agent, "gateway": gateway, "nonce": nonce}
    return typed_digest("PolicyRevocation", members)


def unbinding_digest(*, owner: Address, agent: Address, gateway: str, nonce: int) -> bytes:
    """What the owner signs to unbind the wallet of the agent, which then spends without a policy: EIP-712 `PolicyUnbinding`. Another type than that of a revocation: a signature
    that stops an agent must never free it."""
    members = {"owner": owner, "agent": agent, "gateway": gateway, "nonce": nonce}
    return typed_digest("PolicyUnbinding", members)


def typed_digest(primary_type: str, members: Mapping[str, object]) -> bytes:
    """What a wallet signs for a message of one of `POLICY_TYPES`."""
    return _digest(primary_type, POLICY_TYPES[primary_type], members)


def write_typed_data(primary_type: str, members: Mapping[str, object]) -> dict[str, object]:
    """The parameter of `eth_signTypedData_v4` for a message of one of `POLICY_TYPES`."""
    fields = {
        "EIP712Domain": dict.fromkeys(_DOMAIN_MEMBERS, "string"),
        primary_type: POLICY_TYPES[primary_type],
    }
    return {
        "types": {
            name: [{"name": field, "type": kind} for field, kind in members_of.items()]
            for name, members_of in fields.items()
        },
        "primaryType": primary_type,
        "domain": {**_DOMAIN_MEMBERS},
        "message": members,
    }


def hash_type(name: str, fields: Mapping[str, str]) -> bytes:
    return keccak256(f"{name}({','.join(f'{kind} {field}' for field, kind in fields.items())})".encode())


def _digest(name: str, fields: Mapping[str, str], members: Mapping[str, object]) -> bytes:
    words = [hash_type(name, fields), *(_encode(kind, members[field]) for field, kind in fields.items())]
    return keccak256(b"\x19\x01" + _DOMAIN + keccak256(b"".join(words)))


def _encode(kind: str, value: object) -> bytes:
    match kind, value:
        case "address", str() | bytes():
            address = value if isinstance(value, bytes) else bytes(Address.parse(value))
            return address.rjust(32, b"\0")
        case "string", str():
            return keccak256(value.encode())
        case "string[]", list():
            return keccak256(b"".join(_hash_each(value)))
        case "uint256", int():
            return value.to_bytes(32, "big")
        case _:
            raise TypeError(f"{value!r} is no {kind}")


def _hash_each(texts: Iterable[str]) -> Iterator[bytes]:
    return (keccak256(text.encode()) for text in texts)


_DOMAIN = keccak256(
    keccak256(b"EIP712Domain(string name,string version)") + keccak256(b"Tollway") + keccak256(b"1")
)
