"""Options that are shared by several commands.

A command accepts a group of options as one parameter, whose type is a dataclass. `with_options`
adds an argument or option for each field. The help text of a field is its entry in the docstring
of the dataclass. Fields shared with the compliance suite are declared in its table `FLAGS`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import ArgumentInfo
from typing_extensions import Self

from dm_env_rpc_client.cli.consoles import Layers, cell, progress, waiting
from dm_env_rpc_client.cli.failures import WRONG_USAGE, UsageError
from dm_env_rpc_client.compliance.options import FLAGS, Flag, Kind
from dm_env_rpc_client.system.keywords import attribute_texts
from dm_env_rpc_client.system.sources import DOCKER, PROCESS, is_launch
from dm_env_rpc_client.tensors.setting_text import parse_settings

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
    from dm_env_rpc_client.transports.net.credentials import Tls

CATCH = "python:dm_env_rpc_client.server:Catch"
"""The server for commands that are called without an address."""

Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


def _complete_policy(incomplete: str) -> list[str]:
    return [name for name in ("random", "constant") if name.startswith(incomplete)]


def _check_seconds(seconds: float) -> float:
    from dm_env_rpc_client import arguments
    from dm_env_rpc_client.errors import SpecError

    try:
        return arguments.seconds("a number of seconds", seconds)
    except SpecError as error:
        raise typer.BadParameter(str(error)) from None


def _check_given(seconds: float | None) -> float | None:
    return None if seconds is None else _check_seconds(seconds)


_BY_KIND: dict[Kind, dict[str, Any]] = {
    Kind.SETTINGS: {"metavar": "NAME=VALUE"},
    Kind.NAMES: {"metavar": "NAME"},
    Kind.TEXT: {"metavar": "NAME"},
    Kind.POLICY: {"metavar": "POLICY", "autocompletion": _complete_policy},
    Kind.COUNT: {"metavar": "N"},
    Kind.SECONDS: {"metavar": "SECONDS", "callback": _check_seconds},
    Kind.FILE: {"metavar": "FILE"},
}


def option(field: str) -> Any:
    """Return the command-line option for `field`, a key of the compliance suite's `FLAGS`.

    The option for a file can also be set by an environment variable.
    """
    flag: Flag = FLAGS[field]
    names = [f"--{flag.name}" + (f"/--{flag.opposite}" if flag.opposite else "")]
    details = dict(_BY_KIND.get(flag.kind, {}))
    if flag.kind is Kind.POLICY:
        names.append("-p")
    elif flag.kind is Kind.COUNT:
        details["min"] = flag.minimum
    elif flag.kind is Kind.FILE:
        details["envvar"] = f"DM_ENV_RPC_{field.upper()}"
    return typer.Option(*names, help=flag.usage(), **details)


class Group:
    """Base class for dataclasses that combine several options in one parameter of a command."""

    def ready(self) -> contextlib.AbstractContextManager[Self]:
        """Return a context manager that prepares the options and yields them."""
        return contextlib.nullcontext(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access(Group):
    """Security options for a command's connections."""

    insecure: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether connections use plaintext and are therefore allowed only within this machine."""
        return not (self.insecure or self.tls_ca or self.tls_cert or self.tls_key)

    @functools.cached_property
    def credentials(self) -> Tls | None:
        """The TLS credentials, or None for plaintext.

        Raises SpecError if a file cannot be read or is invalid.
        """
        from dm_env_rpc_client.transports.net.credentials import tls_from_flags

        return tls_from_flags(self.tls_ca, self.tls_cert, self.tls_key)

    @functools.cached_property
    def token(self) -> str | None:
        """The token that a client sends and a server requires, or None.

        Raises SpecError if the token file cannot be read or is invalid.
        """
        from dm_env_rpc_client.transports.net.metadata import read_token

        return read_token(self.token_file) if self.token_file else None

    def secured(self) -> dict[str, Any]:
        """Return the security arguments for `connect` and `serve`."""
        return {"insecure": self.insecure, "credentials": self.credentials, "token": self.token}

    def flags(self) -> dict[str, Any]:
        """Return the values of all options of this class by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Access)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server(Access):
    """A server that a command connects to.

    Attributes:
      address: Address of the server, such as localhost:50051; or process:COMMAND, docker:IMAGE or
        python:MODULE:NAME, to start one for this command.
    """

    address: Annotated[str, typer.Argument(metavar="ADDRESS")]
    timeout: float = 10.0

    @contextlib.contextmanager
    def ready(self) -> Iterator[Self]:
        """Return a context manager that launches the server if `address` names one to launch."""
        if not is_launch(self.address):
            yield self
            return
        from dm_env_rpc_client.client.connect_options import CONNECT_SECONDS
        from dm_env_rpc_client.environment.server_location import launched
        from dm_env_rpc_client.errors import LaunchError

        # The flags are for other servers than the example game that this command starts.
        access = Access() if self.address == CATCH else self
        seconds = CONNECT_SECONDS if self.timeout == CONNECT_SECONDS else self.timeout
        with contextlib.ExitStack() as stack:
            with progress(Layers()) as bar:
                task = bar.add_task("starting the server", total=None)

                def show(what: str, done: int, total: int) -> None:
                    bar.update(task, description=cell(what), completed=done, total=total or None)

                found = launched(self.address, seconds, show, **access.secured())
                try:
                    address = stack.enter_context(found)
                except LaunchError as error:
                    # This package's own server runs the other kinds, and has rejected the text.
                    own = not self.address.startswith((PROCESS, DOCKER))
                    if own and error.exit_code == WRONG_USAGE:
                        raise UsageError(str(error)) from error
                    raise
            yield dataclasses.replace(self, **access.flags(), address=address)

    def check_address(self) -> None:
        """Check that the address is well-formed and that connecting to it is allowed.

        Raises:
          UsageError: the address is malformed, or the server is on another machine and plaintext
            was not allowed.
        """
        _check(
            self.address,
            self.is_plain,
            "an address looks like localhost:50051, [::1]:50051 or unix:/tmp/socket, and a server "
            "to start like process:COMMAND, docker:IMAGE or python:MODULE:NAME",
            f"{self.address} is not on this machine; pass --tls-ca FILE to connect with TLS, or "
            "--insecure to connect in plaintext, which others on the network can read",
        )

    def _connecting(self, **options: Any) -> dict[str, Any]:
        """Return arguments for `connect`, with the same errors as `check_address` and `secured`."""
        self.check_address()
        timeouts = {"timeout": self.timeout, "request_timeout": self.timeout}
        return {**timeouts, **self.secured(), **options}

    @contextlib.contextmanager
    def connection(self, **options: Any) -> Iterator[Connection]:
        """Return a context manager for a connection; see `check_address` and `connect` for errors.

        Args:
          **options: arguments of `connect` that override the command line.
        """
        from dm_env_rpc_client.client.connecting import connect

        how = self._connecting(**options)
        with waiting(f"connecting to {self.address}"):
            connection = connect(self.address, **how)
        with connection:
            yield connection


@dataclasses.dataclass(frozen=True, kw_only=True)
class World(Server):
    """The new or existing world that a command joins.

    Attributes:
      create_settings: Setting for creating the world. Repeatable.
      join_settings: Setting for joining the world. Repeatable.
      world_name: Name of an existing world to join instead of a new one.
      keepalive_timeout: Seconds without a sign of life after which the server counts as lost. If
        not given, 20 in a step, and 300 while a world is made, reset or left.
    """

    create_settings: list[str] | None = None
    join_settings: list[str] | None = None
    world_name: str | None = None
    keepalive_timeout: Annotated[
        float | None, typer.Option("--keepalive-timeout", metavar="SECONDS", callback=_check_given)
    ] = None

    def _connecting(self, **options: Any) -> dict[str, Any]:
        return super()._connecting(**{"keepalive_timeout": self.keepalive_timeout, **options})

    @contextlib.contextmanager
    def environment(self, **options: Any) -> Iterator[DmEnvAdaptor]:
        """Return a context manager for the environment.

        At the end of the context, the agent leaves the world. A world created by this command is
        destroyed.

        Args:
          **options: as for `connection`.
        """
        from dm_env_rpc_client.environment.worlds import join_world, make

        create, join = parse_settings(self.create_settings), parse_settings(self.join_settings)
        if self.world_name is not None and create:
            raise UsageError(
                "--create cannot be combined with --world, which joins an existing world"
            )
        with contextlib.ExitStack() as stack:
            if self.world_name is None:
                how = self._connecting(**options)
                with waiting(f"creating a world at {self.address}"):
                    env = make(self.address, create, join, **how)
            else:
                connection = stack.enter_context(self.connection(**options))
                with waiting(f"joining {self.world_name}"):
                    env = join_world(connection, self.world_name, join)
            yield stack.enter_context(env)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorldOrCatch(World):
    """A world that runs an example game if no address is given.

    Attributes:
      address: Address of the server, such as localhost:50051; or process:COMMAND, docker:IMAGE or
        python:MODULE:NAME, to start one for this command. If not given, it starts Catch, an
        example game.
    """

    address: Annotated[str, typer.Argument(metavar="ADDRESS", show_default=False)] = CATCH


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an argument or option to a command for each field of its parameter groups."""
    groups: dict[str, Any] = {}
    arguments: list[inspect.Parameter] = []
    others: list[inspect.Parameter] = []
    for name, each in inspect.signature(command, eval_str=True).parameters.items():
        if isinstance(each.annotation, type) and issubclass(each.annotation, Group):
            groups[name] = each.annotation
            for one in _parameters_of(each.annotation):
                is_argument = isinstance(one.annotation.__metadata__[0], ArgumentInfo)
                (arguments if is_argument else others).append(one)
        else:
            others.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        with contextlib.ExitStack() as stack:
            for name, group in groups.items():
                fields = [field.name for field in dataclasses.fields(group)]
                made: Group = group(**{field: given.pop(field) for field in fields})
                given[name] = stack.enter_context(made.ready())
            command(**given)

    # The address comes before other arguments, as it does on the command line.
    arguments.sort(key=lambda each: each.name != "address")
    # Both are read: by `inspect.signature` and by `typing.get_type_hints`.
    vars(run)["__signature__"] = signature = inspect.Signature([*arguments, *others])
    run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return run


def _parameters_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    defaults = {field.name: field.default for field in dataclasses.fields(group)}
    texts: dict[str, str] = {}
    for each in reversed(group.__mro__):
        texts.update(attribute_texts(each))
    # Options of one command come before shared ones.
    for name in dict.fromkeys(name for each in group.__mro__ for name in get_annotations(each)):
        default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
        annotation = hints[name]
        if not hasattr(annotation, "__metadata__"):
            annotation = Annotated[annotation, _option_named(name)]
        details = annotation.__metadata__[0]
        details.help = texts.get(name, details.help)
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option_named(name: str) -> Any:
    return option(name) if name in FLAGS else typer.Option(f"--{name.replace('_', '-')}")


def check_listening_address(address: str, access: Access) -> None:
    """Check that a listening address is well-formed and that listening on it is allowed.

    Raises:
      UsageError: the address is malformed, or other machines can reach it and plaintext was not
        allowed.
    """
    _check(
        address,
        access.is_plain,
        "expected an address to listen on, such as localhost:50051, localhost:0 for a free port, "
        "or unix:/tmp/socket",
        f"other machines can reach {address}; pass --tls-cert FILE and --tls-key FILE to serve "
        "them with TLS, or --insecure to serve them in plaintext, which others on the network can "
        "read",
        listens=True,
    )


def _check(address: str, is_plain: bool, form: str, refusal: str, listens: bool = False) -> None:
    from dm_env_rpc_client.transports.net.addresses import is_loopback, why_no_address

    reason = why_no_address(address, listens=listens)
    if reason:
        raise UsageError(f"{form}; got {address!r}: {reason}")
    if is_plain and not is_loopback(address):
        raise UsageError(refusal)
