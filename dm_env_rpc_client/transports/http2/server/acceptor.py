"""Accepts connections in a thread of its own, and hands them over to other processes."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable

from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.self_pipe import SelfPipe
from dm_env_rpc_client.transports import listening
from dm_env_rpc_client.transports.http2.server.listening_sockets import ListeningSockets

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.2
"""How long clients wait when there are no descriptors for them."""

_JOIN_SECONDS = 5.0


class Acceptor:
    """Listens on an address, and hands over each connection.

    Args:
      address: `host:port` or `unix:path`; port 0 takes a free one.
      hand_over: called with the descriptor of each accepted socket, which is closed afterwards.

    Attributes:
      address: the address, with the port that it got.

    Raises:
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(self, address: str, hand_over: Callable[[int], None]):
        self._hand_over = hand_over
        self._poll = select.epoll()
        self._listening = ListeningSockets(self._poll)
        self._bell = SelfPipe()
        self._is_closed = False
        try:
            self.address = listening.listen(self._listening.add, address)
            self._poll.register(self._bell.fileno(), select.EPOLLIN)
            self._thread = threading.Thread(
                target=self._run, name=f"dm_env_rpc {self.address} accepts", daemon=True
            )
            self._thread.start()
        except BaseException:
            self._release()
            raise
        forking.register(self)

    def _run(self) -> None:
        try:
            while True:
                if self._is_closed:
                    break
                self._turn()
        finally:
            self._release()

    def _turn(self) -> None:
        """Waits, and does what there is to do."""
        for descriptor, _ in self._poll.poll():
            if descriptor in self._listening:
                self._accept(descriptor)
            else:
                self._bell.drain()

    def _accept(self, descriptor: int) -> None:
        try:
            found = self._listening.accept(descriptor)
        except OSError as error:
            _log.warning("could not accept a connection: %s", error)
            time.sleep(_PAUSE_SECONDS)
            return
        if found is None:
            return
        with found[0] as accepted:
            try:
                self._hand_over(accepted.fileno())
            except Exception:
                _log.exception("a connection could not be handed over")

    def close(self) -> None:
        """Takes no more connections; returns when the address is free."""
        self.close_soon()
        self._thread.join(_JOIN_SECONDS)

    def close_soon(self) -> None:
        """Takes no more connections; does not wait."""
        self._is_closed = True
        self._bell.notify()

    def _release(self) -> None:
        self._listening.close()
        self._poll.close()
        self._bell.close()

    def after_fork_in_child(self) -> None:
        """Gives up what belongs to the parent; called in the only thread of a forked child."""
        self._listening.abandon()
        self._poll.close()
        self._bell.abandon()
