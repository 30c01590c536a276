"""The test suites of gocbcore, the core of Couchbase's client for Go, run as its module ships them."""

import os
import re
import subprocess
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

from tests.compat.installed import GO_DIRECTORY, go_program
from tests.compat.serving import Serving
from tests.node.http.web_client import WebClient
from tests.patience import PATIENCE

RESULT = re.compile(r"^ *--- (PASS|FAIL|SKIP): Test\w+Suite/(\w+) ", re.MULTILINE)


class Suite(NamedTuple):
    """One of gocbcore's suites.

    Attributes:
        number: how gocbcore selects it.
        test: the Go test that runs it.
        features: what the suite is told not to try.
        at_least: tests of it that must pass.
        not_passed: tests that fail or skip, and the reason. One of them that passes fails the test.
        races: tests whose result is left to chance, and the reason.
    """

    number: int
    test: str
    features: str
    at_least: int
    not_passed: dict[str, str]
    races: dict[str, str]


def each(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


KV = Suite(
    number=1,
    test="TestStandardSuite",
    features="-n1ql,-cbas",  # the suite would wait a minute and more for answers
    at_least=148,
    not_passed={
        **each(
            "queries are not served",
            "TestN1QL TestN1QLCancel TestN1QLErrorReasonDocumentExists TestN1QLPrepared TestN1QLPreparedCancel"
            " TestN1QLPreparedTimeout TestN1QLTimeout TestTelemetryWithQueryOps"
            " TestTelemetryWithQueryOpsNoTelemetryClient TestGetHttpEps",
        ),
        **each("analytics is not served", "TestAnalytics TestAnalyticsCancel TestAnalyticsTimeout"),
        **each(
            "range scans are not served",
            "TestRangeScanConnectionInvalid TestRangeScanRangeCancellation TestRangeScanRangeCollectionRetry"
            " TestRangeScanRangeKeysOnly TestRangeScanRangeLargeValues TestRangeScanRangeSmallValues"
            " TestRangeScanSamplingKeysOnly",
        ),
        **each(
            "a node has no replicas",
            "TestGetReplica TestDurableWriteGetReplica TestAddDurableWriteGetReplica TestReplaceDurableWriteGetReplica"
            " TestDeleteDurableWriteGetReplica TestLookupInReplicaReads TestObserveSeqNo",
        ),
        **each("compute units are not served", "TestResourceUnits"),
        **each(
            "compute units are not served",
            "TestTransactionsInsertGetReplaceRemoveCommitUnits TestTransactionsInsertRollbacktUnits",
        ),
        **each("the suite skips it where there are collections", "TestObserve"),
        **each(
            "the suite skips it on one node",
            "TestAgentNSServerScheme TestLostCleanupProcessRollback TestReconfigureSecurity TestReconfigureSecurityMemd"
            " TestReconfigureSecurityChangeAuthMechanisms TestReconfigureSecurityChangeAuthProvider"
            " TestReconfigureSecurityTLSNoProvider",
        ),
        **each(
            "the suite wants the default ports",
            "TestConnectMemdOnlyDefaultPort TestConnectMemdOnlyDefaultPortSSL"
            " TestConnectMemdOnlyDefaultPortFastFailInvalidBucket",
        ),
        **each(
            "the suite wants a connection string with HTTP ports",
            "TestConnectHTTPOnlyDefaultPort TestConnectHTTPOnlyDefaultPortSSL TestConnectHTTPOnlyNonDefaultPort"
            " TestConnectHTTPOnlyDefaultPortFastFailInvalidBucket TestConnectHTTPOnlyNonDefaultPortNoBucket"
            " TestConnectHTTPOnlyNonDefaultPortFastFailInvalidBucket",
        ),
        **each(
            "the suite wants its own mock server",
            "TestEnhancedErrorOp TestKvErrorMap7ff0 TestKvErrorMap7ff1 TestKvErrorMap7ff2",
        ),
    },
    races={
        **each(
            "cancels a durable write and expects to be faster than its reply",
            "TestZombieLoggerComponentCancelledOps TestTelemetryOrphanedResponses",
        ),
        **each("gives a request a nanosecond and expects no reply within it", "TestStatsTimeout"),
    },
)

DCP = Suite(
    number=2,
    test="TestDCPSuite",
    features="",
    at_least=8,
    not_passed={
        **each("change streams with history are not served", "TestChangeStreamsAgent"),
        **each("the suite wants the default ports", "TestNSAgent"),
    },
    races={},
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Return what both suites print, by suite, as files. They run at the same time: DCP's mostly waits."""
    place = tmp_path_factory.mktemp("gocbcore")
    go_program("gocbcore.test")
    with ExitStack() as stack:
        on_disk = stack.enter_context(Serving.running("--vbuckets", 64, "--data-dir", place / "data"))
        web = WebClient(on_disk, port=on_disk.ready["http_port"])
        assert web.post("/pools/default/buckets", name="memd", bucketType="memcached", ramQuotaMB=100).status == 202
        in_memory = stack.enter_context(Serving.running("--vbuckets", 64))
        found = {}
        for suite, serving in ((KV, on_disk), (DCP, in_memory)):
            found[suite.test] = place / f"{suite.test}.log"
            stack.enter_context(running(suite, serving, found[suite.test]))
    return found


@contextmanager
def running(suite, serving, log):
    """Start a suite, and wait for its end."""
    settings = {
        "GCBCTESTSUITE": suite.number,
        "GCBCONNSTR": serving.url,
        "GCBUSER": serving.user,
        "GCBPASS": serving.password,
        "GCBCVER": "7.6.0",
        "GCBFEAT": suite.features,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [go_program("gocbcore.test"), "-test.v", "-test.run", f"^{suite.test}$"],
            cwd=GO_DIRECTORY,
            env=os.environ | {name: str(value) for name, value in settings.items()},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    with process:
        try:
            yield
            process.wait(PATIENCE)
        finally:
            process.kill()


@pytest.mark.parametrize("suite", [KV, DCP], ids=["key-value", "DCP"])
def test_suite_passes_except_listed_tests(logs, suite):
    log = logs[suite.test]
    results = {test: result for result, test in RESULT.findall(log.read_text(errors="replace"))}
    not_passed = {test: result for test, result in results.items() if result != "PASS" and test not in suite.races}
    assert not_passed.keys() == suite.not_passed.keys(), f"see {log}"
    assert len(results) - len(not_passed) >= suite.at_least
