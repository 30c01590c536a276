"""Logging in. The exchange is that of RFC 7677, section 3: user `user`, password `pencil`."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslReply, SaslStep

ROWS: list[tuple[str, Message, str]] = [
    (
        "list mechanisms",
        SaslListMechs(opaque=2),
        "80200000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "mechanisms",
        SaslReply(opaque=2, value=b"SCRAM-SHA1 PLAIN"),
        "81200000 00000000 00000010 00000002 0000000000000000 534352414d2d5348413120504c41494e",
    ),
    (
        "log in with PLAIN",
        SaslAuth(opaque=3, key=b"PLAIN", value=b"\0user\0pencil"),
        "80210005 00000000 00000011 00000003 0000000000000000 504c41494e 00 75736572 00 70656e63696c",
    ),
    (
        "log in with nothing to say first",
        SaslAuth(opaque=3, key=b"X"),
        "80210001 00000000 00000001 00000003 0000000000000000 58",
    ),
    (
        "go on",
        SaslStep(opaque=4, key=b"SCRAM-SHA256", value=b"c=biws"),
        "8022000c 00000000 00000012 00000004 0000000000000000 534352414d2d534841323536 633d62697773",
    ),
    (
        "begin with SCRAM",
        SaslAuth(opaque=3, key=b"SCRAM-SHA256", value=b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"),
        "8021000c 00000000 0000002c 00000003 0000000000000000 534352414d2d534841323536 "
        "6e2c2c6e3d757365722c723d724f70724e476677456265525767624e456b714f",
    ),
    (
        "the server goes on",
        SaslReply(opaque=3, status=0x21, value=b"r=rO,s=W22Z,i=4096"),
        "81210000 00000021 00000012 00000003 0000000000000000 723d724f2c733d5732325a2c693d34303936",
    ),
    (
        "the server's proof",
        SaslReply(opaque=4, value=b"v=6rri"),
        "81220000 00000000 00000006 00000004 0000000000000000 763d36727269",
    ),
    (
        "wrong password",
        SaslReply(opaque=4, status=0x20),
        "81220000 00000020 00000000 00000004 0000000000000000",
    ),
]
