"""`tollway gateway secrets`: the operator's command for a change of `secret_key`. It counts stored values by the key that they are encrypted with, or
encrypts them again with the first key.

It never prints a key, never makes one, and changes nothing but the encryption of stored values.
"""

import os
from enum import StrEnum
from typing import Annotated, Any

import typer

from tollway.cli.operator import (
    FAILED,
    LATER,
    CommandFailed,
    Operator,
    Reason,
    make_origin,
    operator_command,
)
from tollway.storage.engine.database import connect_database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.operator.key_rotation import KeyCounts, KeyRotation, SealCount

PASSES_MAX = 5
"""A later pass takes the rows that a gateway held locked."""


class SecretsAction(StrEnum):
    STATUS = "status"
    REENCRYPT = "reencrypt"


@operator_command
async def count_or_reencrypt(
    operator: Operator,
    action: Annotated[
        SecretsAction,
        typer.Argument(help="`status` changes nothing; `reencrypt` encrypts again with the first key."),
    ] = SecretsAction.STATUS,
    reason: Reason = "",
) -> None:
    """Gateways may serve meanwhile. A run that is interrupted loses nothing: run it again."""
    origin, settings = make_origin(reason), operator.load_settings()
    if not settings.secret_keys:
        raise CommandFailed(f"there is no key at {settings.secret_key_file} yet; the first start makes one")
    # Without the app: this needs the database and the keys alone.
    database = connect_database(settings.database_url.get_secret_value())
    key, *others = [key.get_secret_value() for key in settings.secret_keys]
    rotation = KeyRotation(database, sealer=Sealer(key, others=others, entropy=os.urandom))
    reencrypted = None if action is SecretsAction.STATUS else 0
    async with operator.open_database(database, "read" if reencrypted is None else "write"):
        if reencrypted is None:
            counts = await rotation.count()
        else:
            for _ in range(PASSES_MAX):
                counts = await rotation.reencrypt(origin=origin)
                reencrypted += counts.reencrypted
                if not counts.older:
                    break
    _print_key_counts(operator, counts, keys=1 + len(others), reencrypted=reencrypted)
    if counts.older and reencrypted is not None:
        raise typer.Exit(LATER)


def _print_key_counts(operator: Operator, counts: KeyCounts, *, keys: int, reencrypted: int | None) -> None:
    """Exits with 1 when no key opens the secret of a listing. `keys`: the number of known keys. `reencrypted` None: the command only counted."""
    answer: dict[str, Any] = {
        "keys": keys,
        "listingSecrets": _count_json(counts.secrets),
        "storedResponses": _count_json(counts.responses),
    }
    lines = [
        f"secrets of listings: {_format_count(counts.secrets)}",
        f"stored responses: {_format_count(counts.responses)}",
    ]
    if reencrypted is not None:
        answer["reencrypted"] = reencrypted
        lines.insert(0, f"{reencrypted} encrypted again with the first key")
    if counts.secrets.lost:
        listings = ", ".join(counts.secrets.lost_ids)
        lines.append(
            f"No key opens the secrets of these listings: {listings}. Put the missing key behind the first one, or ask their providers "
            "to set the secrets again."
        )
    if counts.older and reencrypted is None:
        lines.append(
            "Older keys are still needed. When every gateway has the new key first, run: tollway gateway secrets reencrypt"
        )
    elif counts.older:
        lines.append("Gateways were writing to the rest. Run it again: tollway gateway secrets reencrypt")
    elif keys > 1:
        lines.append(
            "No value needs an older key. An hour after the last restart you can remove the older keys."
        )
    operator.print(answer, lines)
    if counts.secrets.lost:
        raise typer.Exit(FAILED)


def _format_count(count: SealCount) -> str:
    return (
        f"{count.current} with the first key, {count.older} with an older key, {count.lost} with no known key"
    )


def _count_json(count: SealCount) -> dict[str, Any]:
    return {
        "current": count.current,
        "older": count.older,
        "lost": count.lost,
        "lostIds": count.lost_ids,
    }
