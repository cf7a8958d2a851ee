"""What recording adds to a step: by the client itself, and by a proxy in another process."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from dm_env_rpc_client import make
from dm_env_rpc_client.recording import proxy
from tests.benchmarks.processes import serving
from tests.benchmarks.results import Section, Target
from tests.benchmarks.rounds import Contender, timed
from tests.benchmarks.sections.stepping import PAYLOADS
from tests.benchmarks.settings import Settings

PLAIN = "not recorded"
RECORDED = "recorded"
PROXY = "through a proxy that records"

_PAYLOADS = ("scalar", "vector", "uint8", "float32")
_QUICK_PAYLOADS = ("scalar",)
_STEPS = 300
"""Steps of one turn: in some turns a chunk is written."""

_MOST = 1.1


def _contender(
    stack: contextlib.ExitStack, address: str, payload: str, record: Path | None = None
) -> Contender:
    env = stack.enter_context(make(address, {"payload": payload}, record=record))
    env.reset()
    return timed(lambda: env.step({"action": 1}), _STEPS)


def recording(settings: Settings) -> Section:
    """A step that is recorded, against one that is not."""
    rows = []
    for payload in _QUICK_PAYLOADS if settings.is_quick else _PAYLOADS:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            path = str(folder / "proxy.mcap")
            through = stack.enter_context(serving(proxy, settings.address, path))
            contenders = {
                PLAIN: _contender(stack, settings.address, payload),
                RECORDED: _contender(stack, settings.address, payload, folder / "run.mcap"),
                PROXY: _contender(stack, through, payload),
            }
            name = PAYLOADS[payload]
            rows.append(settings.row(name, contenders, f"recording, {name}"))
    scalar = rows[0]
    target = Target(
        f"{scalar.name}: a recorded step, times one that is not",
        scalar.ratio(RECORDED, PLAIN),
        _MOST,
        is_minimum=False,
    )
    return Section("recording", "One step, recorded and not", rows, [target])
