"""A session that reports its requests to a hook."""

from __future__ import annotations

import time

from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.protocol.observing import (
    ObservedRequest,
    RequestHook,
    installed_hook,
    tell,
)
from dm_env_rpc_client.protocol.server_step_codec import ServerStepCodec, StepAsked
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.system.owner_threads import ElsewhereError
from dm_env_rpc_client.transports.server_streams import Parts, Peer, StreamStatusError


def open_session(host: Host, peer: Peer, has_connection: bool = True) -> Session:
    """Return a session for a stream; if a hook is installed, the session reports requests to it.

    Args:
      host: the worlds, and the state shared by all sessions.
      peer: the client.
      has_connection: whether this process has the connection.
    """
    hook = installed_hook()
    # Without a hook, requests are not timed.
    if hook is None:
        return Session(host, peer, has_connection)
    return ObservedSession(host, peer, has_connection, hook)


class ObservedSession(Session):
    """A `Session` that reports its requests to a hook.

    Args:
      host: as for `Session`.
      peer: the same.
      has_connection: the same.
      hook: the hook that receives the reports.
    """

    def __init__(self, host: Host, peer: Peer, has_connection: bool, hook: RequestHook):
        super().__init__(host, peer, has_connection)
        self._hook = hook
        self._client = peer
        self._kind, self._code = "unknown", "OK"
        self._error: BaseException | None = None

    def answer_in_parts(self, message: bytes) -> bytes | Parts:
        arrived = time.perf_counter()
        self._kind, self._code, self._error = "unknown", "OK", None
        try:
            answer = super().answer_in_parts(message)
        except ElsewhereError:
            raise  # Not executed: the thread that executes it reports it.
        except BaseException as error:
            self._error = error
            self._code = error.code if isinstance(error, StreamStatusError) else ""
            self._tell(arrived, len(message), 0)
            raise
        size = answer.size if isinstance(answer, Parts) else len(answer)
        self._tell(arrived, len(message), size)
        return answer

    def _tell(self, arrived: float, size: int, answer_size: int) -> None:
        request = ObservedRequest(
            end="server",
            kind=self._kind,
            seconds=time.perf_counter() - arrived,
            request_bytes=size,
            answer_bytes=answer_size,
            code=self._code,
            error=self._error,
            address=self._client.address,
            metadata=self._client.metadata,
        )
        tell(self._hook, request)

    def handle(
        self, request: dm_env_rpc_pb2.EnvironmentRequest
    ) -> dm_env_rpc_pb2.EnvironmentResponse:
        self._kind = request.WhichOneof("payload") or "unknown"
        return super().handle(request)

    def _step_fast(self, codec: ServerStepCodec, asked: StepAsked) -> bytes | Parts:
        self._kind = "step"
        return super()._step_fast(codec, asked)

    def _failed(self, field: str, error: Exception) -> status_pb2.Status:
        status = super()._failed(field, error)
        self._error, self._code = error, code_pb2.Code.Name(status.code)
        return status
