"""Vbuckets with replication chains, which durable writes need."""

import json

from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SetVbucket
from tests.node.wire_client import connected


def set_states(node, state, *chain):
    """Set the state of all vbuckets of the bucket `beer`, with a replication chain."""
    with connected(node, "beer") as client:
        client.hello(Feature.JSON)
        for vbucket in range(len(node.buckets["beer"].store.vbuckets)):
            value = json.dumps({"topology": [chain]}).encode()
            request = SetVbucket(vbucket=vbucket, state=state, value=value, datatype=Datatype.JSON)
            assert client.status(request) == Status.SUCCESS
