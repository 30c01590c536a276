"""Couchbase's Python SDK: transactions, which use extended attributes, macros and deleted documents."""

import pytest

from tests.compat.installed import require_package

require_package("couchbase")

from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import TransactionFailed
from couchbase.options import TransactionOptions

LEVELS = [DurabilityLevel.NONE, DurabilityLevel.MAJORITY]


@pytest.fixture
def accounts(collection):
    collection.upsert("alice", {"balance": 10})
    collection.upsert("bob", {"balance": 0})
    collection.upsert("closed", {"balance": 0})
    return collection


def transfer(accounts, attempt, amount):
    for name, change in (("alice", -amount), ("bob", amount)):
        found = attempt.get(accounts, name)
        balance = found.content_as[dict]["balance"] + change
        if balance < 0:
            raise ValueError("not enough")
        attempt.replace(found, {"balance": balance})


def read_balances(accounts):
    return [accounts.get(name).content_as[dict]["balance"] for name in ("alice", "bob")]


@pytest.mark.parametrize("level", LEVELS)
def test_transaction_commits_all_changes(cluster, accounts, level):
    def logic(attempt):
        transfer(accounts, attempt, 7)
        attempt.insert(accounts, "note", {"amount": 7})
        attempt.remove(attempt.get(accounts, "closed"))

    cluster.transactions.run(logic, TransactionOptions(durability=ServerDurability(level)))
    assert read_balances(accounts) == [3, 7]
    assert accounts.get("note").content_as[dict] == {"amount": 7}
    assert not accounts.exists("closed").exists


@pytest.mark.parametrize("level", LEVELS)
def test_failed_transaction_changes_nothing(cluster, accounts, level):
    def logic(attempt):
        attempt.insert(accounts, "note", {"amount": 11})
        attempt.remove(attempt.get(accounts, "closed"))
        transfer(accounts, attempt, 11)

    with pytest.raises(TransactionFailed):
        cluster.transactions.run(logic, TransactionOptions(durability=ServerDurability(level)))
    assert read_balances(accounts) == [10, 0]
    assert accounts.exists("closed").exists
    assert not accounts.exists("note").exists
    accounts.upsert("note", {})  # the staged insert no longer exists
    assert accounts.get("note").content_as[dict] == {}


def test_concurrent_change_repeats_the_transaction(cluster, accounts):
    def logic(attempt):
        found = attempt.get(accounts, "alice")
        accounts.upsert("alice", {"balance": 20})
        attempt.replace(found, {"balance": found.content_as[dict]["balance"] + 1})

    with pytest.raises(TransactionFailed, match="cas_mismatch"):
        cluster.transactions.run(logic)
    assert read_balances(accounts)[0] == 20
