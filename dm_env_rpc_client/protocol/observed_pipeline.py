"""A pipeline that reports its requests; `pipeline_to` chooses it if something takes the reports."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable
from typing import Any

from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError
from dm_env_rpc_client.protocol import envelopes, telemetry
from dm_env_rpc_client.protocol.pipeline import Pending, Pipeline

__all__ = ["ObservedPipeline", "pipeline_to"]


def pipeline_to(address: str) -> Pipeline:
    """Returns the pipeline of a new connection to the server at an address."""
    takes_reports = telemetry.installed()
    if takes_reports is None:
        return Pipeline(address)
    return ObservedPipeline(address, takes_reports.client(address))


class ObservedPipeline(Pipeline):
    """A `Pipeline` whose requests are reported: from the writing until the answer was read.

    Args:
      address: how error messages name the server.
      reports: is told of the requests. The shells call `push` with a lock, and read in one thread
        at a time.
    """

    def __init__(self, address: str, reports: telemetry.Reports):
        super().__init__(address)
        self._reports = reports
        self._pid = os.getpid()
        # Whoever takes a request out reports its outcome: the thread that reads, or one that
        # poisons the pipeline meanwhile.
        self._begun: dict[Pending, Any] = {}
        # A connection may be garbage-collected without having been closed.
        weakref.finalize(self, reports.close).atexit = False

    def push(self, pendings: Iterable[Pending]) -> list[bytes]:
        each = list(pendings)
        messages = super().push(each)
        at = time.perf_counter()
        for pending in each[: len(messages)]:
            self._begun[pending] = self._reports.begin(pending.field, at, pending.size)
        return messages

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
        failed = super().poison(cause)
        # A forked child has nothing to report, and its copies of locks may be locked for ever.
        if os.getpid() == self._pid:
            for pending in failed:
                self._ended(pending, at, 0)
        self._reports.close()
        return failed

    def _ended(self, pending: Pending, at: float, size: int) -> None:
        begun = self._begun.pop(pending, None)
        if begun is None:
            return
        error = pending.error
        if isinstance(error, DmEnvRpcError):
            code = error.code_name
        else:
            code = "OK" if size and not isinstance(error, ProtocolError) else ""
        self._reports.end(begun, at, size, error, code)
