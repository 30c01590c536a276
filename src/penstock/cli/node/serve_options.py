"""The options of `penstock serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

HTTP_PORT = 8091

Dialects = Literal["tap", "upr-draft", "upr", "dcp", "dcp-prototype"]
Resolutions = Literal["seqno", "lww"]

Host = Annotated[str, typer.Option(metavar="ADDRESS", help="A loopback address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0 picks a free one.")]
Buckets = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A bucket to have; may be given again.", show_default="default"),
]
Vbuckets = Annotated[int, typer.Option(metavar="N", help="Of each bucket; a power of two up to 65536.")]
Pin = Annotated[
    Dialects | None, typer.Option(help="Serve change streams in this dialect alone; without, each client decides.")
]
Follow = Annotated[
    str | None, typer.Option(metavar="URL", help="A bucket elsewhere: have it too, and keep it like that one.")
]
Protocol = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The dialect to follow in: tap, upr-draft, upr or, unless said, dcp."),
]
HttpPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="For management over HTTP; 0 picks a free one.",
        show_default=f"{HTTP_PORT}, 0 with --port 0",
    ),
]
Users = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="PENSTOCK_USERS",
        help="Who may log in, as `penstock user` keeps it.",
        show_default=False,
    ),
]
TlsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, metavar="PORT", help="Serve TLS here too; 0 picks a free one.", show_default="none"),
]
HttpsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="For management with TLS, where there is that; 0 picks a free one.",
        show_default="18091 with port 11210, else a free one",
    ),
]
TlsCert = Annotated[Path | None, typer.Option(metavar="FILE", help="The node's certificate, PEM.", show_default=False)]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key, PEM.", show_default=False)]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Clients with a certificate of this authority need no password.", show_default=False
    ),
]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="A way to log in without TLS; may be given again.", show_default="all that are safe"
    ),
]
TlsMechanisms = Annotated[list[str] | None, typer.Option(metavar="NAME", help="The same with TLS.", show_default="all")]
AllowPlain = Annotated[
    bool, typer.Option("--allow-plain", help="Take passwords without TLS, for old clients: others may read them.")
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT[:HTTP]",
        help="A node that has part of the buckets, this one included; may be given again, the same for each.",
        show_default="this one alone",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Keep the buckets here, each in a directory of its own.", show_default="in memory"
    ),
]
CommitMs = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="N", help="Milliseconds that a change waits for others to be synced with.", show_default="5"
    ),
]
CommitCount = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="So many changes are synced without waiting.", show_default="1000"),
]
PurgeAge = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="Deletions are forgotten when they are older.", show_default="259200"),
]
Retention = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="SECONDS", help="Older versions stay so long in the history.", show_default="0, not at all"
    ),
]
RetentionBytes = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="But for those that so much of the log has followed.", show_default="no limit"
    ),
]
ConflictResolution = Annotated[
    Resolutions | None,
    typer.Option(
        help="Which version wins, here or from elsewhere: the one changed most often, or last (lww).",
        show_default="seqno",
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="BYTES",
        help="What each bucket may take up in memory before it refuses changes.",
        show_default="no limit",
    ),
]
