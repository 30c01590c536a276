"""Pages of scopes and collections. The response to a change is the uid of the new manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.digits import read_digits, read_hex_digits
from penstock.errors import UnknownCollection, UnknownScope
from penstock.node.auth.roles import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.http.pages.forms import FormErrors, parse_flag, read_form
from penstock.node.http.pages.http_authentication import Page, PageRequest
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.store.definition.manifest import Collection, Manifest

WAIT_SECONDS = 10.0


async def _list_scopes(request: PageRequest) -> Response:
    return request.make_json_response(_make_manifest_document(request.filter_manifest(request.find_bucket())))


def _make_manifest_document(manifest: Manifest) -> dict[str, Any]:
    scopes = [
        {
            "name": scope.name,
            "uid": f"{scope.id:x}",
            "collections": [_make_collection_document(found) for found in scope.collections],
        }
        for scope in manifest.scopes
    ]
    return {"uid": f"{manifest.uid:x}", "scopes": scopes}


def _make_collection_document(found: Collection) -> dict[str, Any]:
    """Return the document of a collection. maxTTL is 0 for the bucket's default, -1 for no limit."""
    ttl = {None: 0, 0: -1}.get(found.max_ttl, found.max_ttl)
    return {"name": found.name, "uid": f"{found.id:x}", "maxTTL": ttl, "history": found.history}


async def _create_scope(request: PageRequest) -> Response:
    served, form = request.find_bucket(), await _read_fields(request, "name")
    name = form["name"]
    return await _change_manifest(request, served, lambda manifest: _add_scope(manifest, name))


def _add_scope(manifest: Manifest, name: str) -> Manifest:
    if any(scope.name == name for scope in manifest.scopes):
        raise FormErrors({"_": f'Scope with name "{name}" already exists'})
    return manifest.with_scope(name)


async def _drop_scope(request: PageRequest) -> Response:
    name = request.get_path_part("scope")
    return await _change_manifest(request, request.find_bucket(), lambda manifest: manifest.without_scope(name))


async def _create_collection(request: PageRequest) -> Response:
    served, form = request.find_bucket(), await _read_fields(request, "name", "maxTTL", "history")
    scope, name = request.get_path_part("scope"), form["name"]
    ttl, history = _parse_max_ttl(form.get("maxTTL", "0")), form.get("history")
    has_history = bool(served.spec.history_default) if history is None else _parse_history(history)

    def added(manifest: Manifest) -> Manifest:
        if manifest.find_scope(scope).find(name) is not None:
            raise FormErrors({"_": f'Collection with name "{name}" in scope "{scope}" already exists'})
        return manifest.with_collection(scope, name, ttl, has_history)

    return await _change_manifest(request, served, added)


async def _modify_collection(request: PageRequest) -> Response:
    served, form = request.find_bucket(), await _read_fields(request, "maxTTL", "history", required=False)
    scope, name = request.get_path_part("scope"), request.get_path_part("collection")
    ttl = _parse_max_ttl(form["maxTTL"]) if "maxTTL" in form else None
    history = _parse_history(form["history"]) if "history" in form else None

    def modified(manifest: Manifest) -> Manifest:
        found = manifest.find(scope, name)
        after = manifest
        if "maxTTL" in form and found.max_ttl != ttl:
            after = after.with_max_ttl(scope, name, ttl)
        if history is not None and found.history != history:
            after = after.with_history(scope, name, history)
        return after

    return await _change_manifest(request, served, modified)


async def _drop_collection(request: PageRequest) -> Response:
    scope, name = request.get_path_part("scope"), request.get_path_part("collection")
    return await _change_manifest(
        request, request.find_bucket(), lambda manifest: manifest.without_collection(scope, name)
    )


async def _change_manifest(
    request: PageRequest, served: ServedBucket, change: Callable[[Manifest], Manifest]
) -> Response:
    try:
        before = served.store.manifests.current
        after = change(before)
        if after is not before:
            served.change_manifest(after)
        await _wait_for_rollout(served)
    except UnknownScope:
        _refuse_missing(f'Scope with name "{request.get_path_part("scope")}" is not found')
    except UnknownCollection:
        scope, name = request.get_path_part("scope"), request.get_path_part("collection")
        _refuse_missing(f'Collection with name "{name}" in scope "{scope}" is not found')
    return request.make_json_response({"uid": f"{after.uid:x}"})


async def _wait_for_rollout(served: ServedBucket) -> None:
    """Wait until all vbuckets have written the events of the manifest."""
    is_finished = asyncio.Event()
    give_up = served.maintenance.call_after_rollout(lambda _: is_finished.set())
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await is_finished.wait()
    except TimeoutError:
        raise HTTPException(504, f"not all vbuckets have the manifest after {WAIT_SECONDS:g} s") from None
    finally:
        give_up()


def _refuse_missing(reason: str) -> NoReturn:
    raise FormErrors({"_": reason}, status=404)


async def _ensure_manifest(request: PageRequest) -> Response:
    """Answer once the bucket has a manifest, or a later one.

    Returns:
        An empty document.
    """
    served, text = request.find_bucket(), request.get_path_part("uid")
    uid = read_hex_digits(text)
    if uid is None:
        raise FormErrors({"_": f"manifest uid {text[:40]!r}: expected up to 16 hexadecimal digits"})
    changed = asyncio.Event()
    unwatch = served.cluster_map.watch(changed.set)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while served.store.manifests.current.uid < uid:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        raise HTTPException(504, f"no manifest {uid:x} within {WAIT_SECONDS:g} s") from None
    finally:
        unwatch()
    await _wait_for_rollout(served)
    return request.make_json_response({})


# Fields


async def _read_fields(request: PageRequest, *known: str, required: bool = True) -> dict[str, str]:
    form = await read_form(request.http_request)
    wrong = {name: "Unsupported key" for name in form if name not in known}
    if required and "name" not in form:
        wrong["name"] = "The value must be supplied"
    if wrong:
        raise FormErrors(wrong)
    return form


def _parse_max_ttl(text: str) -> int | None:
    """Return the max_ttl of a collection: None (sent as 0) for the bucket's default, 0 (sent as -1) for no limit."""
    if text == "-1":
        return 0
    seconds = read_digits(text, MAX_TTL)
    if seconds is None:
        raise FormErrors({"maxTTL": f"expected a whole number from -1 to {MAX_TTL}, found {text[:40]!r}"})
    return seconds or None


def _parse_history(text: str) -> bool:
    try:
        return parse_flag(text)
    except ValueError as error:
        raise FormErrors({"history": str(error)}) from None


_SCOPES = "/pools/default/buckets/{bucket}/scopes"
_COLLECTIONS = f"{_SCOPES}/{{scope}}/collections"
_MANAGE = Privilege.MANAGE_COLLECTIONS

PAGES = (
    Page("GET", _SCOPES, _list_scopes),
    Page("POST", _SCOPES, _create_scope, _MANAGE),
    Page("POST", f"{_SCOPES}/@ensureManifest/{{uid}}", _ensure_manifest),
    Page("DELETE", f"{_SCOPES}/{{scope}}", _drop_scope, _MANAGE),
    Page("POST", _COLLECTIONS, _create_collection, _MANAGE),
    Page("PATCH", f"{_COLLECTIONS}/{{collection}}", _modify_collection, _MANAGE),
    Page("DELETE", f"{_COLLECTIONS}/{{collection}}", _drop_collection, _MANAGE),
)
