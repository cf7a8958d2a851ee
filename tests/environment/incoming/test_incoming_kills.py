"""Servers that have dialed in are killed at random moments, and come back."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dm_env_rpc_client import Restart, Tls, listen
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from tests.reliability.recording import Seen
from tests.support.certificates import Authority

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")

TRANSPORTS = ["http2"]
ROOT = Path(__file__).parents[3]
PATIENCE = 120.0
LAST_STEPS = 20


class Engines:
    """Processes that serve environments to those who listen.

    Args:
      address: whom they dial.
      environments: how many each has.
      arguments: further ones of the command.
    """

    def __init__(self, address: str, environments: int, *arguments: str):
        self._command = [
            sys.executable, "-m", "dm_env_rpc_client", "serve", "tests.support.environments:Echo",
            "--dial", address, "--no-try", "--environments", str(environments), *arguments,
        ]  # fmt: skip
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._running.append(
            subprocess.Popen(
                self._command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )

    def kill(self, index: int) -> None:
        engine = self._running.pop(index)
        engine.kill()
        engine.wait()

    def close(self) -> None:
        while self._running:
            self.kill(0)


def encrypted(folder: Path) -> tuple[Tls, list[str]]:
    """Certificates of the trainer, and options with those of an engine."""
    authority = Authority(folder / "ca")
    trainer, engine = authority.issue("trainer"), authority.issue("engine")
    options = ["--tls-ca", str(authority.ca), "--tls-cert", str(engine.cert)]
    options += ["--tls-key", str(engine.key)]
    return Tls(ca=authority.ca, cert=trainer.cert, key=trainer.key), options


def stepped_while(killer: threading.Thread, envs: RemoteVectorEnv, count: int) -> tuple[int, int]:
    """Starts a thread that kills servers, and steps until it has ended and nothing is lost.

    Each TimeStep is compared with what its environment has to answer.

    Returns:
      The number of steps, and of those that were lost.
    """
    steps = losses = quiet = 0
    observations, _ = envs.reset()
    had_ended = np.zeros(count, bool)
    killer.start()
    while killer.is_alive() or quiet < LAST_STEPS:
        steps += 1
        actions = np.arange(count) + steps
        before = observations
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        lost = infos.get("restarted", np.zeros(count, bool))
        assert not terminated.any()
        assert (truncated == lost).all()
        expected = np.where(had_ended, -1, np.where(lost, before, actions))
        np.testing.assert_array_equal(observations, expected)
        np.testing.assert_array_equal(rewards, ~np.logical_or(lost, had_ended))
        losses += int(lost.sum())
        quiet = 0 if lost.any() or had_ended.any() else quiet + 1
        had_ended = truncated
    return steps, losses


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("processes", "each", "kills"),
    [
        (2, 3, 2),
        pytest.param(8, 8, 20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_every_timestep_is_right_and_every_place_is_filled_again(
    processes: int, each: int, kills: int, is_encrypted: bool, tmp_path: Path, seen: Seen
) -> None:
    chance = random.Random(kills)
    count = processes * each
    credentials, more = encrypted(tmp_path) if is_encrypted else (None, [])
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("s3cret")
    wrong.write_text("guessed")
    is_over = threading.Event()
    done = 0
    with listen("localhost:0", token="s3cret", credentials=credentials) as incoming:
        engines = Engines(incoming.address, each, "--token-file", str(right), *more)
        stranger = Engines(incoming.address, each, "--token-file", str(wrong), *more)

        def kill_and_start() -> None:
            nonlocal done
            while done < kills and not is_over.is_set():
                # Those of a server that starts wait for it, with all others.
                if not incoming.wait_for(each, 1.0):
                    continue
                time.sleep(chance.uniform(0.0, 0.5))  # At any moment.
                engines.kill(chance.randrange(processes))
                engines.start()
                done += 1

        try:
            stranger.start()
            # One more than are needed, so that one waits.
            for _ in range(processes + 1):
                engines.start()
            assert incoming.wait_for(count + each, PATIENCE)
            envs = RemoteVectorEnv(
                incoming,
                count,
                timeout=PATIENCE,
                restart=Restart(attempts=1000, backoff=0.01, max_backoff=0.1),
            )
            killer = threading.Thread(target=kill_and_start)
            try:
                steps, losses = stepped_while(killer, envs, count)
                # What is lost once more before its sequence has begun loses no step.
                assert envs.restarts >= losses > 0
                assert incoming.wait_for(each, PATIENCE)
            finally:
                is_over.set()
                killer.join()
                envs.close()
            assert incoming.wait_for(count + each, PATIENCE)
            assert incoming.waiting == count + each
            assert incoming.refused > 0
            seen(kills=done, steps=steps, lost_steps=losses, refused=incoming.refused)
        finally:
            engines.close()
            stranger.close()
    assert done == kills
