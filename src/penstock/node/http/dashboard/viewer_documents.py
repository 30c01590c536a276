"""The documents of the dashboard that a node makes: a bucket and its node, as one user may see them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from penstock.client.dashboard.bucket_totals import make_totals
from penstock.client.dashboard.dashboard_document import (
    AccountRow,
    CollectionRow,
    DashboardDocument,
    DemandedRollbackRow,
    NodeFacts,
    NodeRow,
    ViewerFacts,
)
from penstock.client.dashboard.document_view import DocumentView
from penstock.node.auth.roles import Privilege, User
from penstock.node.buckets.rollback_log import DemandedRollback
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.own_map import dump_json, insert_host
from penstock.node.cluster.release import VERSION
from penstock.node.http.dashboard.bucket_sampler import BucketSampler
from penstock.node.http.pages import http_documents
from penstock.node.http.pages.http_authentication import PageRequest

MAX_USERS: Final = 200


class ViewerDocuments:
    """Makes the documents of one viewer: the first one is complete, later ones have only the vbuckets that changed.

    Args:
        request: the request of the viewer.
        sampler: samples the bucket.
    """

    def __init__(self, request: PageRequest, sampler: BucketSampler) -> None:
        self._request = request
        self._sampler = sampler
        self._view = DocumentView()

    async def make_next(self) -> DashboardDocument:
        """Return the next document."""
        sample = await self._sampler.take_sample()
        request, bucket, node = self._request, self._sampler.bucket, self._request.node
        is_complete = self._view.is_new
        vbuckets, points = self._view.take_new(sample.vbuckets, self._sampler.points, sample.at)
        return DashboardDocument(
            complete=is_complete,
            at=sample.at,
            seconds=self._sampler.seconds,
            node=NodeFacts(
                version=VERSION,
                uptime=node.loop.time() - node.started_at,
                address=node.place.address.replace("$HOST", request.host),
            ),
            user=_describe_user(request, bucket),
            buckets=[name for name in node.buckets if request.user.has_privilege(Privilege.SIMPLE_STATS, name)],
            bucket=bucket.store.name,
            kind=bucket.spec.kind,
            on_disk=bucket.store.log.durable,
            stats=sample.stats,
            totals=make_totals([sample.stats]),
            vbuckets=vbuckets,
            endpoints=sample.endpoints,
            points=points,
            timings=sample.timings,
            commands=sample.commands,
            rollbacks=[_describe_rollback(one) for one in bucket.rollbacks.list_newest()],
            rollback_count=bucket.rollbacks.total,
            collections=_list_collections(request, self._sampler),
            nodes=_list_nodes(request, bucket),
            users=_list_users(request),
        )


def _describe_user(request: PageRequest, bucket: ServedBucket) -> ViewerFacts:
    user, name = request.user, bucket.store.name
    return ViewerFacts(
        user.name,
        [str(role) for role in user.roles],
        may_read_changes=user.has_privilege(Privilege.STREAM, name),
        may_end_streams=user.has_privilege(Privilege.SETTINGS, name),
    )


def _describe_rollback(rollback: DemandedRollback) -> DemandedRollbackRow:
    log = [(str(entry.vbuuid), entry.seqno) for entry in rollback.failover_log]
    return DemandedRollbackRow(**(rollback._asdict() | {"vbuuid": str(rollback.vbuuid), "failover_log": log}))


def _list_collections(request: PageRequest, sampler: BucketSampler) -> list[CollectionRow]:
    return [
        CollectionRow(scope.name, collection.name, sampler.items[collection.id])
        for scope in request.filter_manifest(sampler.bucket).scopes
        for collection in scope.collections
        if collection.id in sampler.items
    ]


def _list_nodes(request: PageRequest, bucket: ServedBucket) -> list[NodeRow]:
    """Return the nodes of the cluster with the numbers of their vbuckets, as the bucket's map has them."""
    shown = {"nodes": http_documents.make_nodes(request.node, 0, bucket), "map": bucket.cluster_map.content}
    document = json.loads(insert_host(dump_json(shown), request.host))
    numbers = document["map"].get("vBucketServerMap", {})
    servers, chains = numbers.get("serverList", []), numbers.get("vBucketMap", [])
    active = Counter(chain[0] for chain in chains if chain)
    replicas = Counter(number for chain in chains for number in chain[1:])
    places = {server: number for number, server in enumerate(servers)}
    found = []
    for node in document["nodes"]:
        host = node["hostname"].rpartition(":")[0]
        place = places.get(f"{host}:{node['ports'].get('direct', 0)}", -2)
        found.append(
            NodeRow(
                address=node["hostname"],
                name=node["otpNode"],
                status=node["status"],
                membership=node["clusterMembership"],
                is_this=bool(node.get("thisNode")),
                active=active[place],
                replicas=replicas[place],
            )
        )
    return found


def _list_users(request: PageRequest) -> list[AccountRow] | None:
    """Return the users with their last logins; None if the viewer is no administrator, or there are no users."""
    node = request.node
    if node.users is None or not request.user.has_privilege(Privilege.SETTINGS):
        return None
    now = node.loop.time()
    logins = node.attempts.last_logins
    return [_describe_account(account.user, logins.get(account.user.name), now) for account in _take_accounts(request)]


def _take_accounts(request: PageRequest) -> Any:
    users = request.node.users
    return [] if users is None else list(users.list_accounts())[:MAX_USERS]


def _describe_account(user: User, login: Any, now: float) -> AccountRow:
    return AccountRow(
        name=user.name,
        roles=[str(role) for role in user.roles],
        login_seconds=None if login is None else now - login.at,
        login_address=None if login is None else login.address,
    )
