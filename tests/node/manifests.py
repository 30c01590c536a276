"""A scope with two collections, and how requests name them."""

import json

from penstock.wire.codec.statuses import Status
from penstock.wire.messages.collections import SetManifest
from penstock.wire.values.collection_key import pack_collection_id

BEERS, ALES, LAGERS = 8, 9, 300  # a scope, and its collections: one whose id takes a byte, one whose id takes two

DEFAULT = {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}
ALE = {"name": "ales", "uid": f"{ALES:x}"}
LAGER = {"name": "lagers", "uid": f"{LAGERS:x}", "maxTTL": 100}


def give(client, uid, *scopes):
    assert (
        client.status(SetManifest(value=json.dumps({"uid": f"{uid:x}", "scopes": scopes}).encode())) == Status.SUCCESS
    )


def beers(*collections):
    return {"name": "beers", "uid": f"{BEERS:x}", "collections": [*collections]}


def key(collection, name=b"k"):
    return pack_collection_id(collection) + name


def make_filter_value(**fields):
    return json.dumps(fields).encode()


def ids(*collections):
    return make_filter_value(collections=[f"{collection:x}" for collection in collections])
