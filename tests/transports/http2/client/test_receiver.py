"""Receiving that an interrupt does not tear."""

from __future__ import annotations

import random
import signal
import socket
import threading
from typing import Any

import pytest

from dm_env_rpc_client.transports.http2.client.receiver import Receiver
from tests.support.collector import no_garbage_collection

SENT = random.Random(0).randbytes(2_000_000)


class Interrupt(BaseException):
    pass


class Memory:
    """A framing whose memory is of so many pieces."""

    def __init__(self, pieces: int):
        self.memory = bytearray(64 * pieces)
        self._pieces = pieces

    def buffers(self) -> list[memoryview]:
        whole = memoryview(self.memory)
        return [whole[64 * each : 64 * (each + 1)] for each in range(self._pieces)]


@pytest.mark.parametrize("pieces", [1, 2])
def test_bytes_are_received_and_counted_or_neither(pieces: int) -> None:
    chance = random.Random(pieces)
    reader, writer = socket.socketpair()
    framing: Any = Memory(pieces)
    receiver = Receiver(reader, framing)
    found = bytearray()
    interrupts = 0
    # Only what is tested is interrupted. Signals may come to any thread, so that none is masked.
    may_interrupt = is_over = False

    def interrupt(*_: object) -> None:
        nonlocal may_interrupt
        if may_interrupt:
            may_interrupt = False
            raise Interrupt

    def send() -> None:
        with writer:
            writer.sendall(SENT)

    # In a function of its own, since no handler covers the jump back of every loop beside it; see
    # `test_loops_of_the_package_are_covered_by_the_handlers_around_them`.
    def receive_all() -> None:
        nonlocal is_over, may_interrupt
        while not is_over:
            if receiver.receive(socket.MSG_DONTWAIT):
                may_interrupt = False
                count = receiver.counts.pop()
                size = count if isinstance(count, int) else count[0]
                found.extend(framing.memory[:size])
                receiver.buffers = None
                is_over = not size
                may_interrupt = not is_over

    former = signal.signal(signal.SIGALRM, interrupt)
    threading.Thread(target=send, daemon=True).start()
    # Interrupts are kept out of the finalizers of what earlier tests have left.
    with no_garbage_collection():
        while not is_over:
            try:
                may_interrupt = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-5, 2e-4), 1e-4)
                receive_all()
            except Interrupt:
                interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)
    reader.close()
    assert bytes(found) == SENT
    assert interrupts > 20
