"""Processing of the answers to a feed's requests: streams begin, roll back, are refused or are given up."""

from __future__ import annotations

from dataclasses import replace

from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.collection_selection import CollectionFilter
from penstock.client.feeds.consumer_feed import FeedState
from penstock.client.feeds.dialect_rules import (
    AcceptedAnswer,
    Answer,
    RefusedAnswer,
    RollbackAnswer,
    UnknownBranchAnswer,
)
from penstock.client.feeds.stream_position import UNKNOWN_END, adopt_log
from penstock.client.feeds.stream_requests import LogPurpose, LogRequest, StreamRequests
from penstock.client.feeds.stream_set import StreamSet
from penstock.client.feeds.vbucket_stream import VbucketStream, make_rollback_row
from penstock.errors import (
    AccessDenied,
    ConnectionClosed,
    RemoteProtocolError,
    make_status_error,
)
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.frame import Frame, name_status
from penstock.wire.codec.statuses import Status
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance_state

_EVENTS: dict[type[Answer], StreamEvent] = {
    AcceptedAnswer: StreamEvent.ACCEPTED,
    RollbackAnswer: StreamEvent.ROLLBACK,
    UnknownBranchAnswer: StreamEvent.ROLLBACK,
    RefusedAnswer: StreamEvent.REFUSED,
}


class StreamAnswers:
    """Processes answers, in any dialect with one stream for each vbucket."""

    def __init__(
        self,
        state: FeedState,
        streams: StreamSet,
        requests: StreamRequests,
        collection_filter: CollectionFilter | None,
    ) -> None:
        self._state = state
        self._streams = streams
        self._requests = requests
        self._filter = collection_filter

    def handle_answer(self, frame: Frame) -> None:
        """Process the answer to a request for a stream or for a failover log.

        Raises StatusError for a refusal that no retry changes, RemoteProtocolError for an invalid answer, and
        ConnectionClosed if the history changed during the request.
        """
        requests = self._requests
        if (log_request := requests.pop_log_request(frame.opaque)) is not None:
            self._on_log(log_request, frame)
            return
        stream = requests.by_opaque.get(frame.opaque)
        answer = None if stream is None else requests.rules.read_stream_answer(frame)
        if stream is None or answer is None or stream.connection_id != self._state.output.connection_id:
            self._state.dropped.add(DropReason.UNEXPECTED_REPLY)
            return
        stream.state = advance_state(stream.state, _EVENTS[type(answer)], stream.vbucket, self._state.dialect)
        requests.mark_answered(frame.opaque)
        if isinstance(answer, AcceptedAnswer):
            self._on_accepted(stream, answer.log)
            return
        requests.forget(frame.opaque)
        if isinstance(answer, RefusedAnswer):
            self._on_refused(stream, answer.status)
        elif isinstance(answer, UnknownBranchAnswer) and not stream.position.seqno:
            self._on_refused(stream, Status.KEY_ENOENT)
        else:
            self._on_rollback(stream, answer)

    # answers to stream requests

    def _on_accepted(self, stream: VbucketStream, log: FailoverLog) -> None:
        known = stream.log if self._requests.log_first is not None else log
        if not stream.policy.accepts(known):
            self._requests.give_up(stream)
            return
        position = adopt_log(stream.position, known)
        if stream.requested_seqno is not None:
            position = replace(position, history=position.history + 1)
            row = make_rollback_row(stream.vbucket, known[0].vbuuid, position, stream.requested_seqno)
            self._state.output.rows.append(row)
            stream.requested_seqno = None
        stream.least_end = 0 if position.snap_end == UNKNOWN_END else position.snap_end
        self._streams.adopt_history(stream, position, known)
        if log:
            self._confirm(stream, log)

    def _on_refused(self, stream: VbucketStream, status: int) -> None:
        about = f"vbucket {stream.vbucket}: stream from {stream.position.seqno} refused, {name_status(status)}"
        error = make_status_error(status, about, opaque=stream.opaque, vbucket=stream.vbucket)
        if self._filter and self._filter.record_refusal(stream.requested, stream.connection_id, status):
            missing = " and ".join(stream.requested.missing)
            hint = f"; it reads more than the selection because the bucket has no {missing}" if missing else ""
            self._streams.record_failure(stream, ConnectionClosed(f"{about}{hint}"))
        elif error.retriable:
            self._streams.record_failure(stream, error)
        elif isinstance(error, AccessDenied):
            raise AccessDenied(
                f"{about}: expected a role with the privilege DcpStream for its changes, such as data_dcp_reader; the "
                "options scope and collections select a part of the bucket",
                vbucket=stream.vbucket,
            )
        else:
            raise error

    def _on_rollback(self, stream: VbucketStream, answer: RollbackAnswer | UnknownBranchAnswer) -> None:
        position, policy = stream.position, stream.policy
        if isinstance(answer, UnknownBranchAnswer):
            decision = policy.decide_on_unknown_branch(position)
        elif not position.seqno or answer.seqno > position.seqno:
            raise RemoteProtocolError(
                f"vbucket {stream.vbucket}: ROLLBACK to {answer.seqno} of a stream from {position.seqno}"
            )
        else:
            decision = policy.decide_on_rollback(position, answer.seqno)
        if self._requests.resume(stream, decision):
            self._requests.schedule(stream.vbucket)

    # answers to requests for failover logs

    def _on_log(self, log_request: LogRequest, frame: Frame) -> None:
        assert self._requests.log_first is not None
        stream, answer = log_request.stream, self._requests.log_first.read_log_answer(frame)
        if log_request.stream_opaque != stream.opaque or stream.vbucket not in self._streams.unfinished:
            self._state.dropped.add(DropReason.OUTDATED_LOG)
        elif isinstance(answer, RefusedAnswer):
            self._on_refused(stream, answer.status)
        elif log_request.purpose is LogPurpose.DECIDE_START:
            self._decide_start(stream, answer)
        elif log_request.purpose is LogPurpose.CONFIRM:
            self._confirm(stream, answer)
        else:
            self._adopt_branches(stream, answer)

    def _decide_start(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Decide where the stream continues with the producer of this log, and make its request due."""
        if self._requests.resume(stream, stream.policy.decide_on_log(stream.position, log)):
            stream.log = log
            self._requests.schedule_stream(stream.vbucket)

    def _confirm(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Compare the failover logs before and after a stream request.

        Args:
            stream: the stream, with the log from before the request.
            log: the log from after the request.

        Raises:
            ConnectionClosed: the logs differ, and the stream continues on a new connection.
        """
        if stream.is_confirmed or (stream.state is StreamState.ENDED and not stream.has_ended):
            return
        if log == stream.log:
            self._streams.confirm(stream)
        elif self._requests.resume(stream, stream.policy.decide_on_new_log(stream.position)):
            self._requests.forget(stream.opaque)
            stream.state = StreamState.ENDED
            self._state.recovering.add(stream.vbucket)
            # The producer continues the stream, and the dialect has no message that closes it.
            raise ConnectionClosed(f"vbucket {stream.vbucket}: its history changed as the stream began")

    def _adopt_branches(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Adopt the branches that began with a flush, now that their vbuuids are known."""
        if stream.state is not StreamState.ENDED or stream.has_ended:
            self._streams.adopt_history(stream, adopt_log(stream.position, log), log)
            self._streams.confirm(stream)
