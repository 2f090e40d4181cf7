"""OpenAPI documents of providers, and their parts; every member can be given."""

from typing import Any


def openapi_document(paths: Any, version: str = "3.1.0", **members: Any) -> dict[str, Any]:
    return {"openapi": version, "info": {"title": "T", "version": "1"}, "paths": paths, **members}


def parameter(name: str, schema: Any = None, **members: Any) -> dict[str, Any]:
    """A parameter of the query, where `members` has no other place."""
    return {"name": name, "in": "query", **({} if schema is None else {"schema": schema}), **members}


def request_body(schema: Any, media_type: str = "application/json", **members: Any) -> dict[str, Any]:
    return {"content": {media_type: {"schema": schema}}, **members}
