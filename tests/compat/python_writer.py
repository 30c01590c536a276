"""Writes documents with Couchbase's Python SDK or with Penstock's client, and reads them back.

Arguments: `couchbase` or `penstock`, connection string, user, password, bucket. `cluster_clients.py` describes the
output.
"""

import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from threading import Event
from typing import NamedTuple

Upsert = Callable[[str, int], object]


class ClientCalls(NamedTuple):
    """The calls of a client.

    Attributes:
        upsert: writes a document with an ordinary write.
        upsert_durably: writes a document that a majority of its copies must have.
        read: returns the value of a document, None if it does not exist.
        errors: the errors after which it is not known whether a document was written.
    """

    upsert: Upsert
    upsert_durably: Upsert
    read: Callable[[str], int | None]
    errors: tuple[type[Exception], ...]


@contextmanager
def open_couchbase(url: str, user: str, password: str, bucket: str) -> Generator[ClientCalls]:
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.durability import DurabilityLevel, ServerDurability
    from couchbase.exceptions import CouchbaseException, DocumentNotFoundException
    from couchbase.options import ClusterOptions, UpsertOptions

    cluster = Cluster(url, ClusterOptions(PasswordAuthenticator(user, password)))
    cluster.wait_until_ready(timedelta(minutes=1))
    documents = cluster.bucket(bucket).default_collection()
    durable = UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY), timeout=timedelta(seconds=10))

    def read(key: str) -> int | None:
        try:
            return int(documents.get(key).value)
        except DocumentNotFoundException:
            return None

    yield ClientCalls(
        documents.upsert, lambda key, value: documents.upsert(key, value, durable), read, (CouchbaseException,)
    )
    cluster.close()


@contextmanager
def open_penstock(url: str, user: str, password: str, bucket: str) -> Generator[ClientCalls]:
    import penstock
    from penstock.client.blocking import LoopThread
    from penstock.errors import Error, KeyNotFound

    with LoopThread() as loop:
        client = penstock.connect(f"{url}/{bucket}", username=user, password=password)
        loop.start(client.connect()).result()

        def upsert(key: str, value: int) -> None:
            loop.start(client.upsert(key, b"%d" % value)).result()

        def upsert_durably(key: str, value: int) -> None:
            loop.start(client.upsert(key, b"%d" % value, durability="majority")).result()

        def read(key: str) -> int | None:
            try:
                return int(loop.start(client.get(key)).result().value)
            except KeyNotFound:
                return None

        yield ClientCalls(upsert, upsert_durably, read, (Error, OSError))
        loop.start(client.close()).result()


CLIENTS = {"couchbase": open_couchbase, "penstock": open_penstock}


def write_documents(name: str, upsert: Upsert, errors: tuple[type[Exception], ...], over: Event) -> int:
    """Write each document twice, and return the number of writes."""
    count = 0
    while not over.is_set():
        key = f"{name}-{count // 2}"
        try:
            upsert(key, count)
        except errors as error:  # it is not known whether the document was written
            sys.stderr.write(f"{key} {error}\n")
        else:
            sys.stdout.write(f"{name} {key} {count}\n")
            sys.stdout.flush()
        count += 1
    return count


def main(client: str, *place: str) -> None:
    over = Event()
    with CLIENTS[client](*place) as calls, ThreadPoolExecutor(2) as pool:
        writers = {"plain": calls.upsert, "durable": calls.upsert_durably}
        running = {
            name: pool.submit(write_documents, name, upsert, calls.errors, over) for name, upsert in writers.items()
        }
        sys.stdin.read()
        over.set()
        for name, each in running.items():
            for number in range((each.result() + 1) // 2):
                value = calls.read(f"{name}-{number}")
                if value is not None:
                    sys.stdout.write(f"kept {name}-{number} {value}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
