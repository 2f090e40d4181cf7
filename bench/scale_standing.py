"""Quality, ownership and documents of the listings of `scale_rows`: a third has a quality, a fifth a proved origin,
one in ten an OpenAPI document of twenty operations. Pure."""

from functools import lru_cache
from typing import Any

from scale_rows import RARE_LISTINGS, Scale, mix

from tollway.registry.listing import Listing
from tollway.registry.quality import score_listing
from tollway.storage.catalog.catalog_tables import write_document

DAY = 20_400
QUALITY_COLUMNS = ("listing_seq", "calls", "success_ppm", "p50_ms", "p95_ms", "day", "score")
OWNERSHIP_COLUMNS = (
    "listing_seq",
    "origin",
    "method",
    "verified_ms",
    "checked_ms",
    "failures",
    "owned_by_another",
)
DOCUMENT_COLUMNS = ("listing_seq", "openapi")


def quality_row(scale: Scale, number: int) -> tuple[Any, ...] | None:
    """`RARE_LISTINGS` have no failed call, at any scale; most others have few."""
    draw = mix(scale.seed + 7, number)
    if number % max(1, scale.listings // RARE_LISTINGS) == 1:
        return _quality(scale, number, calls=20 + draw % 900, success_ppm=1_000_000, p50_ms=50)
    if draw % 3:
        return None
    success_ppm = 999_000 - (draw >> 8) % 200_000 if draw % 10 else (draw >> 8) % 800_000
    p50_ms = 5 + (draw >> 32) % 400
    return _quality(scale, number, calls=20 + (draw >> 16) % 100_000, success_ppm=success_ppm, p50_ms=p50_ms)


def _quality(scale: Scale, number: int, *, calls: int, success_ppm: int, p50_ms: int) -> tuple[Any, ...]:
    draw = mix(scale.seed + 8, number)
    is_verified = not draw % 4 and bool(draw % 20)
    score = score_listing(calls=calls, success_ppm=success_ppm, is_verified=is_verified)
    return (number, calls, success_ppm, p50_ms, p50_ms * 3, DAY, score)


def ownership_row(scale: Scale, number: int, one: Listing) -> tuple[Any, ...]:
    draw = mix(scale.seed + 8, number)
    origin = one.endpoint.partition("/v1/")[0]
    if draw % 4:
        return (number, origin, None, None, None, 0, draw % 400 == 1)
    verified_ms = None if draw % 20 == 0 else one.created_ms
    return (number, origin, "file", verified_ms, one.created_ms, 0, False)


def document_row(number: int) -> tuple[Any, ...] | None:
    return (number, document()) if number % 10 == 0 else None


@lru_cache(maxsize=1)
def document() -> str:
    """About 8 KB."""
    reading = {
        "type": "object",
        "properties": {"value": {"type": "number"}, "next": {"$ref": "#/components/schemas/Reading"}},
    }
    operation = {
        "summary": "What a station has measured",
        "parameters": [
            {
                "name": "station",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "maxLength": 40},
            },
            {
                "name": "from",
                "in": "query",
                "schema": {"type": "string", "format": "date-time"},
                "example": "2026-01-01T00:00:00Z",
            },
        ],
        "responses": {
            "200": {
                "description": "A reading",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Reading"}}},
            }
        },
    }
    return write_document(
        {
            "openapi": "3.0.3",
            "info": {"title": "Readings", "version": "1"},
            "paths": {f"/kind{number}/{{station}}": {"get": operation} for number in range(20)},
            "components": {"schemas": {"Reading": reading}},
        }
    )
