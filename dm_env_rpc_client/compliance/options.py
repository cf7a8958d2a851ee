"""Defines the options of the compliance suite once for Python, the command line and pytest.

Each field of `Options` defines an option and its `Flag`. The help text of the flag is the field's
entry in the docstring. `dm-env-rpc check` and the pytest plugin build their options from `FLAGS`.

The pytest plugin loads this file in every pytest run. To keep loading fast, the rest of the
package is imported inside functions, not at the top of the file.
"""

# ruff: noqa: RUF009 - `_option` returns a field, from which dataclass takes the default.
from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from dm_env_rpc_client.system.keywords import attribute_texts

Settings = Mapping[str, Any]

FINDING = "dm_env_rpc finding"
"""The name of the pytest report property that contains a finding of the suite."""


class Kind(enum.Enum):
    """The kind of a flag's argument, which also determines the type of the field in `Options`."""

    SETTINGS = "NAME=VALUE, repeatable; a mapping"
    NAMES = "a name, repeatable; a tuple"
    TEXT = "text"
    POLICY = "the name of a policy"
    COUNT = "an integer"
    SECONDS = "a positive, finite number"
    YES_OR_NO = "yes or no; None if not given"
    SWITCH = "nothing; True if given"
    FILE = "the path of a file"


class Flag(NamedTuple):
    """The command-line flag for a field of `Options`.

    Attributes:
      name: the flag without its dashes: `--NAME` of the command, `--dm-env-rpc-NAME` of pytest.
      kind: the kind of its argument.
      opposite: the command's flag for "no"; for Kind.YES_OR_NO only.
      minimum: the smallest value; for Kind.COUNT only.
      help: the purpose of the field.
    """

    name: str
    kind: Kind
    opposite: str = ""
    minimum: int = 0
    help: str = ""

    def usage(self) -> str:
        """Return the flag's help text for the command line."""
        is_repeatable = self.kind in (Kind.SETTINGS, Kind.NAMES)
        return f"{self.help} Repeatable." if is_repeatable else self.help


def _option(default: Any, *flag: Any) -> Any:
    """Return a dataclass field with the default `default` and the `Flag` made from `*flag`."""
    return dataclasses.field(default=default, metadata={"flag": Flag(*flag)})


def _settings(name: str) -> Any:
    """Return a dataclass field for settings, with the flag `name` and an empty default."""
    return dataclasses.field(default_factory=dict, metadata={"flag": Flag(name, Kind.SETTINGS)})


@dataclasses.dataclass(frozen=True)
class Options:
    """Options that state how to use the server under test and how it should behave.

    Settings are mappings of names to values, nested or flat.

    Attributes:
      create_settings: Setting for creating worlds.
      invalid_create_settings: Setting that CreateWorld must refuse; each is tried together with
        the valid settings.
      required_create_settings: Name of a create setting without which CreateWorld must fail.
      join_settings: Setting for joining worlds.
      invalid_join_settings: Setting that JoinWorld must refuse; each is tried together with the
        valid settings.
      reset_settings: Setting that Reset accepts; it may change the specs.
      invalid_reset_settings: Setting that Reset must refuse; each is tried alone.
      reset_world_settings: Setting that ResetWorld accepts.
      world_name: Name of an existing world, for a server that does not create worlds. If not
        given, each check creates a world.
      unknown_world_name: Name of a nonexistent world.
      policy: Source of valid actions: random (drawn within the bounds), constant, or
        MODULE:FUNCTION, a function that takes the last TimeStep and the action spec and returns
        an action.
      seed: Seed of the random policy.
      several_worlds: Whether several worlds can exist at once. If not given, the suite tries it;
        if the server refuses, checks are skipped instead of failing.
      several_agents: Whether several connections can join one world. If not given, the suite tries
        it; if the server refuses, checks are skipped instead of failing.
      companions: Number of other agents that a world waits for. The suite joins them in addition
        to the agent under test; they take valid steps on their own.
      connections: Number of simultaneous connections that the server accepts; if it is 0, the
        suite measures it. Checks that need more are skipped.
      max_steps: Number of steps after which a check stops waiting for the end of a sequence.
      timeout: Timeout in seconds for connecting and for each answer.
      quiet_seconds: Seconds during which the server must send nothing if no answer is due.
      strict: Make every warning a failure.
      insecure: Allow plaintext connections to other machines.
      tls_ca: Connect with TLS to servers whose certificate was issued by an authority in this
        PEM file; 'system' instead of a file means the authorities that this machine trusts.
      tls_cert: PEM file with the certificate of this client, for servers that require one.
      tls_key: PEM file with the private key of that certificate.
      token_file: File with the token that the server requires.
    """

    create_settings: Settings = _settings("create")
    invalid_create_settings: Settings = _settings("invalid-create")
    required_create_settings: Collection[str] = _option((), "required-create", Kind.NAMES)
    join_settings: Settings = _settings("join")
    invalid_join_settings: Settings = _settings("invalid-join")
    reset_settings: Settings = _settings("reset")
    invalid_reset_settings: Settings = _settings("invalid-reset")
    reset_world_settings: Settings = _settings("reset-world")
    world_name: str | None = _option(None, "world", Kind.TEXT)
    unknown_world_name: str = _option("no such world", "unknown-world", Kind.TEXT)
    policy: str = _option("random", "policy", Kind.POLICY)
    seed: int = _option(0, "seed", Kind.COUNT)
    several_worlds: bool | None = _option(None, "several-worlds", Kind.YES_OR_NO, "one-world")
    several_agents: bool | None = _option(None, "several-agents", Kind.YES_OR_NO, "one-agent")
    companions: int = _option(0, "companions", Kind.COUNT)
    connections: int = _option(0, "connections", Kind.COUNT)
    max_steps: int = _option(200, "max-steps", Kind.COUNT, "", 1)
    timeout: float = _option(10.0, "timeout", Kind.SECONDS)
    quiet_seconds: float = _option(0.2, "quiet-seconds", Kind.SECONDS)
    strict: bool = _option(False, "strict", Kind.SWITCH)
    insecure: bool = _option(False, "insecure", Kind.SWITCH)
    tls_ca: str | None = _option(None, "tls-ca", Kind.FILE)
    tls_cert: str | None = _option(None, "tls-cert", Kind.FILE)
    tls_key: str | None = _option(None, "tls-key", Kind.FILE)
    token_file: str | None = _option(None, "token-file", Kind.FILE)

    @classmethod
    def from_flags(cls, given: Mapping[str, Any]) -> Options:
        """Return the options specified by the values of command-line flags.

        Args:
          given: the given values by field name: a list of NAME=VALUE strings for settings; "yes",
            "no" or a bool for YES_OR_NO; otherwise the field's value. None stands for the default.

        Raises:
          SpecError: a string is malformed, or a value is invalid.
        """
        from dm_env_rpc_client.tensors.setting_text import parse_settings

        read: dict[Kind, Callable[[Any], Any]] = {
            Kind.SETTINGS: parse_settings,
            Kind.NAMES: tuple,
            Kind.YES_OR_NO: lambda value: {"yes": True, "no": False}.get(value, value),
        }
        values = {field: value for field, value in given.items() if value is not None}
        for field, value in values.items():
            values[field] = read.get(FLAGS[field].kind, lambda value: value)(value)
        return cls(**values)

    def __post_init__(self) -> None:
        """Raise SpecError if a value is invalid or the policy does not exist."""
        from dm_env_rpc_client import arguments
        from dm_env_rpc_client.errors import SpecError
        from dm_env_rpc_client.tensors.settings import pack_settings

        checked: dict[Kind, Callable[..., Any]] = {
            Kind.SECONDS: arguments.seconds,
            Kind.SWITCH: arguments.flag,
            Kind.NAMES: arguments.names,
            Kind.POLICY: arguments.text,
            Kind.FILE: functools.partial(arguments.path, none="None"),
        }
        for field, flag in FLAGS.items():
            value = getattr(self, field)
            if flag.kind in checked:
                checked[flag.kind](field, value)
            elif flag.kind is Kind.SETTINGS:
                pack_settings(value, field)
            elif flag.kind is Kind.COUNT:
                arguments.count(field, value, least=flag.minimum)
            elif flag.kind is Kind.YES_OR_NO and value not in (True, False, None):
                raise SpecError(f"{field} must be yes or no, got {value!r}")
        unknown = set(self.required_create_settings) - set(self.create_settings)
        if unknown:
            raise SpecError(
                f"the required create setting {min(unknown)!r} is not among the create settings"
            )
        if 0 < self.connections <= self.companions:
            raise SpecError(
                f"{self.companions} companions and the agent under test need "
                f"{self.companions + 1} connections, got connections={self.connections}"
            )
        self.load_policy()

    def security(self) -> dict[str, Any]:
        """Return the `connect` arguments for TLS, the token and `insecure`.

        Raises:
          SpecError: a file cannot be read, or its contents are invalid.
        """
        from dm_env_rpc_client.transports.net.credentials import tls_from_flags
        from dm_env_rpc_client.transports.net.metadata import read_token

        return {
            "insecure": self.insecure,
            "credentials": tls_from_flags(self.tls_ca, self.tls_cert, self.tls_key),
            "token": None if self.token_file is None else read_token(self.token_file),
        }

    def load_policy(self) -> Callable[..., Any] | None:
        """Return the function named by a MODULE:FUNCTION policy, or None for a built-in policy.

        Raises:
          SpecError: the function or the policy does not exist.
        """
        from dm_env_rpc_client.errors import SpecError
        from dm_env_rpc_client.system.sources import guarded, load_object, look_in_current_folder

        if self.policy in ("random", "constant"):
            return None
        if ":" not in self.policy:
            raise SpecError(
                f"unknown policy {self.policy!r}; choose random, constant or MODULE:FUNCTION"
            )
        look_in_current_folder()
        function = load_object(self.policy, "a policy")
        if not callable(function):
            raise SpecError(f"{self.policy} is not a function")
        return guarded(function, f"the policy {self.policy}")


def _flags() -> dict[str, Flag]:
    """Return the flag of each field, with the help text from the docstring."""
    texts = attribute_texts(Options)
    return {
        field.name: field.metadata["flag"]._replace(help=texts.get(field.name, ""))
        for field in dataclasses.fields(Options)
    }


FLAGS: dict[str, Flag] = _flags()
"""The command-line flag of each field of `Options`."""
