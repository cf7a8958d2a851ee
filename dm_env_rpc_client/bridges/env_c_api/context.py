"""An EnvCApi context, with one method for each function of its library.

This thin layer maps arguments, return codes and pointers, copies all library memory before a
method returns, and checks the ranges of numbers. `LocalRunner` ensures that the functions are
called in the right order.
"""

from __future__ import annotations

import enum
import errno
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api import declarations
from dm_env_rpc_client.bridges.env_c_api.declarations import Layout
from dm_env_rpc_client.bridges.env_c_api.description import Event, ObservationType, checked_size
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.errors import LibraryError, PropertyError, ProtocolError, SpecError
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits


class Status(enum.IntEnum):
    """The status of an environment after `advance`, with the numeric values of EnvCApi."""

    RUNNING = 0
    INTERRUPTED = 1
    ERROR = 2
    TERMINATED = 3


class Context:
    """An environment inside a library.

    Not thread-safe. Every method except `release` raises ProtocolError if the library breaks the
    interface.

    Args:
      layout: the version of the interface.
      api: a filled `EnvCApi*` of that version.
      handle: the library's `void*` for the environment.
      keep_alive: objects to which the library may hold pointers.
      limits: limits for copies of the library's declarations.
    """

    def __init__(
        self,
        layout: Layout,
        api: Any,
        handle: Any,
        keep_alive: Sequence[Any] = (),
        limits: Limits = DEFAULT,
    ):
        ffi = layout.ffi
        self.layout = layout
        self.limits = limits
        self._keep_alive = (api, *keep_alive)
        self._handle = handle
        self._call = {name: getattr(api, name) for name in layout.functions}
        self._observation = ffi.new("EnvCApi_Observation*")
        # Views into the struct above; a look-up in every step would be slow.
        self._observation_spec = self._observation.spec
        self._observation_payload = self._observation.payload
        self._event = ffi.new("EnvCApi_Event*")
        self._reward = ffi.new("double*")
        self._discrete = ffi.new("int[]", 0)
        self._continuous = ffi.new("double[]", 0)
        self._texts: tuple[Any, ...] = ()

    def setting(self, key: str, value: str) -> None:
        """Apply a setting, or raise SpecError with the library's message if it is refused."""
        texts = self._c_text(key, "setting"), self._c_text(value, f"setting {key!r}")
        code = self._call["setting"](self._handle, *texts)
        if code:
            raise SpecError(f"setting {key!r}: {value!r} is invalid: {self.error_message()}")

    def init(self) -> None:
        """Complete the settings by calling `init`, or raise LibraryError if it fails."""
        self._check("init", self._call["init"](self._handle))

    def start(self, episode: int, seed: int) -> bool:
        """Start an episode, or return False if the library requests another call (EAGAIN)."""
        code = self._call["start"](self._handle, episode, seed)
        if code == errno.EAGAIN:
            return False
        self._check("start", code)
        return True

    def release(self) -> None:
        """Release the environment; call this once, after all other calls."""
        self._call["release_context"](self._handle)

    def error_message(self) -> str:
        """Return the library's error message; call this right after a failure."""
        pointer, most = self._call["error_message"](self._handle), self.limits.error_bytes
        # An invalid message must not hide the failure itself.
        if not pointer:
            return "(no message: error_message returned null)"
        data = self.layout.ffi.string(pointer, most + 1)
        text: str = data[:most].decode(errors="ignore" if len(data) > most else "backslashreplace")
        return f"{text}... (more than {most} bytes)" if len(data) > most else text or "(no message)"

    def write_property(self, key: str, value: str) -> None:
        """Write a property, or raise PropertyError if the library refuses."""
        texts = self._c_text(key, "property"), self._c_text(value, f"property {key!r}")
        result = self._call["write_property"](self._handle, *texts)
        self._check_property("write", key, result)

    def read_property(self, key: str) -> str:
        """Read a property, or raise PropertyError if the library refuses."""
        value = self.layout.ffi.new("const char**")
        result = self._call["read_property"](self._handle, self._c_text(key, "property"), value)
        self._check_property("read", key, result)
        most, where = self.limits.text_bytes, f"the value of property {key!r}"
        return declarations.copy_text(self.layout.ffi, value[0], most, where)

    def list_property(self, key: str) -> dict[str, PropertyAttributes]:
        """List a property's direct children, or raise PropertyError if the library refuses."""
        ffi, token, listing = self.layout.ffi, next(_tokens), _Listing(self.limits)
        _listings[token] = listing
        try:
            result = self._call["list_property"](
                self._handle,
                ffi.cast("void*", token),
                self._c_text(key, "property"),
                _property_callback(self.layout),
            )
        finally:
            # Makes a late callback harmless: it finds no listing and does nothing.
            del _listings[token]
        self._check_property("list", key, result)
        if listing.problem is not None:
            raise ProtocolError(f"list_property of {key!r}: {listing.problem}")
        return listing.found

    def count(self, function: str) -> int:
        """Return the result of a counting function of the library, such as "observation_count"."""
        count: int = self._call[function](self._handle)
        if not 0 <= count <= self.limits.specs:
            raise ProtocolError(
                f"{function} is {count}; expected 0 to {self.limits.specs} (Limits.specs)"
            )
        return count

    def name(self, function: str, *index: int) -> str:
        """Return the name for an index from a library function such as "observation_name"."""
        where = " of ".join([function, *map(str, index)])
        pointer = self._call[function](self._handle, *index)
        return declarations.copy_text(self.layout.ffi, pointer, self.limits.name_bytes, where)

    def action_bounds(self, kind: str, index: int) -> tuple[Any, Any]:
        """Return the inclusive bounds of a "discrete" or "continuous" action."""
        # Initially reversed, so that bounds not written by the library are rejected.
        number = "int" if kind == "discrete" else "double"
        pair = self.layout.ffi.new(f"{number}[2]", [1, 0])
        self._call[f"action_{kind}_bounds"](self._handle, index, pair, pair + 1)
        return pair[0], pair[1]

    def observation_spec(self, index: int) -> tuple[ObservationType, tuple[int, ...] | None]:
        """Return the type and the shape of an observation.

        In the shape, 0 is a variable length. The shape is None if even the number of dimensions
        varies; some libraries declare this as 0 dimensions, others as -1.
        """
        where = f"observation_spec of {index}"
        spec = self.layout.ffi.new("EnvCApi_ObservationSpec*")
        spec.type = spec.dims = declarations.UNSET
        self._call["observation_spec"](self._handle, index, spec)
        if spec.dims in (0, -1):
            return declarations.known_type(self.layout, spec.type, where), None
        shape = declarations.read_shape(self.layout.ffi, spec, where)
        type_ = declarations.known_type(self.layout, spec.type, where)
        if type_ is ObservationType.STRING and len(shape) != 1:
            raise ProtocolError(f"{where}: a string must have 1 dimension, got {len(shape)}")
        checked_size(shape, type_.item_bytes, self.limits.message_bytes, where)
        return type_, shape

    def fps(self) -> int | None:
        """Return the steps per second of wall-clock time, or None in versions without `fps`."""
        function = self._call.get("fps")
        return None if function is None else int(function(self._handle))

    def observation(self, index: int, budget: int, where: str) -> Any:
        """Copy an observation of at most `budget` bytes into a new array or a `str`."""
        self._get_observation(index)
        most = self.limits.message_bytes
        return declarations.copy_observation(self.layout, self._observation, budget, most, where)

    def fixed_observation(
        self, index: int, type_number: int, shape: list[int], dtype: np.dtype[Any], size: int
    ) -> Any:
        """Copy an array quickly, or return None if its type or shape is unexpected."""
        self._get_observation(index)
        spec, ffi = self._observation_spec, self.layout.ffi
        pointer = self._observation_payload.bytes
        if (
            pointer
            and spec.type == type_number
            and spec.dims == len(shape)
            # A scalar may have a null pointer.
            and (not shape or (spec.shape and ffi.unpack(spec.shape, spec.dims) == shape))
        ):
            return np.frombuffer(ffi.buffer(pointer, size), dtype).reshape(shape).copy()
        return None

    def event_count(self) -> int:
        """Return the number of events since the last call to `advance`."""
        count: int = self._call["event_count"](self._handle)
        # Inlines `count` for zero events, because every step calls this.
        return count if count == 0 else self.count("event_count")

    def event(self, index: int, names: Sequence[str], budget: int) -> Event:
        """Copy an event whose observations occupy at most `budget` bytes in total."""
        event = self._event
        event.id = event.observation_count = declarations.UNSET
        event.observations = self.layout.ffi.NULL
        self._call["event"](self._handle, index, event)
        id_, count, where = event.id, event.observation_count, f"event {index}"
        if not 0 <= id_ < len(names):
            raise ProtocolError(
                f"{where} has id {id_}; expected at least 0 and less than {len(names)}, the "
                "number of event types"
            )
        if not 0 <= count <= self.limits.specs:
            raise ProtocolError(
                f"{where} has {count} observations; expected 0 to {self.limits.specs} "
                "(Limits.specs)"
            )
        if count and not event.observations:
            raise ProtocolError(
                f"{where} has {count} observations, but the pointer to them is null"
            )
        observations = []
        for i in range(count):
            place = f"{where}: observation {i}"
            value = declarations.copy_observation(
                self.layout, event.observations[i], budget, self.limits.message_bytes, place
            )
            budget -= declarations.size_of(value)
            observations.append(value)
        return Event(id_, names[id_], tuple(observations))

    def act_discrete(self, actions: Sequence[int]) -> None:
        """Set the discrete actions, which remain in effect until they are set again."""
        # Keeps the array alive, because the interface does not promise to copy it.
        self._discrete = self.layout.ffi.new("int[]", actions)
        self._call["act_discrete"](self._handle, self._discrete)

    def act_continuous(self, actions: Sequence[float]) -> None:
        """Set the continuous actions, which remain in effect until they are set again."""
        self._continuous = self.layout.ffi.new("double[]", actions)
        self._call["act_continuous"](self._handle, self._continuous)

    def act_text(self, actions: Sequence[str]) -> None:
        """Set the text actions, which remain in effect until they are set again."""
        ffi = self.layout.ffi
        encoded = [declarations.encode(action, "text action") for action in actions]
        # ffi.new appends the null that the interface requires in addition to the length.
        buffers = [ffi.new("char[]", data) for data in encoded]
        array = ffi.new("EnvCApi_TextAction[]", len(buffers))
        for i, (buffer, data) in enumerate(zip(buffers, encoded, strict=True)):
            array[i].data = buffer
            array[i].len = len(data)
        former, self._texts = self._texts, (array, *buffers)
        self._call["act_text"](self._handle, array)
        del former  # The library may have used the former texts until now.

    def advance(self, steps: int) -> tuple[Status, float]:
        """Advance the environment by a number of steps.

        Returns:
          The status and the reward.

        Raises:
          LibraryError: the status is Error.
        """
        self._reward[0] = math.nan
        number = self._call["advance"](self._handle, steps, self._reward)
        reward: float = self._reward[0]
        if number == Status.ERROR:
            raise LibraryError("advance", number, self.error_message())
        if number not in _STATUSES:
            raise ProtocolError(f"advance returned status {number}; expected 0 to 3")
        if math.isnan(reward):
            raise ProtocolError(
                "advance: the reward is NaN or was not stored; expected a number (0 is allowed)"
            )
        return _STATUSES[number], reward

    def _get_observation(self, index: int) -> None:
        spec, null = self._observation_spec, self.layout.ffi.NULL
        spec.type = spec.dims = declarations.UNSET
        spec.shape = null
        self._observation_payload.bytes = null
        self._call["observation"](self._handle, index, self._observation)

    def _check(self, function: str, code: int) -> None:
        if code:
            raise LibraryError(function, code, self.error_message())

    def _check_property(self, operation: str, key: str, number: int) -> None:
        if number not in _PROPERTY_RESULTS:
            raise ProtocolError(
                f"{operation}_property of {key!r} returned {number}; expected 0 to 3"
            )
        result = _PROPERTY_RESULTS[number]
        if result == "INVALID_ARGUMENT" and operation != "write":
            raise ProtocolError(
                f"{operation}_property of {key!r} returned InvalidArgument, which only "
                "write_property may return"
            )
        if result is not None:
            raise PropertyError.of_result(operation, key, result)

    def _c_text(self, text: str, where: str) -> Any:
        return self.layout.ffi.new("char[]", declarations.encode(text, where))


_STATUSES = {int(status): status for status in Status}

_PROPERTY_RESULTS = {0: None, 1: "NOT_FOUND", 2: "PERMISSION_DENIED", 3: "INVALID_ARGUMENT"}


class _Listing:
    """The properties reported by the callbacks of one list_property call."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.found: dict[str, PropertyAttributes] = {}
        self.problem: str | None = None

    def add(self, ffi: Any, key: Any, attributes: int) -> None:
        text = declarations.copy_text(ffi, key, self._limits.name_bytes, "a key")
        if not 0 <= attributes < 2 * PropertyAttributes.LISTABLE.value:
            raise ProtocolError(f"property {text!r} has attributes {attributes}; expected 0 to 7")
        if len(self.found) == self._limits.specs:
            raise ProtocolError(
                f"the property has more than {self._limits.specs} children (Limits.specs)"
            )
        self.found[text] = PropertyAttributes(attributes)


_tokens = itertools.count(1)
_listings: dict[int, _Listing] = {}
"""The listings in progress, keyed by `userdata`, a number that is never dereferenced."""


@functools.cache
def _property_callback(layout_: Layout) -> Any:
    """Return the list_property callback that all contexts of an EnvCApi version share.

    It is never freed, because a library may call it after list_property has returned.
    """
    ffi = layout_.ffi

    def on_property(userdata: Any, key: Any, attributes: int) -> None:
        listing = _listings.get(int(ffi.cast("uintptr_t", userdata)))
        if listing is not None and listing.problem is None:
            try:
                listing.add(ffi, key, attributes)
            except BaseException as error:
                # An exception cannot pass through the library's C frames.
                listing.problem = str(error) or type(error).__name__

    return ffi.callback("EnvCApi_PropertyCallback", on_property)
