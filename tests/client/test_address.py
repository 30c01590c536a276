"""Connection strings: how they are parsed, and the one-sentence error of each invalid string."""

import pytest

from penstock.client.connect.address import DEFAULT_URL, Address, ConnectionOptions, TlsVerify, parse_address
from penstock.client.login.credentials import Credentials
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect

HOSTS = [
    ("couchbase://localhost", (("localhost", 11210),), "default"),
    ("couchbase://localhost/", (("localhost", 11210),), "default"),
    ("couchbase://127.0.0.1:1/beer", (("127.0.0.1", 1),), "beer"),
    ("couchbase://a:1,b,c:65535/beer", (("a", 1), ("b", 11210), ("c", 65535)), "beer"),
    ("couchbase://[::1]/beer", (("::1", 11210),), "beer"),
    ("couchbase://[::1]:7/beer", (("::1", 7),), "beer"),
    ("couchbase://a:1,[fe80::1%eth0]:7,[::2]/beer", (("a", 1), ("fe80::1%eth0", 7), ("::2", 11210)), "beer"),
    ("couchbase://münchen.example/beer", (("münchen.example", 11210),), "beer"),
    ("couchbase://a/with%2Edot_and-100%25", (("a", 11210),), "with.dot_and-100%"),
    ("couchbase://a/beer?", (("a", 11210),), "beer"),
    ("couchbase://a/beer#", (("a", 11210),), "beer"),
]


@pytest.mark.parametrize(("url", "hosts", "bucket"), HOSTS)
def test_hosts_and_bucket_are_parsed(url, hosts, bucket):
    address = parse_address(url)
    assert (address.hosts, address.bucket, address.options) == (hosts, bucket, ConnectionOptions())
    assert parse_address(str(address)) == address


def test_default_url_is_parsed():
    assert parse_address(DEFAULT_URL) == Address(
        hosts=(("127.0.0.1", 11210),), bucket="default", options=ConnectionOptions()
    )


def test_url_with_tls_is_parsed():
    address = parse_address(
        "couchbases://a,b:4433/beer?ca=ca.pem&certificate=c.pem&certificateKey=k.pem&tlsVerify=none"
    )
    assert address.hosts == (("a", 11207), ("b", 4433))
    assert address.tls
    assert str(address) == "couchbases://a:11207,b:4433/beer"
    assert address.options == ConnectionOptions(
        ca="ca.pem", certificate="c.pem", certificate_key="k.pem", tls_verify=TlsVerify.NONE
    )


def test_vbucket_count_needs_a_single_host():
    with pytest.raises(
        UsageError, match="option vbucketCount with 2 hosts, expected one host, which serves the whole bucket"
    ):
        parse_address("couchbase://a,b/beer?vbucketCount=4")


def test_address_keeps_credentials_and_never_shows_the_password():
    address = parse_address("couchbase://h/beer", Credentials("ada", "secret"))
    assert address.credentials == Credentials("ada", "secret")
    assert "ada" in repr(address)
    assert "secret" not in f"{address} {address!r} {address.credentials}"


OPTIONS = [
    ("scope=inventory&collections=airline,hotel,airline", {"scope": "inventory", "collections": ("airline", "hotel")}),
    ("xattrs=true", {"xattrs": True}),
    ("changeHistory=true", {"change_history": True}),
    ("connectTimeout=2.5", {"connect_timeout": 2.5}),
    ("operationTimeout=1e-3", {"operation_timeout": 0.001}),
    ("retrySeconds=86400", {"retry_seconds": 86400.0}),
    ("vbucketCount=1024", {"vbucket_count": 1024}),
    ("protocol=upr-draft", {"protocol": Dialect.UPR_DRAFT}),
    ("flowControlBytes=65536&noopInterval=10800", {"flow_control_bytes": 65536, "noop_interval": 10800}),
]


@pytest.mark.parametrize(("query", "options"), OPTIONS)
def test_options_are_parsed(query, options):
    assert parse_address(f"couchbase://h/b?{query}").options == ConnectionOptions(**options)


WRONG = [
    ("couchbase://h/b?protocol=DCP", "option protocol is 'DCP'", "one of tap, upr-draft, upr, dcp"),
    ("", "''", "couchbase://host:port/bucket"),
    ("localhost:11210", "'localhost:11210'", "couchbase://host:port/bucket"),
    ("http://localhost/beer", "http://", "couchbase://"),
    ("COUCHBASE://localhost/beer", "COUCHBASE://", "couchbase://"),
    ("couchbase://a/beer?scope", "option scope is empty", "a name"),
    ("couchbase://a/beer?collections=a,,b", "collections is 'a,,b'", "names with commas"),
    ("couchbase://a/beer?xattrs=1", "xattrs is '1'", "true or false"),
    ("couchbase://a/beer?ca=x.pem", "ca needs TLS", "couchbases://"),
    ("couchbase://a/beer?tlsVerify=none", "tlsVerify needs TLS", "couchbases://"),
    ("couchbases://a/beer?tlsVerify=no", "tlsVerify is 'no'", "full, none"),
    ("couchbases://a/beer?ca=", "ca is empty", "a file"),
    ("couchbases://a/beer?certificateKey=k.pem", "certificateKey", "without certificate"),
    ("couchbase://a/beer?username=u", "unknown option 'username'", "connectTimeout"),
    ("couchbase:///beer", "no host", "couchbase://host:port/bucket"),
    ("couchbase://a,,b/beer", "no host", "couchbase://host:port/bucket"),
    ("couchbase://:11210/beer", "no host", "couchbase://host:port/bucket"),
    ("couchbase://[]/beer", "no host", "couchbase://host:port/bucket"),
    ("couchbase://a:/beer", "port ''", "1 to 65535"),
    ("couchbase://a:0/beer", "port '0'", "1 to 65535"),
    ("couchbase://a:65536/beer", "port '65536'", "1 to 65535"),
    ("couchbase://a:99999999999999999999/beer", "port '999", "1 to 65535"),
    ("couchbase://a:1x/beer", "port '1x'", "1 to 65535"),
    ("couchbase://a:²/beer", "port '²'", "1 to 65535"),
    ("couchbase://::1/beer", "host '::1'", "[IPv6 address]:port"),
    ("couchbase://fe80::1:11210/beer", "host 'fe80::1:11210'", "[IPv6 address]:port"),
    ("couchbase://[::1/beer", "host '[::1'", "[IPv6 address]:port"),
    ("couchbase://[[::1]]/beer", "host '[[::1]]'", "[IPv6 address]:port"),
    ("couchbase://[::1]x/beer", "host '[::1]x'", "[IPv6 address]:port"),
    ("couchbase://[localhost]/beer", "host 'localhost'", "IPv6 address"),
    ("couchbase://[zz]/beer", "host 'zz'", "IPv6 address"),
    ("couchbase://h]/beer", "host 'h]'", "[IPv6 address]:port"),
    ("couchbase://℀/beer", "host '℀'", "name or an address"),
    ("couchbase://a..b/beer", "host 'a..b'", "name or an address"),
    (f"couchbase://{'a' * 64}/beer", "host 'aaa", "name or an address"),
    ("couchbase://a b/beer", "host 'a b'", "name or an address"),
    ("couchbase://a\0/beer", r"host 'a\x00'", "name or an address"),
    ("couchbase://a/beer/scope", "'beer/scope'", "A-Z a-z 0-9"),
    ("couchbase://a/beer%2Fscope", "'beer/scope'", "A-Z a-z 0-9"),
    ("couchbase://a/b%00", r"'b\x00'", "A-Z a-z 0-9"),
    (f"couchbase://a/{'b' * 101}", "'bbb", "1 to 100"),
    ("couchbase://a/beer#part", "#part", "couchbase://host:port/bucket"),
    ("couchbase://a/beer?nope=1", "'nope'", "connectTimeout"),
    ("couchbase://a/beer?connecttimeout=1", "'connecttimeout'", "connectTimeout"),
    ("couchbase://a/beer?noopInterval=1&noopInterval=2", "noopInterval is given twice", "once"),
    ("couchbase://a/beer?noopInterval", "noopInterval is ''", "whole number from 1 to 10800"),
    ("couchbase://a/beer?noopInterval=2.5", "noopInterval is '2.5'", "whole number from 1 to 10800"),
    ("couchbase://a/beer?noopInterval=0", "noopInterval is '0'", "from 1 to 10800"),
    ("couchbase://a/beer?noopInterval=1_0", "noopInterval is '1_0'", "from 1 to 10800"),
    ("couchbase://a/beer?flowControlBytes=65535", "flowControlBytes is '65535'", "from 65536 to 4294967295"),
    ("couchbase://a/beer?flowControlBytes=4294967296", "flowControlBytes is '4294967296'", "from 65536 to 4294967295"),
    ("couchbase://a/beer?vbucketCount=0", "vbucketCount is '0'", "a whole number from 1 to 65536"),
    ("couchbase://a/beer?retrySeconds=0", "retrySeconds is '0'", "a number from 0.001 to 86400"),
    ("couchbase://a/beer?retrySeconds=nan", "retrySeconds is 'nan'", "from 0.001 to 86400"),
    ("couchbase://a/beer?retrySeconds=inf", "retrySeconds is 'inf'", "from 0.001 to 86400"),
    ("couchbase://a/beer?connectTimeout=soon", "connectTimeout is 'soon'", "from 0.001 to 86400"),
    ("couchbase://a/beer?connectTimeout=-1", "connectTimeout is '-1'", "from 0.001 to 86400"),
]


@pytest.mark.parametrize(("url", "found", "expected"), WRONG)
def test_error_names_the_found_and_the_expected_value(url, found, expected):
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    message = str(caught.value)
    assert found in message
    assert expected in message
    assert "\n" not in message


LOGINS = [
    "couchbase://user:secret@host/beer",
    "couchbases://user:secret@host/beer",
    "http://user:secret@host/beer",
    "user:secret@host/beer",
    "couchbase://user:sec/secret@host/beer",
    "couchbase://user:sec?secret@host/beer",
    "couchbase://user:sec#secret@host/beer",
    "couchbase://user:sec:secret@[::1/beer",
    "couchbase://host/beer?user=u&password=secret",
]


@pytest.mark.parametrize("url", LOGINS)
def test_no_error_shows_a_password(url):
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)
