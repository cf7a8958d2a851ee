"""The stream over grpcio, for use in threads.

A pump thread iterates over grpcio's messages and queues them for the reading thread. Each message
therefore costs one handover between threads. The queue allows reads with a timeout, which grpcio
does not support. The queue also lets a signal interrupt the reader at any point, whereas a
KeyboardInterrupt inside grpcio's own locking code could leave a lock held.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import queue
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import grpc

from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvRpcClientError,
)
from dm_env_rpc_client.system.polling import SelfPipe
from dm_env_rpc_client.system.waiting import RELEASE_SECONDS, release, uninterrupted
from dm_env_rpc_client.transports.grpc.forked import check_works
from dm_env_rpc_client.transports.grpc.probes import Probes
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.net.keepalive import KeepaliveSeconds
from dm_env_rpc_client.transports.net.metadata import Metadata, check_metadata
from dm_env_rpc_client.transports.streams import Stream

_calls: weakref.WeakSet[Any] = weakref.WeakSet()
"""The grpcio calls that are still referenced."""


class GrpcStream(Stream):
    """A `Stream` over a grpc.Channel.

    Args:
      channel: the channel.
      metadata: the metadata to send with the call.
      address: the peer's name in error messages.
      owns_channel: whether the channel is closed with the stream.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        metadata: Metadata | None = None,
        address: str = "the channel's target",
        owns_channel: bool = False,
    ):
        check_works(f"cannot connect to {address}")
        self.address = address
        self._channel = channel if owns_channel else None
        self._outbound: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._inbound: queue.SimpleQueue[bytes | DmEnvRpcClientError] = queue.SimpleQueue()
        self._arrivals = SelfPipe()
        self._probes = Probes(self._channel, address)
        self._probing: threading.Thread | None = None
        # The sentinel None ends the iterator. Without it grpcio's thread would wait in `get`
        # forever, and the interpreter could not exit.
        requests = iter(self._outbound.get, None)
        checked = check_metadata(metadata)
        open_call: Any = channel.stream_stream(status.PROCESS)

        def begin() -> tuple[Any, threading.Thread]:
            call = open_call(requests, metadata=checked)
            arguments = (call, self._inbound, self._arrivals, self._probes, address)
            name = f"dm_env_rpc answers from {address}"
            pump = threading.Thread(target=_pump, args=arguments, name=name, daemon=True)
            pump.start()  # An error of a signal's handler in it could leave locks of Python locked.
            return call, pump

        try:
            self._call, self._pump = uninterrupted(begin, lambda begun: begun[0].cancel())
        except ValueError as error:
            self._outbound.put(None)
            raise ConnectionClosedError(f"the channel to {address} is closed") from error
        except BaseException:
            self._outbound.put(None)
            raise
        _calls.add(self._call)

    def keep_alive(self, seconds: KeepaliveSeconds) -> None:
        self._probes.keepalive = seconds

    def write(self, *messages: bytes) -> bool:
        for message in messages:
            self._outbound.put(message)
        self._probes.sent += 1
        return False

    def has_unsent(self) -> bool:
        return False  # grpcio's own threads send.

    def send_rest(self, timeout: float) -> None:
        pass

    def read(self, timeout: float | None, until_sent: bool = False) -> bytes | None:
        self._arrivals.drain()
        try:
            item = self._inbound.get(timeout is None or timeout > 0, timeout)
        except queue.Empty:
            self._look()
            return None
        if isinstance(item, bytes):
            return item
        self._inbound.put(item)
        raise item

    def _look(self) -> None:
        """Probe a silent server, or raise ConnectionLostError if it does not answer in time."""
        try:
            if not self._probes.must_probe():
                return
        except ConnectionLostError as error:
            self._inbound.put(error)  # Later calls raise it, too.
            raise
        if self._probing is None or not self._probing.is_alive():
            # In a thread, because an interrupt inside grpcio could leave a lock held.
            self._probing = threading.Thread(
                target=self._probes.probe, name="dm_env_rpc probe", daemon=True
            )
            try:
                uninterrupted(self._probing.start)
            except RuntimeError:  # No thread can be started now, so the server cannot be judged.
                self._probing = None
                self._probes.received += 1

    def has_unread(self) -> bool:
        return not self._inbound.empty()

    def shared_socket(self) -> None:
        return None

    def fileno(self) -> int:
        return self._arrivals.fileno()

    def finish(self) -> None:
        self._outbound.put(None)

    def close(self, timeout: float) -> None:
        self.finish()
        self._pump.join(timeout)
        self.abort()
        self._pump.join(RELEASE_SECONDS)

    def abandon(self) -> None:
        keep_for_ever(self._call, self._channel, self._outbound, self._inbound)
        self._inbound = queue.SimpleQueue()
        self._inbound.put(ConnectionClosedError(f"the connection to {self.address} was closed"))
        self._arrivals.abandon()

    def abort(self) -> None:
        self._outbound.put(None)
        release(self._end)
        self._arrivals.close()

    def _end(self) -> None:
        # Freed here, too: grpcio locks their state when it frees them.
        call, self._call = self._call, None
        channel, self._channel = self._channel, None
        if call is not None:
            call.cancel()
        if channel is not None:
            channel.close()


def keep_for_ever(*objects: Any) -> None:
    """Keep grpcio's objects alive in a forked child, where freeing them would crash or hang."""
    _never_free(objects)
    # Those of the parent's garbage, too: it would be collected here.
    gc.freeze()


@atexit.register
def _never_free_calls() -> None:
    # The interpreter stops daemon threads wherever they are when it exits. grpcio's may have locked
    # a call then, and a call takes this lock when it is freed: the exit would wait forever.
    for call in list(_calls):
        _never_free(call)


def _never_free(kept: object) -> None:
    # A reference of a module would be dropped at the exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def explained(details: str | None) -> str | None:
    """Return the details of a status, adding a cause that grpcio only hints at."""
    if not details:
        return details
    if "Connection timed out" in details:  # The kernel's ETIMEDOUT, because of TCP_USER_TIMEOUT.
        return f"{status.UNREACHABLE}, and that the server receives large messages ({details})"
    return status.abrupt(details) if "RST_STREAM" in details else details


def _pump(
    call: Iterable[bytes],
    inbound: queue.SimpleQueue[bytes | DmEnvRpcClientError],
    arrivals: SelfPipe,
    probes: Probes,
    address: str,
) -> None:
    # Not a method: a reference to the stream would keep a forgotten one alive.
    code, details = grpc.StatusCode.OK, None
    try:
        for message in call:
            probes.received += 1
            inbound.put(message)
            arrivals.notify()
    except grpc.RpcError as error:
        code, details = error.code(), explained(error.details())
    inbound.put(status.stream_error(address, code.name, details))
    arrivals.notify()
