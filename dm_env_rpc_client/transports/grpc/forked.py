"""A check that grpcio works in this process, which might be a fork of a process that used it.

grpcio's core runs threads that do not exist in a forked child. If the core was in use at the fork,
gRPC calls in the child crash the process or wait forever, regardless of their timeouts. If all
channels and servers were closed before the fork, gRPC calls in the child work. However, grpcio
does not report whether its core was in use, and any code might have opened channels. Therefore,
this module makes a test call. It does so in a fork of this process, because the call might hang
and could not be interrupted.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import grpc

from dm_env_rpc_client.errors import SpecError

_NOWHERE = "unix:/dev/null/nowhere"
_PROBE_SECONDS = 1.5
"""The time limit, in seconds, for grpcio to report that no server is listening, which usually
takes a few milliseconds. Time that the probing process spends waiting for a processor, up to
`_WAIT_SECONDS`, does not count: with four busy processes per processor, the probe has taken more
than 1.5 s."""

_WAIT_SECONDS = 8.5
_LOOK_SECONDS = 0.1

_works_in = os.getpid()


def check_works(what: str) -> None:
    """Raise SpecError if this process is a forked child in which grpcio cannot work.

    Args:
      what: the beginning of the error message, which states the operation that failed.
    """
    global _works_in
    if os.getpid() == _works_in:
        return
    if not _answers():
        raise SpecError(
            f"{what}: the transport 'grpc' cannot be used in this process, which was forked while "
            "grpcio was in use; use transport='http2', close all grpcio channels and servers "
            "before the fork, or start the process with 'spawn' or 'forkserver'"
        )
    _works_in = os.getpid()


def _answers() -> bool:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Of forks beside other threads.
        pid = os.fork()
    if not pid:
        try:
            faulthandler.disable()  # The call may crash, and that is an answer too.
            _call_nobody()
            os.write(writing, b".")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        begin = time.monotonic()
        is_late = False
        while True:
            if is_late:
                return False
            if poll.poll(_LOOK_SECONDS * 1000):
                return bool(os.read(reading, 1))
            seconds = time.monotonic() - begin - min(_waited_for_processor(pid), _WAIT_SECONDS)
            is_late = seconds > _PROBE_SECONDS
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)


def _call_nobody() -> None:
    options = [("grpc.enable_http_proxy", 0)]
    call: Any = grpc.insecure_channel(_NOWHERE, options).unary_unary("/")
    try:
        call(b"", timeout=_PROBE_SECONDS + _WAIT_SECONDS)
    except grpc.RpcError:
        pass


def _waited_for_processor(pid: int) -> float:
    """Return how many seconds the threads of a process have spent waiting for a processor."""
    nanoseconds = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[1])
    except OSError:
        pass  # Only Linux has these files, and threads end.
    return nanoseconds / 1e9
