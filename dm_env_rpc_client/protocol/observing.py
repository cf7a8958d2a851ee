"""A hook that is called for each request sent or answered by this process.

The hook is looked up when a connection or a server's stream is opened, not at each step. Without a
hook, connections and streams use the same classes as they would without this module.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending, Pipeline

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class ObservedRequest:
    """A completed request.

    Attributes:
      end: "client" if this process has sent the request, "server" if it has answered it.
      kind: the field of the request, such as "step" or "create_world"; "unknown" if a server could
        not parse it.
      seconds: at a client, from the writing of the request until its answer was read, before
        decoding; at a server, from the arrival of the request until the answer is ready.
      request_bytes: the size of the request, without framing.
      answer_bytes: the size of the answer; 0 if there is none.
      code: the name of the status in the answer, such as "OK" or "INVALID_ARGUMENT"; "" if there
        was no answer.
      error: the cause of a failure, at a server the exception of the environment; None for a
        success.
      address: the address of the other end.
      metadata: at a server, the metadata that the client has sent with the call, which may be
        secret; () at a client.
    """

    end: Literal["client", "server"]
    kind: str
    seconds: float
    request_bytes: int
    answer_bytes: int
    code: str
    error: BaseException | None
    address: str
    metadata: tuple[tuple[str, str | bytes], ...] = dataclasses.field(default=(), repr=False)


RequestHook: TypeAlias = Callable[[ObservedRequest], object]
"""A function that is called once for each request. Its return value is ignored."""

_hook: RequestHook | None = None
_has_failed = False


def observe_requests(hook: RequestHook | None) -> None:
    """Set a function to be called for each request on connections and streams opened from now on.

    The function is called by the thread that has read the answer or is about to send it, and
    delays this thread. Several threads can call the function at once. Exceptions in the function
    are logged, the first one as a warning, and do not fail the request. In a forked child,
    requests of the parent's connections are not reported. The guide is
    `docs/how-to/metrics-and-traces.md`.

    Args:
      hook: the function; None to stop the calls. A process has only one hook.

    Raises:
      TypeError: `hook` cannot be called.
    """
    global _hook
    if hook is not None and not callable(hook):
        raise TypeError(
            f"hook must be None or a function that accepts an ObservedRequest, got {hook!r}"
        )
    _hook = hook


def installed_hook() -> RequestHook | None:
    """Return the hook that was passed to `observe_requests`."""
    return _hook


def tell(hook: RequestHook, request: ObservedRequest) -> None:
    """Call `hook` with `request`, and log any exception that it raises."""
    global _has_failed
    try:
        hook(request)
    except Exception:
        level, _has_failed = logging.DEBUG if _has_failed else logging.WARNING, True
        _log.log(level, "the hook of observe_requests failed", exc_info=True)


def pipeline_to(address: str) -> Pipeline:
    """Return a pipeline for a new connection to the server at `address`."""
    hook = _hook
    return Pipeline(address) if hook is None else ObservedPipeline(address, hook)


class ObservedPipeline(Pipeline):
    """A `Pipeline` that reports its requests to a hook.

    Args:
      address: the name of the server in error messages.
      hook: the function that receives the reports. The caller holds a lock for `push`, and only
        one thread at a time reads.
    """

    def __init__(self, address: str, hook: RequestHook):
        super().__init__(address)
        self._hook = hook
        self._pid = os.getpid()
        # Removing a request entitles a thread to report it: either the reading thread, or one that
        # poisons the pipeline meanwhile.
        self._began: dict[Pending, float] = {}

    def push(self, pendings: Iterable[Pending]) -> list[bytes]:
        each = list(pendings)
        messages = super().push(each)
        at = time.perf_counter()
        for pending in each[: len(messages)]:
            self._began[pending] = at
        return messages

    def begin(self, pending: Pending) -> bool:
        # Stored first: another thread may poison the pipeline, and reports only stored requests.
        self._began[pending] = time.perf_counter()
        has_begun = super().begin(pending)
        if not has_begun:
            self._began.pop(pending, None)
        return has_begun

    def answer(self, message: envelopes.Buffer) -> Pending:
        at, size = time.perf_counter(), len(message)
        pending = self.oldest
        try:
            return super().answer(message)
        finally:
            if pending is not None and pending.outcome is not None:
                self._ended(pending, at, size)

    def poison(self, cause: BaseException) -> list[Pending]:
        at = time.perf_counter()
        woken = super().poison(cause)
        # A forked child has copies of the parent's pending requests, and of locks used by the hook.
        if os.getpid() == self._pid:
            for pending in woken:
                self._ended(pending, at, 0)
        return woken

    def _ended(self, pending: Pending, at: float, size: int) -> None:
        began = self._began.pop(pending, None)
        if began is None:
            return
        error = pending.error
        if isinstance(error, DmEnvRpcError):
            code = error.code_name
        else:
            code = "OK" if size and not isinstance(error, ProtocolError) else ""
        request = ObservedRequest(
            "client", pending.field, at - began, pending.size, size, code, error, self.address
        )
        tell(self._hook, request)
