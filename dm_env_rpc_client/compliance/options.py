"""What a person tells the compliance suite about a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.runtime.objects import guarded, load_object
from dm_env_rpc_client.tensors.settings import pack_settings

__all__ = ["Options", "yes_or_no"]

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Options:
    """How to use a server, and what it claims to do.

    Settings are values by name, nested or flat. `several_worlds` and `several_agents` are
    None where the suite is to find out: a refusal is a skip then, and not a failure.

    Attributes:
      create_settings: settings with which a world can be created.
      invalid_create_settings: settings of which each, beside the valid ones, must be
        refused.
      required_create_settings: names of create settings without which no world can be
        created.
      join_settings: settings with which a world can be joined.
      invalid_join_settings: settings of which each must be refused.
      reset_settings: settings that a Reset takes, which may change the specs.
      invalid_reset_settings: settings of which each must be refused.
      reset_world_settings: settings that a ResetWorld takes.
      world_name: a world that exists already, on a server that does not create worlds;
        None creates one for each check.
      unknown_world_name: the name of no world.
      policy: where valid actions come from: "random" within bounds, "constant", or
        MODULE:FUNCTION, which is called with the last TimeStep and the action spec and
        returns the action, as in `dm-env-rpc run`.
      seed: of the random policy.
      several_worlds: whether several worlds can exist at once.
      several_agents: whether two connections can join one world.
      companions: how many agents beside the one under test a world waits for. They join
        with it and act on their own.
      max_steps: after how many steps a check gives up waiting for the end of a sequence.
      timeout: seconds to wait for a connection and for each answer.
      quiet_seconds: how long nothing must come where no answer is due.
      insecure: allow plaintext to an address that is not on this machine.
    """

    create_settings: Settings = dataclasses.field(default_factory=dict)
    invalid_create_settings: Settings = dataclasses.field(default_factory=dict)
    required_create_settings: Collection[str] = ()
    join_settings: Settings = dataclasses.field(default_factory=dict)
    invalid_join_settings: Settings = dataclasses.field(default_factory=dict)
    reset_settings: Settings = dataclasses.field(default_factory=dict)
    invalid_reset_settings: Settings = dataclasses.field(default_factory=dict)
    reset_world_settings: Settings = dataclasses.field(default_factory=dict)
    world_name: str | None = None
    unknown_world_name: str = "no such world"
    policy: str = "random"
    seed: int = 0
    several_worlds: bool | None = None
    several_agents: bool | None = None
    companions: int = 0
    max_steps: int = 200
    timeout: float = 10.0
    quiet_seconds: float = 0.2
    insecure: bool = False

    def __post_init__(self) -> None:
        """Raises SpecError where settings cannot be packed or there is no such policy."""
        for field in dataclasses.fields(self):
            if field.name.endswith("settings") and field.name != "required_create_settings":
                pack_settings(getattr(self, field.name))
        unknown = set(self.required_create_settings) - set(self.create_settings)
        if unknown:
            raise SpecError(
                f"the required create setting {min(unknown)!r} is not among the create settings"
            )
        self.load_policy()

    def load_policy(self) -> Callable[..., Any] | None:
        """Returns the function of a policy MODULE:FUNCTION; None for the others.

        Raises:
          SpecError: there is no such function, or policy.
        """
        if self.policy in ("random", "constant"):
            return None
        if ":" not in self.policy:
            raise SpecError(
                f"no policy {self.policy!r}; choose random, constant or MODULE:FUNCTION"
            )
        function = load_object(self.policy, "a policy")
        if not callable(function):
            raise SpecError(f"{self.policy} is no function")
        return guarded(function, f"the policy {self.policy}")


def yes_or_no(text: str | None) -> bool | None:
    """Reads "yes" or "no"; None, for finding out, where there is neither.

    Raises:
      SpecError: it is something else.
    """
    if text not in (None, "yes", "no"):
        raise SpecError(f"choose yes or no, got {text!r}")
    return None if text is None else text == "yes"
