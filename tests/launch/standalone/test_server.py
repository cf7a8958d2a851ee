"""The one-file server answers as this package's: for dm_env, gym, and authors with mistakes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import DmEnvRpcError, connect, dm_env_rpc_pb2, make, pack_tensor
from dm_env_rpc_client.adaptors.gymnasium import space_json
from dm_env_rpc_client.compliance import Options, Outcome, run
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from dm_env_rpc_client.server import serve
from tests.launch.standalone import hosted, hosted_gym
from tests.launch.standalone.interpreters import (
    FILE,
    NEWEST,
    OLDEST,
    VERSIONS,
    interpreter,
    served,
)
from tests.mistakes.doors import Mistake

PYTHONS = [
    pytest.param(version, marks=[] if version in (OLDEST, NEWEST) else [pytest.mark.slow])
    for version in VERSIONS
]
STEPS = 200


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


def action_of(spec: Any, random: np.random.RandomState) -> Any:
    """An action that conforms to a spec: any bits, and often the bounds themselves."""
    if isinstance(spec, dict):
        return {key: action_of(part, random) for key, part in spec.items()}
    if spec.dtype.kind in "OU":
        return "".join(map(chr, random.randint(1, 0xD000, random.randint(9))))
    if spec.dtype.kind == "b":
        return np.array(random.randint(2, size=spec.shape), bool)
    if spec.dtype.kind == "f":
        scale = 10.0 ** random.randint(-40, 38)
        return np.array(random.randn(*spec.shape) * scale, spec.dtype)
    low, high = (np.broadcast_to(side, spec.shape) for side in (spec.minimum, spec.maximum))
    bits = random.bytes(int(np.prod(spec.shape)) * spec.dtype.itemsize)
    anything = np.frombuffer(bits, spec.dtype).reshape(spec.shape)
    small = np.array(random.randint(0, 100, spec.shape), spec.dtype)
    return np.clip(anything if random.rand() < 0.5 else small, low, high)


def is_same(one: Any, other: Any) -> bool:
    """Whether nested values are equal bit for bit, with types, dtypes and shapes; NaN is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        same_form = (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype == object:
            return same_form and one.tolist() == other.tolist()
        return same_form and one.tobytes() == other.tobytes()
    return bool(one == other or (one != one and other != other))


def played(address: str, settings: dict[str, Any]) -> list[Any]:
    random = np.random.RandomState(3)
    with make(address, settings) as env:
        found: list[Any] = [repr(env.action_spec()), repr(env.observation_spec())]
        timestep = env.reset()
        for _ in range(STEPS):
            found += tuple(timestep)
            timestep = env.step(action_of(env.action_spec(), random))
    return found


def test_steps_are_those_of_this_packages_server(python: str) -> None:
    settings = {"length": 7, "label": "né"}
    with served(python, "Everything") as server, serve(hosted.Everything) as own:
        one, other = played(server.address, settings), played(own.address, settings)
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert is_same(left, right), (left, right)


@pytest.mark.parametrize(
    "environment", [pytest.param("Everything", marks=pytest.mark.slow), "Catch"]
)
def test_the_compliance_suite_passes(python: str, environment: str) -> None:
    with served(python, environment) as server:
        results = list(run(server.address, Options(timeout=20.0, quiet_seconds=0.05)))
    assert [each for each in results if each.outcome is Outcome.FAILED] == []
    assert sum(each.outcome is Outcome.PASSED for each in results) > 60


def test_the_file_imports_numpy_and_the_standard_library_only() -> None:
    imported = set()
    for node in ast.walk(ast.parse(FILE.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"numpy"}


def test_the_file_has_the_version_of_the_package() -> None:
    assert f'__version__ = "{dm_env_rpc_client.__version__}"' in FILE.read_text()


def test_settings_of_a_reset_take_the_place_of_earlier_ones(python: str) -> None:
    """A server keeps 256 MiB of settings; how often a world is reset does not matter."""
    with served(python, "Everything") as server, connect(server.address) as connection:
        world = connection.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name
        connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=world))
        settings = {"label": pack_tensor("x" * (10 << 20))}
        for _ in range(30):
            connection.send(dm_env_rpc_pb2.ResetRequest(settings=settings))


class Wrong(NamedTuple):
    """Settings of an environment with a mistake, and what is said of it."""

    settings: dict[str, Any]
    where: str
    given: str
    advice: str


TIME_STEP = "expected a TimeStep: TimeStep(step_type, reward, discount, observation)"
GYMNASIUM = "this looks like Gymnasium's interface: inherit from gymnasium.Env"
FIVE = "expected (observation, reward, terminated, truncated, info), as in Gymnasium"
FULL_SERVER = "install dm-env-rpc-client in the environment's Python"
MADE = "expected an environment with the methods of dm_env.Environment, or one of gym"


def of(method: str, value: str, given: str, advice: str) -> Wrong:
    settings = {"method": method, "value": value}
    return Wrong(settings, f"{method} of Countdown returned", given, advice)


MISTAKES: dict[str, Wrong] = {
    "step: None": of("step", "None", "returned None", TIME_STEP),
    "step: a dict": of("step", "dict", "a dict with the key 'counter'", TIME_STEP),
    "step: five values": of("step", "five", "a tuple of 5 values", GYMNASIUM),
    "reset: None": of("reset", "None", "returned None", TIME_STEP),
    "reset: an array": of("reset", "array", "an array float32 [2]", TIME_STEP),
    "reset: two values": of("reset", "two", "a tuple of 2 values", GYMNASIUM),
    "action_spec: a space": of("action_spec", "space", "returned the space Discrete(3)", GYMNASIUM),
    "observation_spec: a space": of(
        "observation_spec", "space", "returned the space Discrete(3)", GYMNASIUM
    ),
    "gym, step: None": Wrong(
        {"method": "step", "gym": True}, "step of CountdownEnv", "returned None", FIVE
    ),
    "gym, step: a TimeStep": Wrong(
        {"method": "step", "value": "TimeStep", "gym": True},
        "step of CountdownEnv", "returned a TimeStep", FIVE,
    ),
    "a function that returns None": Wrong(
        {"method": "factory"}, "the factory returned None", "", MADE
    ),
    "a function that returns a class": Wrong(
        {"method": "factory", "value": "class"},
        "the factory returned the class Countdown", MADE, "call it: Countdown()",
    ),
    "a function that returns a text": Wrong(
        {"method": "factory", "value": "text"}, "the factory returned a str", "", MADE
    ),
    "a function that returns a vector environment": Wrong(
        {"method": "factory", "value": "vector"},
        "the factory returned a CountdownVectorEnv", "a batch of 4 environments", FULL_SERVER,
    ),
    "a function that returns rows": Wrong(
        {"method": "factory", "value": "rows"},
        "the factory returned a CountdownRows", "a batch of 4 environments", FULL_SERVER,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["this Python", OLDEST, NEWEST])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    version = request.param
    python = sys.executable if version == "this Python" else interpreter(version)
    with served(python, "hosted_mistakes:make") as server:
        yield server.address


def play(address: str, settings: dict[str, Any]) -> None:
    with make(address, settings) as env:
        env.reset()
        (name,) = env.action_spec()
        env.step({name: 1})


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(name: str, address: str) -> None:
    settings, texts = MISTAKES[name][0], MISTAKES[name][1:]
    Mistake(play, *texts, DmEnvRpcError).check(address, settings)


def test_an_environment_that_exists_already(capfd: pytest.CaptureFixture[str]) -> None:
    expected = pytest.raises(AssertionError, match="ended with 1")
    with expected, served(sys.executable, "hosted_mistakes:Countdown.action_spec.__name__"):
        pass
    assert (
        "expected what makes an environment, such as its class, got a str" in capfd.readouterr().err
    )


KINDS = [
    ("3.6", "gym==0.15.7 cloudpickle==2.2.1 six"),
    ("3.7", "gym==0.21.0 cloudpickle importlib-metadata==4.13.0 zipp typing-extensions"),
    ("3.8", "gym==0.23.1 gym-notices cloudpickle importlib-metadata zipp"),
    ("3.8", "gym==0.25.2 gym-notices cloudpickle importlib-metadata zipp"),
    ("3.8", "gym==0.26.2 gym-notices cloudpickle importlib-metadata zipp"),
    ("3.13", "gymnasium farama-notifications cloudpickle typing-extensions"),
]


def played_in_gym(address: str, is_old: bool, length: int) -> list[Any]:
    env = gymnasium.make(
        "dm_env_rpc_client.gymnasium:Remote-v0",
        address=address,
        create_world_settings={"length": length},
        render_mode="rgb_array",
    )
    with env:
        env.action_space.seed(3)
        found: list[Any] = [env.action_space, env.observation_space, env.metadata["render_modes"]]
        for _ in range(3):
            observation, info = env.reset(seed=7, options=None if is_old else {"x": 1})
            # Until gym 0.25 there is no info of a reset.
            found += [observation, None if is_old else info, env.render()]
            is_over = False
            while not is_over:
                observation, reward, terminated, truncated, info = env.step(
                    env.action_space.sample()
                )
                is_over = terminated or truncated
                if is_old:  # It cannot say that an episode ended in both ways.
                    info.pop("TimeLimit.truncated", None)
                    terminated, truncated = bool(is_over), bool(is_over)
                elif is_over:
                    assert truncated
                found += [observation, reward, terminated, truncated, info, env.render()]
    return found


@pytest.mark.parametrize("length", [4, 5])
@pytest.mark.parametrize(
    ("version", "packages"),
    [
        pytest.param(*kind, marks=[] if kind[0] in ("3.6", "3.13") else [pytest.mark.slow])
        for kind in KINDS
    ],
)
def test_spaces_infos_and_frames_are_equal(version: str, packages: str, length: int) -> None:
    python = interpreter(version, *packages.split())
    is_old = "gym==0.1" in packages or ("gym==0.2" in packages and "0.26" not in packages)
    with served(python, "hosted_gym:Many") as server, serve(hosted_gym.Many) as own:
        one, other = (
            played_in_gym(server.address, is_old, length),
            played_in_gym(own.address, is_old, length),
        )
    assert one[:3] == other[:3]
    assert len(one) == len(other)
    for left, right in zip(one[3:], other[3:], strict=True):
        assert is_same(left, right), (left, right)


class _Resets(gymnasium.Env[Any, Any]):
    """Says in its info how it was reset, by a method that is added."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(2)
    seeds = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 0, 1.0, False, False, {}


def _seed(env: Any, seed: Any) -> None:
    env.seeds = seed


def _by_method(env: Any, **given: Any) -> Any:
    return type(env).bare_reset(env, **given)


NOTHING: dict[str, Any] = {"reset": lambda env: (0, {"taken": {}})}
ANYTHING = {"reset": lambda env, **given: (0, {"taken": given})}
METHOD = {"seed": _seed, "reset": lambda env: (0, {"taken": {"method": env.seeds}})}
"""As in gym until 0.25."""
METHOD_BEHIND_ANYTHING = {**METHOD, "bare_reset": METHOD["reset"], "reset": _by_method}
"""As in gym's wrappers until 0.25, which pass everything on."""
BOTH = {"seed": _seed, "reset": lambda env, seed=None: (0, {"taken": {"seed": seed}})}
"""As in gym 0.25."""


@pytest.mark.parametrize(
    ("methods", "given", "taken"),
    [
        (NOTHING, {}, {}),
        (NOTHING, {"options": {}}, {}),
        (NOTHING, {"seed": 3}, "unexpected keyword argument 'seed'"),
        (NOTHING, {"options": {"x": 1}}, "unexpected keyword argument 'options'"),
        (ANYTHING, {"seed": 3, "options": {}}, {"seed": 3, "options": {}}),
        (ANYTHING, {"options": {"x": 1}}, {"options": {"x": 1}}),
        (METHOD, {"seed": 3, "options": {}}, {"method": 3}),
        (METHOD, {"options": {"x": 1}}, "unexpected keyword argument 'options'"),
        (METHOD_BEHIND_ANYTHING, {"seed": 3, "options": {}}, {"method": 3}),
        (METHOD_BEHIND_ANYTHING, {"options": {"x": 1}}, "unexpected keyword argument 'options'"),
        (BOTH, {"seed": 3}, {"seed": 3}),
    ],
)
def test_a_reset_gets_what_the_environment_takes(
    methods: dict[str, Any], given: dict[str, Any], taken: dict[str, Any] | str
) -> None:
    """Other arguments raise its own error, as in process; only empty options are left out."""
    with one_file.Server(type("Reset", (_Resets,), methods)) as server:
        env = gymnasium.make(
            "dm_env_rpc_client.gymnasium:Remote-v0",
            address=server.address,
            disable_env_checker=True,
        )
        with env:
            if isinstance(taken, str):
                with pytest.raises(DmEnvRpcError, match=taken):
                    env.reset(**given)
            else:
                assert env.reset(**given)[1] == {"taken": taken}


@pytest.mark.parametrize("edges", [None, gymnasium.spaces.Discrete(3)])
def test_a_graph_is_described(edges: Any) -> None:
    nodes = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    graph = gymnasium.spaces.Graph(nodes, edges)
    assert space_json.from_json(one_file._space_json(graph), "it") == graph
