"""Scopes and collections over HTTP. Each change answers with the uid of the manifest that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.errors import InvalidArguments, StatusError, UnknownCollection, UnknownScope
from penstock.node.auth.roles import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.http.pages.forms import FormErrors, flag, read_form
from penstock.node.http.pages.http_authentication import Page, Visit
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.store.definition.manifest import Collection, Manifest

__all__ = ["PAGES"]

WAIT_SECONDS = 10.0
_LARGEST_UID = 16  # digits


async def _scopes(visit: Visit) -> Response:
    return visit.json(_said(visit.manifest(visit.bucket())))


def _said(manifest: Manifest) -> dict[str, Any]:
    scopes = [
        {"name": scope.name, "uid": f"{scope.id:x}", "collections": [_collection(found) for found in scope.collections]}
        for scope in manifest.scopes
    ]
    return {"uid": f"{manifest.uid:x}", "scopes": scopes}


def _collection(found: Collection) -> dict[str, Any]:
    """maxTTL: 0 for what the bucket says, -1 for none at all."""
    ttl = {None: 0, 0: -1}.get(found.max_ttl, found.max_ttl)
    return {"name": found.name, "uid": f"{found.id:x}", "maxTTL": ttl, "history": found.history}


async def _create_scope(visit: Visit) -> Response:
    served, form = visit.bucket(), await _form(visit, "name")
    name = form["name"]
    return await _change(visit, served, lambda manifest: _with_scope(manifest, name))


def _with_scope(manifest: Manifest, name: str) -> Manifest:
    if any(scope.name == name for scope in manifest.scopes):
        raise FormErrors({"_": f'Scope with name "{name}" already exists'})
    return manifest.with_scope(name)


async def _drop_scope(visit: Visit) -> Response:
    name = visit.argument("scope")
    return await _change(visit, visit.bucket(), lambda manifest: manifest.without_scope(name))


async def _create_collection(visit: Visit) -> Response:
    served, form = visit.bucket(), await _form(visit, "name", "maxTTL", "history")
    scope, name = visit.argument("scope"), form["name"]
    ttl, history = _max_ttl(form.get("maxTTL", "0")), _history(form.get("history", "0"))

    def added(manifest: Manifest) -> Manifest:
        if manifest.find_scope(scope).find(name) is not None:
            raise FormErrors({"_": f'Collection with name "{name}" in scope "{scope}" already exists'})
        return manifest.with_collection(scope, name, ttl, history)

    return await _change(visit, served, added)


async def _modify_collection(visit: Visit) -> Response:
    served, form = visit.bucket(), await _form(visit, "maxTTL", "history", required=False)
    scope, name = visit.argument("scope"), visit.argument("collection")
    ttl = _max_ttl(form["maxTTL"]) if "maxTTL" in form else None
    history = _history(form["history"]) if "history" in form else None

    def modified(manifest: Manifest) -> Manifest:
        found = manifest.find(scope, name)
        after = manifest
        if "maxTTL" in form and found.max_ttl != ttl:
            after = after.with_max_ttl(scope, name, ttl)
        if history is not None and found.history != history:
            after = after.with_history(scope, name, history)
        return after

    return await _change(visit, served, modified)


async def _drop_collection(visit: Visit) -> Response:
    scope, name = visit.argument("scope"), visit.argument("collection")
    return await _change(visit, visit.bucket(), lambda manifest: manifest.without_collection(scope, name))


async def _change(visit: Visit, served: ServedBucket, change: Callable[[Manifest], Manifest]) -> Response:
    before = served.store.manifests.current
    try:
        after = change(before)
        if after is not before:
            served.change_manifest(after)
            await _spread(served)
    except UnknownScope:
        _missing(f'Scope with name "{visit.argument("scope")}" is not found')
    except UnknownCollection:
        scope, name = visit.argument("scope"), visit.argument("collection")
        _missing(f'Collection with name "{name}" in scope "{scope}" is not found')
    except InvalidArguments as error:
        raise FormErrors({"_": str(error)}) from None
    except StatusError as error:
        raise HTTPException(503, str(error)) from None
    return visit.json({"uid": f"{after.uid:x}"})


async def _spread(served: ServedBucket) -> None:
    """Wait until all vbuckets have written the events of the manifest, as long as the bucket is there."""
    spread = asyncio.Event()
    give_up = served.upkeep.when_spread(lambda _: spread.set())
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await spread.wait()
    except TimeoutError:
        raise HTTPException(504, f"not all vbuckets have the manifest after {WAIT_SECONDS:g} s") from None
    finally:
        give_up()


def _missing(why: str) -> NoReturn:
    raise FormErrors({"_": why}, status=404)


async def _ensure(visit: Visit) -> Response:
    """Answer once the bucket has a manifest, or a later one."""
    served, text = visit.bucket(), visit.argument("uid")
    try:
        uid = int(text, 16)
    except ValueError:
        uid = -1
    if uid < 0 or len(text) > _LARGEST_UID:
        raise FormErrors({"_": f"manifest uid {text[:40]!r}: expected up to {_LARGEST_UID} hexadecimal digits"})
    changed = asyncio.Event()
    unwatch = served.map.watch(changed.set)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while served.store.manifests.current.uid < uid:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        raise HTTPException(504, f"no manifest {uid:x} within {WAIT_SECONDS:g} s") from None
    finally:
        unwatch()
    await _spread(served)
    return visit.json({})


# Fields


async def _form(visit: Visit, *known: str, required: bool = True) -> dict[str, str]:
    form = await read_form(visit.request)
    wrong = {name: "Unsupported key" for name in form if name not in known}
    if required and "name" not in form:
        wrong["name"] = "The value must be supplied"
    if wrong:
        raise FormErrors(wrong)
    return form


def _max_ttl(text: str) -> int | None:
    """Return what a collection is to have: 0 leaves it to the bucket, -1 is none at all."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10 and -1 <= int(text) <= MAX_TTL):
        raise FormErrors({"maxTTL": f"expected a whole number from -1 to {MAX_TTL}, found {text[:40]!r}"})
    return {0: None, -1: 0}.get(int(text), int(text))


def _history(text: str) -> bool:
    try:
        return flag(text)
    except ValueError as error:
        raise FormErrors({"history": str(error)}) from None


_SCOPES = "/pools/default/buckets/{bucket}/scopes"
_COLLECTIONS = f"{_SCOPES}/{{scope}}/collections"
_MANAGE = Privilege.MANAGE_COLLECTIONS

PAGES = (
    Page("GET", _SCOPES, _scopes),
    Page("POST", _SCOPES, _create_scope, _MANAGE),
    Page("POST", f"{_SCOPES}/@ensureManifest/{{uid}}", _ensure),
    Page("DELETE", f"{_SCOPES}/{{scope}}", _drop_scope, _MANAGE),
    Page("POST", _COLLECTIONS, _create_collection, _MANAGE),
    Page("PATCH", f"{_COLLECTIONS}/{{collection}}", _modify_collection, _MANAGE),
    Page("DELETE", f"{_COLLECTIONS}/{{collection}}", _drop_collection, _MANAGE),
)
