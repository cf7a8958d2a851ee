"""A session that reports its requests."""

from __future__ import annotations

import time
from typing import Any

from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.protocol import telemetry
from dm_env_rpc_client.protocol.server_step_codec import ServerStepCodec, StepAsked
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.system.owners import ElsewhereError
from dm_env_rpc_client.transports.server_streams import Peer, StreamStatusError


def open_session(host: Host, peer: Peer, has_connection: bool = True) -> Session:
    """Returns the session of a stream, which reports its requests if something takes them.

    Args:
      host: what it reaches.
      peer: the client.
      has_connection: whether this process has the connection.
    """
    takes_reports = telemetry.installed()
    if takes_reports is None:
        return Session(host, peer, has_connection)
    reports = takes_reports.server(peer.address, peer.metadata, has_connection)
    return ObservedSession(host, peer, has_connection, reports)


class ObservedSession(Session):
    """A `Session` whose requests are reported: from their arrival until there is the answer.

    Args:
      host: as for `Session`.
      peer: the same.
      has_connection: the same.
      reports: is told of the requests.
    """

    def __init__(self, host: Host, peer: Peer, has_connection: bool, reports: telemetry.Reports):
        super().__init__(host, peer, has_connection)
        self._reports = reports
        self._arrived, self._size = 0.0, 0
        self._begun: Any = None
        self._code = "OK"
        self._error: BaseException | None = None

    def answer(self, message: bytes) -> bytes:
        self._arrived, self._size = time.perf_counter(), len(message)
        self._begun, self._code, self._error = None, "OK", None
        try:
            answer = super().answer(message)
        except ElsewhereError:
            raise  # It has not been executed.
        except BaseException as error:
            self._error = error
            self._code = error.code if isinstance(error, StreamStatusError) else ""
            self._end(0)
            raise
        self._end(len(answer))
        return answer

    def _end(self, size: int) -> None:
        if self._begun is None:  # It could not be parsed.
            self._begin("unknown")
        self._reports.end(self._begun, time.perf_counter(), size, self._error, self._code)

    def handle(
        self, request: dm_env_rpc_pb2.EnvironmentRequest
    ) -> dm_env_rpc_pb2.EnvironmentResponse:
        self._begin(request.WhichOneof("payload") or "unknown")
        return super().handle(request)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._reports.close()

    def _begin(self, kind: str) -> None:
        self._begun = self._reports.begin(kind, self._arrived, self._size)

    def _step_fast(self, codec: ServerStepCodec, asked: StepAsked) -> bytes:
        self._begin("step")
        return super()._step_fast(codec, asked)

    def _failed(self, field: str, error: Exception) -> status_pb2.Status:
        status = super()._failed(field, error)
        self._error, self._code = error, code_pb2.Code.Name(status.code)
        return status
