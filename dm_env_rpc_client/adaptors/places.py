"""The modules in which users find the adaptors of each library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ADAPTORS = __name__.rpartition(".")[0]

_PLACES = {
    "GymnasiumEnv": "gymnasium",
    "GymnasiumEnvironment": "gymnasium",
    "RemoteVectorEnv": "gymnasium",
    "make_remote": "gymnasium",
    "RemoteParallelEnv": "pettingzoo",
    "RemoteSb3VecEnv": "sb3",
}


def pointing(module: str, own: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module in which users look for adaptors of another module.

    Args:
      module: the name of the module.
      own: returns an attribute of the module that is imported on first use, or raises
        AttributeError.

    Returns:
      A function that raises ImportError for the name of such an adaptor, with the module to import
      it from. `from MODULE import NAME` would replace the message of an AttributeError.
    """

    def get(name: str) -> Any:
        try:
            if own is not None:
                return own(name)
        except AttributeError:
            if name not in _PLACES:
                raise
        if name in _PLACES:
            place = f"{_ADAPTORS}.{_PLACES[name]}"
            text = f"cannot import name {name!r} from {module!r}; import it from {place!r}"
            raise ImportError(text, name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get
