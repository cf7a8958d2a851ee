"""The package ray, which is imported when it is first used, and what all uses of it share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from dm_env_rpc_client.extras import importing

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
"""Options of actors, if there are none."""

_END_SECONDS = 5.0


def import_ray() -> Any:
    """Returns the package.

    Raises:
      ModuleNotFoundError: it is not installed; says how to install it.
    """
    with importing("ray", "RayRollouts and RayServers need"):
        import ray
    return ray


def result(reference: Any, timeout: float | None = None) -> Any:
    """Returns what calls of actors return, or raises what they raise.

    Args:
      reference: what `remote` returned, or a list of that.
      timeout: seconds; None for no limit.

    Raises:
      What the actor raised, caused by Ray's RayTaskError, which has its traceback. Otherwise Ray's
      errors: a RayActorError if the actor is gone, a GetTimeoutError.
    """
    ray = import_ray()
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise


def end(actors: Iterable[Any], last: str) -> None:
    """Ends actors; raises nothing.

    Args:
      actors: their handles.
      last: the method that each is to finish before, if it does so within 5 seconds.
    """
    ray = import_ray()
    handles = list(actors)
    if not handles or not ray.is_initialized():
        return  # The end of Ray was the actors' end.
    with contextlib.suppress(ray.exceptions.RayError):
        calls = [getattr(handle, last).remote() for handle in handles]
        ray.wait(calls, num_returns=len(calls), timeout=_END_SECONDS)
    for handle in handles:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(handle)
