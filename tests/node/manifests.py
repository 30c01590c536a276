"""A scope with two collections for tests, and the keys and filters for it."""

import json

from penstock.wire.codec.statuses import Status
from penstock.wire.messages.collections import SetManifest
from penstock.wire.values.collection_key import pack_collection_id

BEERS, ALES, LAGERS = 8, 9, 300  # a scope and its collections; the ids of the collections take one byte and two bytes

DEFAULT = {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}
ALE = {"name": "ales", "uid": f"{ALES:x}"}
LAGER = {"name": "lagers", "uid": f"{LAGERS:x}", "maxTTL": 100}


def set_scopes(client, uid, *scopes):
    assert (
        client.status(SetManifest(value=json.dumps({"uid": f"{uid:x}", "scopes": scopes}).encode())) == Status.SUCCESS
    )


def make_beers(*collections):
    return {"name": "beers", "uid": f"{BEERS:x}", "collections": [*collections]}


def make_key(collection, name=b"k"):
    return pack_collection_id(collection) + name


def make_filter_value(**fields):
    return json.dumps(fields).encode()


def make_collection_filter(*collections):
    return make_filter_value(collections=[f"{collection:x}" for collection in collections])
