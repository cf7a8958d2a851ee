"""The interfaces for threads and for asyncio send the same requests and raise the same errors.

Each scenario is written once and runs against both, each time with a server of its own that
records what it receives.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.rpc import code_pb2, status_pb2

import dm_env_rpc_client as d
from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.environment.one_world import INTERRUPTED, RUNNING, TERMINATED, answer
from tests.support.stopwatch import patience

TRANSPORTS = ["http2"]

ACTION = {"a": 1}


async def done(result: Any) -> Any:
    """Awaits what asyncio's interface returns; the other one's calls are done already."""
    return await result if inspect.isawaitable(result) else result


class Interface(NamedTuple):
    """The functions of one of the two interfaces."""

    connect: Callable[..., Any]
    make: Callable[..., Any]
    create_world: Callable[..., Any]
    join_world: Callable[..., Any]
    create_and_join_world: Callable[..., Any]
    reset_world: Callable[..., Any]
    leave_world: Callable[..., Any]
    destroy_world: Callable[..., Any]

    def submit(self, env: Any, action: Any) -> asyncio.Future[Any]:
        """Sends a step without waiting for it."""
        if isinstance(env, d.AsyncDmEnvAdaptor):
            return asyncio.ensure_future(env.step(action))
        return asyncio.wrap_future(env.submit_step(action))


INTERFACES = [
    Interface(*(getattr(d, name + suffix) for name in Interface._fields))
    for suffix in ("", "_async")
]

Answer = Callable[[Request], Response | None]


def refused(_: Request) -> Response:
    status = status_pb2.Status(code=code_pb2.FAILED_PRECONDITION, message="not now")
    return Response(error=status)


def wrong(_: Request) -> Response:
    return Response(leave_world=dm_env_rpc_pb2.LeaveWorldResponse())


def silence(_: Request) -> None:
    return None


def end_of_stream(_: Request) -> None:
    return None


class Scenario(NamedTuple):
    """What is called, and how the server answers.

    Args:
      calls: what is called.
      states: of the steps in turn.
      answers: by the kind of the request, instead of the usual answer; each to one request in
        turn, the last to all later ones; None for the usual answer.
    """

    calls: Callable[[Interface, str], Awaitable[Any]]
    states: tuple[int, ...] = (RUNNING,) * 20
    answers: dict[str, list[Answer | None]] = {}  # noqa: RUF012


def scripted(scenario: Scenario) -> ScriptedServer:
    states = iter(scenario.states)
    remaining = {kind: list(answers) for kind, answers in scenario.answers.items()}

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            left = remaining.get(str(request.WhichOneof("payload")), [])
            override = (left.pop(0) if len(left) > 1 else left[0]) if left else None
            if override is end_of_stream:
                return
            response = answer(request, states) if override is None else override(request)
            if response is not None:
                yield response

    return ScriptedServer(script)


@contextlib.asynccontextmanager
async def made(api: Interface, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
    """An environment, which is closed."""
    env = await done(api.make(*arguments, **options))
    try:
        yield env
    finally:
        await done(env.close())


@contextlib.asynccontextmanager
async def connected(api: Interface, address: str) -> AsyncIterator[Any]:
    """A connection, which is closed."""
    connection = await done(api.connect(address))
    try:
        yield connection
    finally:
        await done(connection.close())


# What is called. `close` in every state of a connection, and everything else that sends.


async def _close_at_once(api: Interface, address: str) -> None:
    async with made(api, address) as env:
        await done(env.close())


async def _close_while_running(api: Interface, address: str) -> list[Any]:
    async with made(api, address, {"rows": 3}, {"name": "x"}) as env:
        steps = [await done(env.reset()), await done(env.step(ACTION))]
    return [step.step_type for step in steps]


async def _close_after_a_step(api: Interface, address: str) -> Any:
    async with made(api, address) as env:
        await done(env.reset())
        last = await done(env.step(ACTION))
    return last.step_type, last.discount


async def _close_with_pending_steps(api: Interface, address: str) -> list[Any]:
    async with made(api, address) as env:
        await done(env.reset())
        pending = [api.submit(env, {"a": number}) for number in range(3)]
        await asyncio.sleep(0)
    return [step.step_type for step in await asyncio.gather(*pending)]


async def _close_after_its_connection_was_closed(api: Interface, address: str) -> Any:
    async with made(api, address) as env:
        await done(env.reset())
        await done(env.connection.close())
        await done(env.step(ACTION))


async def _close_after_a_deadline(api: Interface, address: str) -> None:
    async with made(api, address, request_timeout=patience(1.0)) as env:
        await done(env.reset())


async def _resets(api: Interface, address: str) -> None:
    async with made(api, address) as env:
        for settings in (None, None, {"rows": 3}, {}):
            await done(env.reset(settings))
            await done(env.step(ACTION))


async def _reset_while_running(api: Interface, address: str) -> Any:
    async with made(api, address) as env:
        await done(env.reset())
        return (await done(env.reset())).step_type


async def _settings_that_are_refused(api: Interface, address: str) -> None:
    async with made(api, address) as env:
        await done(env.reset({"rows": 3}))


async def _many_steps(api: Interface, address: str) -> Any:
    async with made(api, address) as env:
        unrolled = await done(env.unroll({"a": [1, 2, 3, 4, 5]}, ahead=2))
    rows = (*unrolled[:3], unrolled.observation["o"])
    return [array.tolist() for array in rows]


async def _a_bad_action(api: Interface, address: str) -> None:
    async with made(api, address) as env:
        await done(env.unroll([ACTION, {"b": 1}]))


async def _rolled(env: Any, actions: Any, most: int, **options: Any) -> list[Any]:
    """The types of the first steps of a rollout, and the error that ended it."""
    rollout = env.rollout(actions, **options)
    found: list[Any] = []
    try:
        while len(found) < most:
            has_next = hasattr(rollout, "__anext__")
            step = await anext(rollout) if has_next else next(rollout)
            found.append(step.step_type)
    except d.SpecError as error:
        found.append(str(error))
    finally:
        await done(rollout.aclose() if hasattr(rollout, "aclose") else rollout.close())
    return found


async def _rollouts(api: Interface, address: str) -> list[Any]:
    async with made(api, address) as env:
        endless = ({"a": number} for number in itertools.count())
        left_early = await _rolled(env, endless, 5, ahead=3)
        again = (await done(env.reset())).step_type, (await done(env.step(ACTION))).step_type
        refused = [
            await _rolled(env, [ACTION, ACTION, {"b": 1}], 3, ahead=ahead) for ahead in (1, 64)
        ]
        return [left_early, again, refused, (await done(env.step(ACTION))).step_type]


async def _errors(api: Interface, address: str) -> list[str]:
    found = []
    async with made(api, address) as env:
        calls: list[Callable[[], Any]]
        calls = [lambda: env.step({"b": 1}), lambda: env.reset({"rows": None})]
        for call in calls:
            with pytest.raises(d.SpecError) as caught:
                await done(call())
            found.append(str(caught.value))
    with pytest.raises(d.ConnectionClosedError):
        await done(env.step(ACTION))
    return [*found, repr(env).replace("Async", "").replace(address, "...")]


async def _make(api: Interface, address: str) -> None:
    await done(api.make(address))


async def _unsendable_settings(api: Interface, address: str) -> None:
    await done(api.make(address, {}, {"rows": None}))


async def _an_unknown_observation(api: Interface, address: str) -> None:
    await done(api.make(address, requested_observations=["x"]))


async def _worlds(api: Interface, address: str) -> tuple[str, str]:
    async with connected(api, address) as connection:
        first = await done(api.create_world(connection, {"rows": 3}))
        env = await done(api.join_world(connection, first, {"name": "x"}, nested_tensors=False))
        await done(env.reset())
        await done(api.reset_world(connection, first, {"rows": 4}))
        await done(env.step(ACTION))
        await done(env.close())
        await done(env.close())
        await done(api.destroy_world(connection, first))
        env, second = await done(api.create_and_join_world(connection, {"rows": 5}))
        await done(env.close())
        await done(api.destroy_world(connection, second))
        await done(connection.close())
    return first, second


async def _join_that_fails(api: Interface, address: str) -> None:
    async with connected(api, address) as connection:
        await done(api.join_world(connection, "world", requested_observations=["x"]))


async def _a_join_that_fails_between_worlds(api: Interface, address: str) -> None:
    async with connected(api, address) as connection:
        await done(api.create_and_join_world(connection))


async def _reopen(api: Interface, address: str) -> tuple[bool, str, str]:
    connection = await done(api.connect(address))
    await done(api.create_world(connection))
    again = await done(connection.reopen())
    await done(connection.close())
    third = await done(again.reopen(timeout=5))
    await done(api.leave_world(again))
    await done(api.destroy_world(third, "world"))
    await done(again.close())
    await done(third.close())
    return connection.is_usable, type(again).__name__[-10:], type(third).__name__[-10:]


SCENARIOS = {
    "close before a sequence": Scenario(_close_at_once),
    "close in a sequence": Scenario(_close_while_running),
    "close after TERMINATED": Scenario(_close_after_a_step, (RUNNING, TERMINATED)),
    "close after INTERRUPTED": Scenario(_close_after_a_step, (RUNNING, INTERRUPTED)),
    "close with pending steps": Scenario(_close_with_pending_steps),
    "close after a refused step": Scenario(_close_after_a_step, answers={"step": [None, refused]}),
    "close after a wrong answer": Scenario(_close_after_a_step, answers={"step": [None, wrong]}),
    "close, the agent leaving late": Scenario(
        _close_after_a_step,
        answers={"step": [None, wrong], "destroy_world": [refused, refused, None]},
    ),
    "close after the stream ended": Scenario(
        _close_after_a_step, answers={"step": [None, end_of_stream]}
    ),
    "close after a deadline": Scenario(_close_after_a_deadline, answers={"step": [silence]}),
    "close after the connection was closed": Scenario(_close_after_its_connection_was_closed),
    "close, leaving refused": Scenario(_close_while_running, answers={"leave_world": [refused]}),
    "close, destroying refused": Scenario(
        _close_while_running, answers={"destroy_world": [refused]}
    ),
    "reset": Scenario(_resets),
    "reset without Reset": Scenario(_reset_while_running, answers={"reset": [refused]}),
    "reset, rejoining refused": Scenario(
        _reset_while_running, answers={"reset": [refused], "join_world": [None, refused]}
    ),
    "reset, settings refused": Scenario(_settings_that_are_refused, answers={"reset": [refused]}),
    "unroll": Scenario(_many_steps, (RUNNING, RUNNING, TERMINATED, RUNNING, RUNNING)),
    "unroll with a bad action": Scenario(_a_bad_action),
    "rollouts": Scenario(_rollouts),
    "errors": Scenario(_errors),
    "creating refused": Scenario(_make, answers={"create_world": [refused]}),
    "joining refused": Scenario(_make, answers={"join_world": [refused]}),
    "joining answered wrongly": Scenario(_make, answers={"join_world": [wrong]}),
    "joining ends the stream": Scenario(_make, answers={"join_world": [end_of_stream]}),
    "unsendable settings": Scenario(_unsendable_settings),
    "an unknown observation": Scenario(_an_unknown_observation),
    "worlds": Scenario(_worlds),
    "an adaptor that fails": Scenario(_join_that_fails),
    "create and join, joining refused": Scenario(
        _a_join_that_fails_between_worlds, answers={"join_world": [refused]}
    ),
    "reopen": Scenario(_reopen),
}


def outcome(scenario: Scenario, api: Interface) -> tuple[list[Request], Any]:
    """What the server received, and what came of the calls."""

    async def main(address: str) -> Any:
        return await asyncio.wait_for(scenario.calls(api, address), 30)

    with scripted(scenario) as server:
        try:
            result = asyncio.run(main(server.address))
        except d.DmEnvRpcClientError as error:
            result = (type(error), str(error).replace(server.address, "..."))
        assert [type(error) for error in server.errors if type(error) is not grpc.RpcError] == []
        return server.requests, result


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_interfaces_send_the_same(name: str) -> None:
    for_threads, for_asyncio = (outcome(SCENARIOS[name], api) for api in INTERFACES)
    assert for_asyncio == for_threads
    kinds = [request.WhichOneof("payload") for request in for_threads[0]]
    assert "leave_world leave_world" not in " ".join(map(str, kinds))
