"""Is it alive, may it be sent traffic, and what does an error code mean. Open to all, tiny, and free of secrets."""

import html
from collections.abc import Awaitable, Callable, Mapping, Sequence

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse

from tollway.errors import Code, Problem, Refusal
from tollway.web.problem_pages import PROBLEM_PAGES
from tollway.web.problems import PROBLEM_KINDS

Readiness = Callable[[], Awaitable[Mapping[str, bool]]]
"""Checks by name (`storage`, `chain_8453`, …): true where all is well."""


def health_router(readiness: Readiness) -> APIRouter:
    """`/healthz` (the process), `/readyz` (the process and all it needs), `/problems` and `/problems/{code}`."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})

    @router.get("/readyz")
    async def readyz() -> JSONResponse:
        checks = dict(await readiness())
        failed = [name for name, is_well in checks.items() if not is_well]
        if failed:
            raise Refusal(_not_ready(checks, failed))
        return JSONResponse({"status": "ok", "checks": checks}, headers={"cache-control": "no-store"})

    @router.get("/problems")
    async def list_problems() -> HTMLResponse:
        rows = "".join(
            f'<li><a href="/problems/{_problem_name(code)}"><code>{code.value}</code></a> {html.escape(PROBLEM_KINDS[code].title)}</li>'
            for code in Code
        )
        return HTMLResponse(_page("Problems", f"<ul>{rows}</ul>"))

    @router.get("/problems/{name}")
    async def show_problem(name: str) -> HTMLResponse:
        code = next((code for code in Code if _problem_name(code) == name), None)
        if code is None:
            raise Refusal(Problem(code=Code.ROUTE_NOT_FOUND, detail="There is no such kind of problem."))
        kind, page = PROBLEM_KINDS[code], PROBLEM_PAGES[code]
        again = "The same request, sent again later, can succeed." if kind.is_retryable else ""
        text = (
            f"<p><code>{code.value}</code>, HTTP status {kind.status}.</p>"
            f"<h2>What it means</h2><p>{html.escape(page.meaning)}</p>"
            f"<h2>What to do</h2><p>{html.escape(page.remedy)} {again}</p>"
            '<p><a href="/problems">All problems</a></p>'
        )
        return HTMLResponse(_page(kind.title, text), headers={"cache-control": "public, max-age=3600"})

    return router


def _not_ready(checks: Mapping[str, bool], failed: Sequence[str]) -> Problem:
    """The code of the worst: without its ledger a gateway can do nothing, without a chain it still serves credit."""
    code = Code.OVERLOADED
    if any(name.startswith("chain") for name in failed):
        code = Code.CHAIN_UNAVAILABLE
    if "storage" in failed:
        code = Code.STORAGE_UNAVAILABLE
    return Problem(code=code, detail="Not ready: " + ", ".join(failed), members={"checks": checks})


def _problem_name(code: Code) -> str:
    return code.value.replace("_", "-")


def _page(title: str, text: str) -> str:
    shown = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{shown} - Tollway</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"></head>'
        f"<body><h1>{shown}</h1>{text}</body></html>"
    )
