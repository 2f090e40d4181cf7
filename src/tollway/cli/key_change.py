"""Commands for a change of `secret_key`: under which keys sealed values stand, and sealing them anew under the one in use.

They never show a key, never make one, and change nothing but seals.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tollway.cli.operate import (
    FAILED,
    LATER,
    Access,
    AsJson,
    CommandFailed,
    Config,
    OperatorEnvironment,
    explained_failures,
    guard_database,
    print_result,
)
from tollway.config.settings import Settings, load_settings
from tollway.storage.database import connect_database
from tollway.storage.encryption import Sealer
from tollway.storage.key_rotation import KeyRotation, SealCount, SealSurvey

PASSES_MAX = 5
"""What a gateway was busy with is found by the next one."""


def register_key_change(group: typer.Typer, *, environment: OperatorEnvironment | None = None) -> None:
    """Adds the commands. `environment`: whether two processes may write to one SQLite file."""
    environment = environment or OperatorEnvironment()

    @group.command()
    def status(config: Config = None, as_json: AsJson = False) -> None:
        """Tells under which keys the secrets of listings and stored answers stand. Changes nothing."""

        async def work(rotation: KeyRotation, keys: int) -> None:
            _KeyReport(keys=keys, survey=await rotation.survey()).show(as_json)

        _run_with_keys(work, environment, config, as_json=as_json, access="read")

    @group.command()
    def reseal(config: Config = None, as_json: AsJson = False) -> None:
        """Seals everything anew under the first key. Safe to run again, and while gateways serve."""

        async def work(rotation: KeyRotation, keys: int) -> None:
            resealed = 0
            for _ in range(PASSES_MAX):
                resealed += await rotation.reseal()
                survey = await rotation.survey()
                if not survey.older:
                    break
            _KeyReport(keys=keys, survey=survey, resealed=resealed).show(as_json)
            if survey.older:
                raise typer.Exit(LATER)

        _run_with_keys(work, environment, config, as_json=as_json, access="write")


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyReport:
    """`keys`: how many are known. `resealed` None: nobody was asked to."""

    keys: int
    survey: SealSurvey
    resealed: int | None = None

    def show(self, as_json: bool) -> None:
        """Exits with 1 where a listing's secret opens with no key."""
        secrets_, answers = self.survey.secrets, self.survey.answers
        answer: dict[str, Any] = {
            "keys": self.keys,
            "listingSecrets": _count_json(secrets_),
            "storedAnswers": _count_json(answers),
        }
        if self.resealed is not None:
            answer["resealed"] = self.resealed
        print_result(answer, self._describe(), as_json)
        if secrets_.lost:
            raise typer.Exit(FAILED)

    def _describe(self) -> list[str]:
        lines = [] if self.resealed is None else [f"{self.resealed} sealed anew under the first key"]
        lines.append(f"secrets of listings: {_format_count(self.survey.secrets)}")
        lines.append(f"stored answers: {_format_count(self.survey.answers)}")
        if self.survey.secrets.lost:
            listings = ", ".join(self.survey.secrets.lost_ids)
            lines.append(
                f"put the key back that these were sealed with, or have their providers set them again: {listings}"
            )
        if self.survey.older:
            lines.append(
                "older keys are still needed; when every gateway has the new key first: tollway secrets reseal"
            )
        elif self.keys > 1:
            lines.append("nothing is sealed under an older key")
        return lines


def _format_count(count: SealCount) -> str:
    return f"{count.current} under the first key, {count.older} under an older one, {count.lost} under none that is known"


def _count_json(count: SealCount) -> dict[str, Any]:
    return {
        "current": count.current,
        "older": count.older,
        "lost": count.lost,
        "lostIds": list(count.lost_ids),
    }


def _run_with_keys(
    work: Callable[[KeyRotation, int], Awaitable[None]],
    environment: OperatorEnvironment,
    config: Path | None,
    *,
    as_json: bool,
    access: Access,
) -> None:
    with explained_failures(as_json=as_json):
        settings = load_settings(os.environ, config=config)
        if not settings.secret_keys:
            raise CommandFailed(
                f"there is no key at {settings.secret_key_file} yet; the first start makes one"
            )
        asyncio.run(_use_keys(work, settings, environment, access))


async def _use_keys(
    work: Callable[[KeyRotation, int], Awaitable[None]],
    settings: Settings,
    environment: OperatorEnvironment,
    access: Access,
) -> None:
    """No rooms are furnished for this: it needs the database and the keys."""
    database = connect_database(settings.database_url.reveal())
    with guard_database(database, access, environment):
        if access == "write":
            await database.open()
        try:
            key, *others = [key.reveal() for key in settings.secret_keys]
            sealer = Sealer(key, others=others, entropy=secrets.token_bytes)
            await work(KeyRotation(database, sealer=sealer), 1 + len(others))
        finally:
            await database.close()
