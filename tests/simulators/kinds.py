"""The simulators, and servers of them in other processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from tests.adaptors.gymnasium.batches import Batch
from tests.simulators import factories
from tests.support.programs import ROOT
from tests.support.stopwatch import patience


def _rows(needs: str, factory: str, library: str, mode: str, form: str) -> Batch:
    return Batch(
        getattr(factories, factory), needs, mode=mode, library=library, form=form,
        has_four="4 values" in form, rows=factories.ROWS, least_ends=20,
    )  # fmt: skip


ROWS = {
    "gymnax_cart_pole": _rows(
        "gymnax", "gymnax_cart_pole", "jax", "SAME_STEP",
        "GymnaxToVectorGymWrapper: arrays jax on cpu:0, 5 values",
    ),
    "brax_pendulum": _rows(
        "brax", "brax_pendulum", "jax", "SAME_STEP",
        "VectorGymWrapper: arrays jax on cpu:0, 4 values",
    ),
    "vmas_rows": _rows(
        "vmas", "vmas_rows", "numpy", "DISABLED", "Environment: arrays numpy, 5 values"
    ),
    "vmas_rows_of_torch": _rows(
        "vmas", "vmas_rows_of_torch", "torch", "DISABLED",
        "Environment: arrays torch on cpu, 5 values",
    ),
}  # fmt: skip
"""Those that step a batch, by the function of `factories` that makes them."""

SINGLES = {"jumanji_dm_env": "jumanji", "jumanji_gymnasium": "jumanji", "vmas_single": "vmas"}
"""The packages of those that step one environment."""


@contextlib.contextmanager
def served(factory: str, *options: str) -> Iterator[str]:
    """A server in a process of its own; yields its address."""
    command = [
        sys.executable, "-W", "ignore", "-m", "dm_env_rpc_client", "serve",
        f"{factories.__name__}:{factory}", "--address", "localhost:0", "--json", "--no-try",
        *options,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait(patience(60))
