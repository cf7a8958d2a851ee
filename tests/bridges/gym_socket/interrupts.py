"""Steps a Counter while signals interrupt it at random points; run as a process.

Not within pytest: an interrupt inside the locking of a tool that watches the tests, such
as coverage, leaves its lock behind.
"""

from __future__ import annotations

import random
import signal
import sys
from types import FrameType

from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment
from dm_env_rpc_client.errors import ConnectionLostError


class InterruptError(BaseException):
    """Comes out of anywhere, like KeyboardInterrupt."""


def step_for_ever(environment: GymSocketEnvironment) -> None:
    """Steps a Counter and checks that each answer is that of its own packet."""
    expected = None
    while True:
        timestep = environment.step(0)
        found = int(timestep.observation[0])
        assert timestep.first() == (found == 0)
        assert timestep.last() == (found == 5)
        # A sequence goes on where it was, or begins anew.
        assert found in (0, expected) or expected is None
        expected = None if timestep.last() else found + 1


def interrupt_steps(_: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code is step_for_ever.__code__:
            raise InterruptError
        frame = frame.f_back


def main(address: str, count: int) -> None:
    chance = random.Random(6)
    signal.signal(signal.SIGALRM, interrupt_steps)
    environment = GymSocketEnvironment(address, "C")
    interrupts = lost = 0
    while interrupts < count:
        try:
            # Again and again, for one that comes elsewhere is ignored.
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3), 2e-3)
            step_for_ever(environment)
        except InterruptError:
            interrupts += 1
        except ConnectionLostError:
            lost += 1
            environment.close()
            environment = GymSocketEnvironment(address, "C")
    signal.setitimer(signal.ITIMER_REAL, 0)
    environment.close()
    print(interrupts, lost)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
