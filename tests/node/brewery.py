"""A bucket with the collections `ales` and `lagers`: its manifest, and the keys in it."""

import json

from penstock.wire.messages.collections import SetManifest
from penstock.wire.values.collection_key import pack_collection_id

ALES, LAGERS = 9, 10
MANIFEST = {
    "uid": "1",
    "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
        {"name": "beers", "uid": "8", "collections": [{"name": "ales", "uid": "9"}, {"name": "lagers", "uid": "a"}]},
    ],
}


def prefix_key(collection, key):
    return pack_collection_id(collection) + key


def remove_collection(manifest, name):
    """Return the next manifest, without a collection."""
    scopes = [
        {**scope, "collections": [one for one in scope["collections"] if one["name"] != name]}
        for scope in manifest["scopes"]
    ]
    return {"uid": f"{int(manifest['uid'], 16) + 1:x}", "scopes": scopes}


def set_manifest(client, manifest):
    return client.status(SetManifest(value=json.dumps(manifest).encode()))
