from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.launch.processes import children_of, is_alive
from tests.support.scripted import settles

INIT: dict[str, Any] = {
    "address": "local",
    "_node_ip_address": "127.0.0.1",
    "num_cpus": 2,
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": "ERROR",
    "object_store_memory": 100 << 20,
}
"""How a cluster for tests is started: small."""

VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # All listens on loopback, on Linux, too.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Else it warns of what a later version does.
    "RAY_agent_register_timeout_ms": "100000",
}

ATTEMPTS = 4
"""How often Ray is started: it waits 30 seconds, which may be too short on a busy machine."""


def descendants_of(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        children = children_of(waiting.pop())
        found.update(children)
        waiting.extend(children)
    return found


def start(ray: Any, **options: Any) -> None:
    """Starts a cluster in which the variables are set."""
    for attempt in range(ATTEMPTS):
        try:
            ray.init(**INIT, **options)
            return
        except Exception:
            ray.shutdown()
            if attempt == ATTEMPTS - 1:
                raise


@contextlib.contextmanager
def without_resource_warnings() -> Iterator[None]:
    """Ray leaves it to the garbage collector to close the files of its processes' output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Ray, with a cluster of two processors. At the end none of its processes is left."""
    pytest.importorskip("ray")
    before = descendants_of(os.getpid())
    folder = tempfile.mkdtemp(prefix="ray-")  # Paths of sockets are short.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        with without_resource_warnings():
            import ray

            start(ray, _temp_dir=folder)
        try:
            yield ray
        finally:
            started = descendants_of(os.getpid()) - before
            with without_resource_warnings():
                ray.shutdown()
                is_over = settles(lambda: not any(map(is_alive, started)), 20)
            shutil.rmtree(folder, ignore_errors=True)
    assert len(started) > 2
    assert is_over
