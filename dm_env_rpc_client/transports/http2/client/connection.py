"""A client's HTTP/2 connection on a plain socket, which threads use for one or more streams.

The thread that waits for an answer reads the socket itself. A step therefore takes three system
calls (check for unexpected data, send, receive) and some polling before the thread sleeps
(`system/polling.py`). No other thread is woken. A step with a float32 scalar takes 1.2 to 1.3x
the time that a bare C++ gRPC client takes (`python -m tests.benchmarks --only waiting`).

A request takes the fast path (`exchange`) if no other request is in flight, which is the usual
case. The fast path uses no queue: the caller's bytes go straight to the socket, and the received
bytes go straight to the message. Everything else goes through `send` and `advance`. `send` never
waits. In `advance`, the reading thread sends the bytes that the socket or the server's window did
not accept at first. If anything unusual happens, the fast path leaves the connection in a state
from which `send` and `advance` can continue.

Environments stepped together by one thread share a connection, and each has its own stream on it.
One system call sends their Steps, and one system call receives many answers.
"""

from __future__ import annotations

import functools
import itertools
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dm_env_rpc_client.errors import ConnectionClosedError, ConnectionLostError
from dm_env_rpc_client.system import locks, polling
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.polling import threads as working
from dm_env_rpc_client.transports.http2.client.receiver import Receiver
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientHalf, ClientStream
from dm_env_rpc_client.transports.http2.protocol.headers import SentHeader
from dm_env_rpc_client.transports.net.keepalive import (
    LOOK_SECONDS,
    Keepalive,
    KeepaliveSeconds,
    Verdict,
    opening_seconds,
)
from dm_env_rpc_client.transports.net.sockets import (
    UNREACHABLE_SECONDS,
    WOULD_BLOCK,
    poll_for,
    unacknowledged_seconds,
)
from dm_env_rpc_client.transports.net.status import silent, unreachable
from dm_env_rpc_client.transports.streams import Buffer

_T = TypeVar("_T")

_DISPOSE_SECONDS = 1.0
"""The maximum time, in seconds, to wait for a sending thread before a connection is closed. On a
busy machine, 0.1 s was too short once in 50,000 times, and the socket was left to the garbage
collector."""

_YIELD_SECONDS = 1e-5
_BUFFERS_AT_ONCE = 64
_RECORD_BYTES = 1 << 14
"""The maximum size, in bytes, of a TLS record (RFC 8446, section 5.1)."""

_RECORDS_AT_ONCE = (1 << 20) // _RECORD_BYTES
"""The maximum number of records that an event loop receives before it serves other descriptors."""

_FROM_0 = (0,)

_FIRST_HELD_BACK = 2
"""The number of buffers that a corked connection holds back before it sends any of them."""


class ClientConnection:
    """A client's open connection.

    Args:
      connected: the non-blocking socket. For TLS, it is an ssl.SSLSocket after the handshake.
      half: the client's half of the protocol state.
      request: the request headers that each stream sends.

    Attributes:
      address: the server's address.
      lock: the lock that is held while the state of the connection is changed, and while a TLS
        socket is used, because only one thread at a time is allowed to use a TLS socket.
      is_closed: whether the connection was closed on this side.
      is_corked: whether writes are held back; see `cork`.
      sending: the send queue.
      alert: the TLS alert with which the server ended the connection, if any.
    """

    def __init__(self, connected: Any, half: ClientHalf, request: list[SentHeader]):
        self.address = half.address
        # Order of locks: the connection's write lock or its reading lock, then the pipeline's mutex
        # or `_receiving`, then this one. It is held while the framing changes or sends, and while a
        # TLS socket is used.
        self.lock = make_lock()
        self.is_closed = self.is_corked = False
        self.sending = half.framing.sending
        self.alert: ssl.SSLError | None = None
        self._half = half
        self._framing = half.framing
        self._request = request
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        # What TLS receives and sends is not what the socket does: that one never waits.
        self._at_once = 0 if self._is_tls else socket.MSG_DONTWAIT
        if self._at_once:
            connected.settimeout(None)
            look = struct.pack("ll", int(LOOK_SECONDS), int(LOOK_SECONDS % 1 * 1e6))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, look)
        # Held by the thread that receives; closing the socket takes it, so that no thread receives
        # from a descriptor that belongs to another file by then.
        self._receiving = make_lock()
        self._try_receiving = locks.trying(self._receiving)
        self._receiver = Receiver(connected, half.framing)
        self._waiters = 0
        self._busy_wait = polling.BusyWait()
        self._keepalive = Keepalive()
        # Three, because two threads cannot use one at the same time.
        self._readable = poll_for(connected, select.POLLIN)
        self._either = poll_for(connected, select.POLLIN | select.POLLOUT)
        look_now = select.poll()
        look_now.register(connected, select.POLLIN)
        self._look = look_now.poll
        self._send, self._recv_into = connected.send, connected.recv_into
        # Whether a thread is changing what streams have in common, or was interrupted while it did.
        self._is_torn = False
        # Of TLS, in which either may need the other.
        self._read_waits_to_write = self._write_waits_to_read = False
        self._decrypted = 0
        self._held_back = _FIRST_HELD_BACK
        # With the greeting, so that the first stream costs no round trip.
        self._first: ClientStream | None = half.open(request)
        self._users = {self._first}

    def open_call(self) -> ClientStream | None:
        """Open a stream, or return None if the server or the state of the connection forbids it."""
        opened: list[ClientStream] = []

        def open_one() -> None:
            first, self._first = self._first, None
            if first is not None:
                opened.append(first)
            elif self._users and self.is_usable and self._half.may_open:
                call = self._half.open(self._request)
                self._users.add(call)
                opened.append(call)

        self._change(open_one)
        return opened[0] if opened else None

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open."""
        return not self.is_closed and self._framing.failure is None

    @property
    def is_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self._is_tls

    @property
    def stream_count(self) -> int:
        """The number of streams on the connection."""
        return len(self._users)

    def fileno(self) -> int:
        """Return the descriptor of the socket, or -1 if the socket was closed on this side."""
        return -1 if self.is_closed else int(self._socket.fileno())

    def cork(self) -> None:
        """Hold back one thread's writes on several streams until `uncork` is called.

        Some messages are still sent early, in groups that grow fourfold, so that the server can
        start to answer.

        Bytes that have already arrived are processed first, to detect unrequested answers.
        """
        self.take_arrived()
        self._held_back = _FIRST_HELD_BACK
        self.is_corked = True

    def uncork(self) -> None:
        """Send the held-back bytes, which a thread that waits for an answer also sends."""
        self.is_corked = False
        self._change()

    def send(self, call: ClientStream, *messages: bytes) -> bool:
        """Send as much of `messages` on a stream as possible without waiting (`Stream.write`)."""
        with self.lock:
            self._make(call.send, *messages)
        return self.has_unsent()

    def has_unsent(self) -> bool:
        """Whether any written bytes that are not held back are still unsent."""
        return not self.is_corked and bool(self.sending.outbound or self.sending.blocked)

    def end(self, call: ClientStream) -> None:
        """End the client's half of a stream."""
        self._change(call.end)

    def _change(self, change: Callable[[], object] = lambda: None) -> None:
        """Change the state of the connection with the lock held (see `_make`)."""
        with self.lock:
            self._make(change)

    def _give_up(self) -> None:
        """End all streams after an interrupt. The caller must hold the lock."""
        self.sending.outbound.clear()
        self._framing.fail(
            ConnectionLostError(
                f"the connection to {self.address} was lost: a thread was interrupted while "
                "sending or receiving, on this stream or on another stream of the same socket"
            )
        )
        self._is_torn = False

    def take_arrived(self) -> bool:
        """Receive once, without waiting, unless another thread is receiving.

        Returns:
          Whether bytes were received, in which case more bytes might be available.
        """
        if self.is_corked:
            return False
        held: list[bool] = []
        try:
            locks.take(self._receiving, held)
            if not held or self.is_closed:
                return False
            with self.lock:
                is_readable = (self._is_tls and self._socket.pending()) or self._look(0)
            return bool(is_readable or self._receiver.counts) and self._receive()
        finally:
            if held:
                self._receiving.release()
            if self.is_closed:
                self._dispose_unless_receiving()

    def receive_ready(self) -> bool:
        """Receive from a readable socket without waiting, but only part of a large message.

        Returns:
          Whether TLS has buffered more bytes, which polling the descriptor does not report.
        """
        try:
            with self._receiving:
                if self.is_closed:
                    return False
                if not self._is_tls:
                    self._receive()
                    return False
                self._receive_records()
                return bool(self._framing.failure is None and self._socket.pending())
        finally:
            if self.is_closed:
                self._dispose_unless_receiving()

    def _receive_records(self) -> None:
        for _ in range(_RECORDS_AT_ONCE):
            if not self._receive_tls(0):
                break
            # More is likely to follow a full record. Otherwise the socket shows it.
            if self._decrypted < _RECORD_BYTES and not self._socket.pending():
                break

    def events(self) -> int:
        """Return the events to wait for: `select.POLLIN`, `select.POLLOUT` or both."""
        if self._read_waits_to_write:
            return select.POLLOUT
        if self.sending.outbound and not self._write_waits_to_read:
            return select.POLLIN | select.POLLOUT
        return select.POLLIN

    def take_all_arrived(self) -> None:
        """Receive all arrived bytes, without waiting, unless another thread is receiving."""
        # A peer may go on sending forever.
        for _ in range(len(self._users)):
            if self.is_closed or not self.take_arrived():
                break

    def take_unread(self) -> list[int]:
        """Receive without waiting, and return the numbers of the readable streams."""
        self.take_all_arrived()
        if self.is_closed:
            return [call.number for call in list(self._users)]
        arrived = self._half.arrived
        found = list(arrived)
        for number in found:
            # Not all at once: another thread may receive meanwhile.
            arrived.pop(number, None)
        return found

    def has_unread(self, call: ClientStream) -> bool:
        """Return whether a stream has unread messages or has ended (see `Stream.has_unread`)."""
        is_shared = len(self._users) > 1
        if is_shared and not self.is_corked:
            self.take_all_arrived()  # It may be for other streams.
        if call.messages or call.failure is not None or self.is_closed:
            return True
        if is_shared:
            return False
        with self.lock:  # One at a time; any thread may ask.
            return bool((self._is_tls and self._socket.pending()) or self._look(0))

    def wait_to_send(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until the socket accepts more bytes, and send them."""
        if not self.sending.outbound:
            time.sleep(timeout)  # The window is closed; the reading thread notices when it opens.
        elif poll_for(self._socket, select.POLLOUT)(timeout):
            self._change()

    def abandon(self) -> None:
        """Close a forked child's copy of the socket."""
        self.lock = make_lock()
        self._receiving = make_lock()
        self._try_receiving = locks.trying(self._receiving)
        self.is_closed = True
        self._socket.close()  # Not shut down: that would end the connection of the parent.

    def release(self, call: ClientStream) -> bool:
        """End one stream, and return whether the connection stays open for other streams.

        No stream is opened after the last one has ended; the caller then ends the connection.
        """

        def leave() -> None:
            self._users.discard(call)
            if self._users:
                call.cancel()
                call.fail(ConnectionClosedError(f"the connection to {self.address} was closed"))

        locks.run(self.lock, lambda: self._make(leave), _DISPOSE_SECONDS)
        return bool(self._users - {call})

    def shut_down(self) -> None:
        """End the connection. It is safe to call this again after an interrupt."""
        if not self.is_closed:
            # Only if no other thread is in the middle of sending.
            locks.run(self.lock, lambda: self._make(self._half.shut_down))
        self.is_closed = True
        try:
            # Wakes a thread that waits for the socket, which closing it would not.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # The other end was faster.
        # A thread that is still receiving closes the socket on its way out: the number of a
        # closed one may be that of another file at once.
        self._dispose_unless_receiving()

    def _dispose_unless_receiving(self) -> None:
        """Close the socket, or let a thread that is still receiving close it."""
        locks.run(
            self._receiving, lambda: locks.run(self.lock, self._socket.close, _DISPOSE_SECONDS)
        )

    def greet(self, message: bytes | None) -> None:
        """Send the client's greeting, and also a message on the first stream if one is given."""
        first = self._first
        assert first is not None
        self._change(*(() if message is None else (functools.partial(first.send, message),)))

    def is_accepted(self) -> bool:
        """Return whether the server has accepted the connection; raise an error if it refused."""
        if self._framing.control.is_ready:
            return True
        if self._first is not None and self._first.failure is not None:
            raise self._first.failure
        return False

    def drop(self) -> None:
        """Close the socket of a connection that was not accepted."""
        self._socket.close()

    def _make(self, change: Callable[..., _T], *arguments: Any) -> _T:
        """Make a change atomically with the lock held, then send as many bytes as possible.

        Several streams share the bytes that are sent and received. If an exception such as
        KeyboardInterrupt ends a thread in the middle of a change, bytes might be sent or parsed
        twice, and streams of other threads would get wrong answers. Therefore, the next thread to
        use the connection ends all streams. (This method is not a context manager, because a
        generator can stay suspended, with the lock held, as long as a traceback refers to it.)

        Args:
          change: the function that makes the change. If it raises an exception, all streams end.
          *arguments: the arguments of `change`.

        Returns:
          The result of `change`.
        """
        if self._is_torn:
            self._give_up()
        self._is_torn = True
        made = change(*arguments)
        sending = self.sending
        outbound = sending.outbound
        if self.is_corked:
            if len(outbound) < self._held_back:
                self._is_torn = False
                return made
            self._held_back *= 4
        try:
            while True:
                if not outbound:
                    break
                if self._is_tls or len(outbound) == 1:
                    # What did not fit is tried again with the same bytes, as TLS demands.
                    sending.sent(self._socket.send(outbound[0], self._at_once))
                else:
                    buffers = itertools.islice(outbound, _BUFFERS_AT_ONCE)
                    sending.sent(self._socket.sendmsg(buffers, (), self._at_once))
        except WOULD_BLOCK as error:
            self._write_waits_to_read = isinstance(error, ssl.SSLWantReadError)
        except OSError:
            # What the server said before it went is still to be read, and the reason with it.
            outbound.clear()
        self._is_torn = False
        return made

    def exchange(
        self,
        call: ClientStream,
        message: bytes,
        begin: Callable[[Any], bool],
        pending: Any,
        writing: threading.Lock,
        is_due: bool,
    ) -> Buffer | None:
        """Send a message on a plain socket and receive the next one (see `Stream.exchange`).

        Most steps take this fast path: one system call sends the message and another receives the
        answer, without a queue in between. Anything unusual is left to `advance`. An interrupt
        loses the stream, which is the only stream of the connection.
        """
        sending, framing, counts = self.sending, self._framing, self._receiver.counts
        held: list[bool] = []
        me = threading.get_ident()
        try:
            working.add(me)  # `at_work`, without its calls.
            # A writer may wait for the receiver, so the receiver must not wait for a writer here.
            with writing:
                held.extend(iter(self._try_receiving, False))
                if not held:
                    return None
                with self.lock:
                    if (
                        call.messages
                        or sending.outbound
                        or not framing.is_between_frames
                        or counts
                        or len(self._users) != 1
                        or self._is_torn
                        or self.is_closed
                        # An unrequested answer must not be taken for the answer to this request.
                        or self._look(0)
                        or not begin(pending)
                    ):
                        return None
                    self._is_torn = True
                    head = call.head(len(message))
                    if head is None:
                        self._is_torn = False
                        self._make(call.send, message)
                        return None
                    frame = head + message
                    try:
                        count = self._send(frame, self._at_once)
                    except WOULD_BLOCK:
                        count = 0
                    except OSError:
                        count = len(frame)  # What the server said before is received.
                    if count != len(frame):
                        sending.outbound.append(memoryview(frame)[count:])
                        self._is_torn = False
                        return None
                    self._is_torn = False
            receiver, busy_wait = self._receiver, self._busy_wait
            large_bytes = call.assembler.expected
            if large_bytes:
                receiver.buffers = framing.expect(call.number, call.assembler)
            if next(busy_wait.rests, None) is None and busy_wait.spin(
                receiver.receive, self._at_once
            ):
                has_received = True
            elif is_due:
                # `recv` begins its second again after each signal, unlike `poll`.
                has_received = self._readable(LOOK_SECONDS) and receiver.receive(self._at_once)
            elif large_bytes:
                has_received = receiver.receive(0)
            else:
                has_received = True
                try:  # `receive`, without the call.
                    counts.extend(map(self._recv_into, framing.memory, _FROM_0, _FROM_0))
                except WOULD_BLOCK:
                    has_received = False
                except (OSError, ValueError) as error:
                    receiver.end(error)
            if not has_received:
                self.judge(call.keepalive)
                return None
            with self.lock:
                if large_bytes:
                    whole = framing.expected(_count_of(counts[0]))
                else:
                    whole = framing.whole(counts[0], call.number, call.assembler)
                if whole is None:
                    self._make(self._take_received)
                    return call.messages.popleft() if call.messages else None
                counts.clear()
                receiver.buffers = None
                return whole if large_bytes else bytearray(whole)
        finally:
            # First, and before any other call, behind which an interrupt may be raised.
            if held:
                self._receiving.release()
            working.discard(me)
            if self.is_closed:
                self._dispose_unless_receiving()
            if self._waiters:
                # As in `advance`: another stream was opened meanwhile.
                time.sleep(_YIELD_SECONDS)

    def advance(self, call: ClientStream, deadline: float | None) -> bool:
        """Wait until the socket is ready, then send and receive.

        Args:
          call: the stream whose messages are awaited.
          deadline: the deadline on the monotonic clock, or None for no limit.

        Returns:
          False if the deadline has passed without a message, or True otherwise.
        """
        is_shared = len(self._users) > 1
        if self.is_corked:
            self.uncork()  # What this waits for may be held back.
        waits = False
        me = threading.get_ident()
        try:
            working.add(me)  # `at_work`, without its calls.
            if is_shared:
                self._waiters += 1
                waits = True
            with self._receiving:
                if waits:
                    self._waiters -= 1
                    waits = False
                    if call.messages or call.failure is not None:
                        return True  # Another thread has received it.
                if self.is_closed:
                    raise ConnectionClosedError(f"the connection to {self.address} was closed")
                if self._is_torn:
                    self._change()  # Before it waits for what may never come.
                    return True
                wait = LOOK_SECONDS
                if deadline is not None:
                    wait = min(wait, deadline - time.monotonic())
                if wait > polling.SPIN_SECONDS and not self.sending.outbound:
                    look = self._receive_tls if self._is_tls else self._receiver.receive
                    has_received = self._busy_wait.spin(look, self._at_once)
                    if not has_received and self._at_once and deadline is None:
                        # Waits and receives in one system call. It begins its second again after
                        # each signal, so that a profiler's would keep a deadline from passing.
                        has_received = look(0)
                        if not has_received:
                            self.judge(call.keepalive)
                            return True
                    if has_received:
                        self._parse()
                        return True
                return self._poll_and_receive(call, wait, deadline)
        finally:
            if waits:  # Before any call, as in `exchange`.
                self._waiters -= 1
            working.discard(me)
            # After the lock was released: `shut_down` may have failed to get it just before.
            if self.is_closed:
                self._dispose_unless_receiving()
            if is_shared and self._waiters:
                # Locks are not fair: yield to the threads whose messages this thread received.
                time.sleep(_YIELD_SECONDS)

    def _poll_and_receive(self, call: ClientStream, wait: float, deadline: float | None) -> bool:
        """Wait up to `wait` seconds for the socket, then send and receive, like `advance`."""
        with self.lock:
            is_ready = self._is_tls and self._socket.pending()
        if not is_ready:
            unsent = self._read_waits_to_write or (
                bool(self.sending.outbound) and not self._write_waits_to_read
            )
            if not (self._either if unsent else self._readable)(wait):
                self.judge(call.keepalive)
                return deadline is None or time.monotonic() < deadline
            if unsent:
                self._change()
        self._receive()
        # A peer may go on sending forever without a message being among it.
        return bool(call.messages) or deadline is None or time.monotonic() < deadline

    def _receive(self) -> bool:
        """Receive and parse once, without waiting; return whether anything was received."""
        look = self._receive_tls if self._is_tls else self._receiver.receive
        has_received = look(self._at_once)
        if has_received:
            self._parse()
        return has_received

    def _parse(self) -> None:
        """Parse the bytes received from a plain socket."""
        with self.lock:
            self._make(self._take_received)

    def _take_received(self) -> None:
        receiver = self._receiver
        if receiver.counts:
            receiver.buffers = None
            self._framing.received(_count_of(receiver.counts.pop()))

    def _receive_tls(self, _: int) -> bool:
        """Receive from a TLS socket and parse once; return whether anything was received."""
        with self.lock:
            return self._make(self._take_decrypted)

    def _take_decrypted(self) -> bool:
        try:
            count = self._socket.recv_into(self._framing.buffers()[0])
        except WOULD_BLOCK as error:
            self._read_waits_to_write = isinstance(error, ssl.SSLWantWriteError)
            return False
        except (OSError, ValueError) as error:
            if isinstance(error, ssl.SSLError):
                # Without the traceback, which would refer to this stream.
                self.alert = error.with_traceback(None)
            self._receiver.note(error)
            count = 0
        self._read_waits_to_write = False
        self._decrypted = count
        self._framing.received(count)
        return True

    def judge(self, keepalive: KeepaliveSeconds = opening_seconds) -> None:
        """Check whether the server is still alive after `LOOK_SECONDS` without an answer.

        Args:
          keepalive: see `Stream.keep_alive`.

        Raises:
          ConnectionLostError: the server has not answered a probe in time, or its machine is
            unreachable.
        """
        framing = self._framing
        verdict = self._keepalive.judge(framing.receptions, framing.sending.submitted, keepalive)
        if unacknowledged_seconds(self._socket) + LOOK_SECONDS > UNREACHABLE_SECONDS:
            error = unreachable(self.address)
        elif verdict is Verdict.GIVE_UP:
            error = silent(self.address, keepalive())
        else:
            if verdict is Verdict.PROBE:
                self._change(framing.probe)
            return
        self._half.fail(error)
        raise error


def _count_of(received: Any) -> int:
    """Return the number of bytes in the result of `recv_into` or `recvmsg_into`."""
    return received if isinstance(received, int) else int(received[0])
