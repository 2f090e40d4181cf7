"""The edit of a listing by a merge patch (RFC 7396), and the warning about the operations that an edit drops. Pure.

The target of a patch is the stored listing in the form of the create body, and the result is checked whole by the rules of that body. Absent members stay,
`null` sets the default, objects merge, arrays are replaced whole. Two rules are stricter than RFC 7396: a patch cannot carry an OpenAPI document, in which
`null` has a meaning, and as in every edit an endpoint at another origin needs the secret again (`registry.draft`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tollway.errors import FieldError
from tollway.registry.draft import (
    ERRORS_MAX,
    Draft,
    DraftRules,
    ListingBody,
    parse_draft,
)
from tollway.registry.listing import Listing, Operation, write_members
from tollway.registry.listing_fields import FIELDS
from tollway.registry.listing_warnings import ListingWarning
from tollway.registry.paths import path_shape
from tollway.validation import UNKNOWN_NAMED_MAX, to_field_error

KEPT_MEMBERS = tuple(field.member for field in FIELDS if field.is_kept)
"""The members that `parse_draft` keeps where they are absent. They are in the body of a patch only if the patch names them."""

DROPPED_NAMED_MAX = 5


def parse_patch(
    patch: Mapping[str, Any], rules: DraftRules, *, previous: Listing
) -> Draft | tuple[FieldError, ...]:
    """The draft of a listing after a patch, or all errors, at most `ERRORS_MAX`. Pointers name members of the result."""
    target: dict[str, Any] = list_members(previous)
    if "upstreamAuth" in patch:
        target["upstreamAuth"] = _list_secret_members(previous)
    merged = _restore_removed(merge_patch(target, patch), patch)
    draft = parse_draft(merged, rules, previous=previous, given=patch)
    return _join_errors(draft, [*_find_unknown_nulls(patch), *_refuse_patched_document(patch)])


def parse_form(
    members: Mapping[str, Any], rules: DraftRules, *, previous: Listing
) -> Draft | tuple[FieldError, ...]:
    """The draft of a listing after the form of its page, or all errors: as by a patch, and the form can carry an OpenAPI document, which is taken as it is."""
    body = {name: value for name, value in members.items() if name != "openapi"}
    target: dict[str, Any] = list_members(previous)
    if "upstreamAuth" in members:
        target["upstreamAuth"] = _list_secret_members(previous)
    merged = _restore_removed(merge_patch(target, body), members)
    # The form has the whole document and the whole formula: a member that is not there is gone.
    merged |= {name: members[name] for name in ("metering", "openapi") if name in members}
    merged["operations"] = _keep_formulas(merged.get("operations"), target["operations"])
    return parse_draft(merged, rules, previous=previous, given=members)


def _keep_formulas(operations: object, previous: Iterable[Mapping[str, Any]]) -> object:
    """The operations of a form, which has the formulas of a few: each of the others with the one that it had."""
    known = {(one["method"], one["path"]): one["metering"] for one in previous if "metering" in one}
    if not known or not isinstance(operations, list):
        return operations
    return [{"metering": known.get((one.get("method"), one.get("path"))), **one} for one in operations]


def _join_errors(
    draft: Draft | tuple[FieldError, ...], errors: list[FieldError]
) -> Draft | tuple[FieldError, ...]:
    if isinstance(draft, tuple):
        errors = [*errors, *draft]
    elif not errors:
        return draft
    return tuple(dict.fromkeys(errors))[:ERRORS_MAX]


def merge_patch(target: object, patch: object) -> Any:
    """The target after the patch (RFC 7396 §2). The arguments stay as they are. The depth of both is bounded by the parser of the body."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def list_members(listing: Listing) -> dict[str, Any]:
    """The members of the body that describes this listing, without `KEPT_MEMBERS`."""
    return {name: value for name, value in write_members(listing).items() if name not in KEPT_MEMBERS}


def _list_secret_members(listing: Listing) -> dict[str, Any]:
    auth = listing.upstream_auth
    if auth is None:
        return {}
    members = {"in": auth.location, "name": auth.name, "value": auth.value}
    return {name: value for name, value in members.items() if value is not None}


def _restore_removed(body: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`null` removes a kept member, and absence keeps it: the merge has made both the same."""
    removed = {name: None for name in KEPT_MEMBERS if name in patch and patch[name] is None}
    return {**body, **removed}


def _find_unknown_nulls(patch: Mapping[str, Any]) -> list[FieldError]:
    """The errors of unknown members that are null, which the merge has removed."""
    known = ListingBody.member_names()
    unknown = [name for name, value in patch.items() if value is None and name not in known]
    return [
        to_field_error((name[:64],), "unknown_field", "there is no such field")
        for name in unknown[:UNKNOWN_NAMED_MAX]
    ]


def _refuse_patched_document(patch: Mapping[str, Any]) -> list[FieldError]:
    if patch.get("openapi") is None:
        return []
    detail = (
        "a patch can only remove the document with null; give openapiUrl, or replace the listing with PUT"
    )
    return [FieldError(code="not_patchable", detail=detail, pointer="/openapi")]


def list_dropped_operations(listing: Listing, previous: Listing) -> tuple[Operation, ...]:
    kept = {(one.method, path_shape(one.path)) for one in listing.operations}
    return tuple(one for one in previous.operations if (one.method, path_shape(one.path)) not in kept)


def warn_about_edit(listing: Listing, previous: Listing) -> tuple[ListingWarning, ...]:
    """A dry run has the same warnings."""
    return (
        *warn_about_dropped(list_dropped_operations(listing, previous)),
        *_warn_about_kept_prices(listing, previous),
    )


def warn_about_dropped(dropped: Iterable[Operation]) -> tuple[ListingWarning, ...]:
    """Returns no warning where nothing is dropped."""
    names = _list_names(f"{one.method} {one.path}" for one in dropped)
    if not names:
        return ()
    detail = (
        f"The edit drops operations with a price of their own: {names}. Their price can apply "
        "for ten more minutes. PATCH changes only the members that it names."
    )
    return (ListingWarning(code="operations_dropped", detail=detail, pointer="/operations"),)


def _warn_about_kept_prices(listing: Listing, previous: Listing) -> tuple[ListingWarning, ...]:
    """Operations whose own price an edit of `pricePerRequest` does not change."""
    if listing.price.nano == previous.price.nano:
        return ()
    earlier = {(one.method, path_shape(one.path), one.price.nano) for one in previous.operations}
    kept = [
        f"{one.method} {one.path} {one.price.text} {listing.currency}"
        for one in listing.operations
        if (one.method, path_shape(one.path), one.price.nano) in earlier
        and one.price.nano != listing.price.nano
    ]
    if not kept:
        return ()
    detail = (
        f"The new pricePerRequest does not apply to operations with a price of their own, which they keep: {_list_names(kept)}. "
        "To change them too, send operations with the new prices."
    )
    return (ListingWarning(code="operation_prices_kept", detail=detail, pointer="/operations"),)


def _list_names(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - DROPPED_NAMED_MAX
    return ", ".join(listed[:DROPPED_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
