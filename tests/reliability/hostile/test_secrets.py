"""Row 54: no secret is quoted, kept, printed or published."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import logging
import os
import pickle
import pprint
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import hpack
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import dm_env_rpc_client
from dm_env_rpc_client import (
    BatchedEnvironment,
    ProtocolError,
    Secret,
    SpecError,
    connect,
    connect_async,
    make,
)
from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.distributed import RemoteEnvironments
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.transports.endpoint import Endpoint, Transport
from tests.mistakes.wrong_environments import CountdownEnv
from tests.support.scripted import answering_socket
from tests.transports.frames import END_HEADERS, END_STREAM, HEADERS, PREFACE, frame, settings
from tests.transports.raw_client import REQUEST, RawClient

TRANSPORTS = ["http2"]

SECRET = "tok-90d1e7f3ba"
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No log and no output has the secret."""
    caplog.set_level(logging.DEBUG)
    yield
    printed = capfd.readouterr()
    check(caplog.text, printed.out, printed.err, *(vars(record) for record in caplog.records))


def check(*shown: Any) -> None:
    """No text of these has the secret."""
    for each in shown:
        texts = [str(each), repr(each), pprint.pformat(each)]
        if isinstance(each, BaseException):
            texts += traceback.format_exception(each, limit=-1)
            texts += [str(vars(each)), str(pickle.dumps(each))]
        assert SECRET not in "".join(texts), "the secret is shown"


def _request(*headers: tuple[str, str], more: tuple[tuple[str, str], ...] = ()) -> bytes:
    contents = PREFACE + settings()
    contents += frame(HEADERS, hpack.Encoder().encode(headers), END_HEADERS, 1)
    if more:
        contents += frame(HEADERS, hpack.Encoder().encode(more), END_HEADERS | END_STREAM, 1)
    return contents


def _with(**pseudo: str) -> list[tuple[str, str]]:
    return [(key, pseudo.get(key[1:], value)) for key, value in REQUEST]


REQUESTS = {
    "HTTP/1": f"POST / HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode(),
    "HTTP/1, query": f"GET /?{SECRET} HTTP/1.1\r\n\r\n".encode(),
    "no protocol": f"{SECRET} is the token, the token it is\r\n".encode(),
    "no SETTINGS": PREFACE + frame(HEADERS, SECRET.encode(), 0, 1),
    "a name": _request(*REQUEST, (f"authorization: Bearer {SECRET}", "")),
    "a name of several lines": _request(*REQUEST, (f"x\r\n{SECRET}", "")),
    "a value": _request(*REQUEST, ("authorization", f"Bearer {SECRET}\n")),
    "a value, by its name": _request(*REQUEST, (SECRET, "\n")),
    "a pseudo-header": _request((f":{SECRET}", "x"), *REQUEST),
    "te": _request(*REQUEST, ("te", SECRET)),
    "content-length": _request(*REQUEST, ("content-length", SECRET)),
    "a method": _request(*_with(method=SECRET)),
    "a path": _request(*_with(path=f"/{SECRET}")),
    "a trailer": _request(*REQUEST, more=((f"x {SECRET}", "y"),)),
    "the value of a trailer": _request(*REQUEST, more=(("x", f"{SECRET}\0"),)),
    "base64": _request(*REQUEST, ("x-bin", f"{SECRET}!")),
    "a token": _request(*REQUEST, ("authorization", SECRET)),
    "two tokens": _request(*REQUEST, *[("authorization", f"Bearer {SECRET}")] * 2),
}


@pytest.mark.row(54)
@pytest.mark.parametrize(
    "options",
    [{"transport": "http2"}, {"transport": "grpc"}, {"processes": 2}],
    ids=["http2", "grpc", "processes"],
)
def test_row_54_requests(options: dict[str, Any]) -> None:
    with serve(Catch, token="another", **options) as server:
        for name, contents in REQUESTS.items():
            with RawClient(server.address, greets=False) as client:
                client.send(contents)
                client.read_until(lambda: any(part.kind in (1, 3, 7) for part in client.frames))
                replies = []
                decoder = hpack.Decoder()
                for part in client.frames:
                    replies.append(part.payload)
                    if part.kind == HEADERS:
                        replies.append(str(decoder.decode(part.payload, raw=True)).encode())
                # grpcio itself tells a client which of its names was invalid.
                is_ours = options.get("transport") != "grpc"
                assert not is_ours or SECRET.encode() not in b"".join(replies), name
        check(server, server.errors, server.stats())


RESPONSES = {
    "HTTP/1": f"HTTP/1.1 200 OK\r\nSet-Cookie: {SECRET}\r\n\r\n",
    "no protocol": f"{SECRET} is what this server says first\r\n",
}


@pytest.mark.row(54)
@pytest.mark.parametrize("name", RESPONSES)
def test_row_54_what_a_server_says_first(name: str) -> None:
    def answer(connected: socket.socket) -> None:
        connected.sendall(RESPONSES[name].encode())
        connected.recv(1 << 16)

    with (
        answering_socket(answer) as address,
        pytest.raises(ProtocolError, match="not a gRPC server") as caught,
    ):
        connect(address, timeout=PATIENCE, transport="http2")
    check(caught.value)


@pytest.mark.row(54)
@pytest.mark.parametrize("by", ["http2", "grpc"])
@pytest.mark.parametrize(
    "pair",
    [
        (f"authorization: Bearer {SECRET}", ""),
        (f"key {SECRET}", "value"),
        (f"{SECRET}\n", "value"),
        ("key", f"{SECRET}\n"),
        ("key-bin", SECRET),
        (SECRET.encode(), "value"),
        (SECRET,),
        SECRET,
    ],
    ids=str,
)
def test_row_54_metadata(by: Transport, pair: Any) -> None:
    with pytest.raises(SpecError, match="metadata") as caught:
        connect("localhost:1", metadata=[pair], transport=by)
    check(caught.value)


ID = "dm_env_rpc_client.gymnasium:Remote-v0"

GIVEN: dict[str, dict[str, Any]] = {
    "token": {"token": SECRET},
    "metadata": {"metadata": [("authorization", f"Bearer {SECRET}"), ("key-bin", SECRET.encode())]},
    "Secret": {"token": Secret(SECRET)},
    "Secrets": {"metadata": [("authorization", Secret(f"Bearer {SECRET}"))]},
}

MADE: dict[str, Callable[..., Any]] = {
    "make": gymnasium.make,
    "make, wrapped": functools.partial(gymnasium.make, max_episode_steps=5),
    "make_vec": functools.partial(gymnasium.make_vec, num_envs=2),
    "make_vec, sync": functools.partial(gymnasium.make_vec, num_envs=2, vectorization_mode="sync"),
    "make_vec, async": functools.partial(
        gymnasium.make_vec,
        num_envs=2,
        vectorization_mode="async",
        # A fork of this process, whose server has threads, may hang.
        vector_kwargs={"context": "forkserver"},
    ),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with serve(CountdownEnv, token=SECRET) as server:
        yield server


@pytest.fixture(scope="module")
def address(guarded: Server) -> str:
    return guarded.address


def check_spec(spec: EnvSpec | None) -> str:
    """No text of a spec, and no log of its arguments, has the secret. Returns its JSON."""
    assert spec is not None
    written = spec.to_json()
    logged = [json.dumps(spec.kwargs), f"{spec.kwargs}", "{address} {}".format("", **spec.kwargs)]
    check(spec, spec.kwargs, spec.pprint(disable_print=True, print_all=True), written, *logged)
    assert "<hidden>" in written
    return written


def steps(env: Any) -> None:
    env.reset(seed=1)
    env.step(env.action_space.sample())


@pytest.mark.row(54)
@pytest.mark.parametrize("given", [GIVEN["token"], GIVEN["metadata"]], ids=["token", "metadata"])
@pytest.mark.parametrize("way", MADE.values(), ids=MADE)
def test_row_54_specs(way: Callable[..., Any], given: dict[str, Any], address: str) -> None:
    env = way(ID, address=address, **given)
    try:
        steps(env)
        spec = env.spec
        check_spec(spec)
        check_spec(env.unwrapped.spec)
    finally:
        env.close()
    check(gymnasium.spec("Remote-v0"))
    is_single = isinstance(env, gymnasium.Env)
    again: Any = gymnasium.make if is_single else gymnasium.make_vec
    for kept in (spec, copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        env = again(kept)
        try:
            steps(env)
            check_spec(env.spec)
        finally:
            env.close()


@pytest.mark.row(54)
@pytest.mark.parametrize("served", [Catch, CountdownEnv])
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_row_54_a_spec_from_json_takes_the_secret_again(given: dict[str, Any], served: Any) -> None:
    with serve(served, token=SECRET) as server:
        _made_from_json(given, server.address)


def _made_from_json(given: dict[str, Any], address: str) -> None:
    env = gymnasium.make(ID, address=address, **given)
    env.close()
    written = check_spec(env.spec)
    name = next(iter(given))
    for again in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(SpecError, match=f"{name} is '<hidden>'.*pass {name}= again") as caught:
            again(EnvSpec.from_json(written))
        check(caught.value)
        made: Any = again(EnvSpec.from_json(written), **given)
        try:
            steps(made)
            assert check_spec(made.spec) == written or again is gymnasium.make_vec
        finally:
            made.close()


@pytest.mark.row(54)
@pytest.mark.parametrize("way", [gymnasium.make, gymnasium.make_vec])
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_row_54_errors_of_gymnasium(way: Any, given: dict[str, Any]) -> None:
    # Gymnasium adds all arguments to the text of a TypeError.
    for wrong in ({"address": "localhost:1", "tokn": 1}, {}):
        with pytest.raises(TypeError) as caught:
            way(ID, **wrong, **given)
        check(caught.value, caught.value.__cause__)


@pytest.mark.row(54)
def test_row_54_an_id_of_ones_own(guarded: Server) -> None:
    own = {**vars(gymnasium.spec("Remote-v0")), "id": "Guarded-v0"}
    keywords = ("id", "entry_point", "vector_entry_point")
    for token, ways in ((SECRET, ("make", "make_vec")), (Secret(SECRET), MADE)):
        gymnasium.register(
            **{name: own[name] for name in keywords},
            kwargs={"address": guarded.address, "token": token},
        )
        try:
            for way in ways:
                env = MADE[way]("Guarded-v0")
                env.close()
                check_spec(env.spec)
        finally:
            del gymnasium.registry["Guarded-v0"]


async def _shown_async(address: str) -> list[Any]:
    async with await connect_async(address, token=SECRET) as own:
        return [repr(own), str(own), own._repr_html_(), *vars(own)]


@pytest.mark.row(54)
def test_row_54_attributes(guarded: Server, tmp_path: Path) -> None:
    def shown(made: Any) -> Iterator[Any]:
        yield made
        yield vars(made)
        if hasattr(made, "_making"):
            yield made._making

    given: dict[str, Any] = {"token": SECRET, "record": tmp_path / "run.mcap"}
    endpoint = Endpoint("localhost:1", token=SECRET, metadata=[("x-key", SECRET)])
    check(guarded, guarded._repr_html_(), endpoint)
    check(*shown(RemoteEnvironments(guarded.address, token=SECRET)))
    with make(guarded.address, **given) as env:
        check(*shown(env), *shown(env.connection), env.connection._repr_html_())
        check(*asyncio.run(_shown_async(guarded.address)))
        with pytest.raises(SpecError, match="cannot be pickled, because its token") as caught:
            pickle.dumps(env)
        check(caught.value)
    ways: list[tuple[Any, ...]] = [(make,), (BatchedEnvironment, 2), (RemoteVectorEnv, 2)]
    for way, *count in ways:
        made = way(guarded.address, *count, token=SECRET)
        check(*shown(made))
        again = copy.deepcopy(made)
        again.reset()
        again.close()
        made.close()
    remote = make_remote(guarded.address, token=SECRET)
    check(*shown(remote))
    remote.close()
    assert SECRET.encode() not in given["record"].read_bytes()


@pytest.mark.row(54)
def test_row_54_a_function_that_launches(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def launch(**options: Any) -> Any:
        return None

    with pytest.raises(SpecError, match=r"must return a launch\.Launch") as caught:
        make(functools.partial(launch, token=SECRET, env={"KEY": SECRET}))
    check(caught.value, caplog.text)


@pytest.mark.row(54)
@pytest.mark.parametrize("given", [Secret("<hidden>"), "<hidden>"])
def test_row_54_what_stands_for_a_secret_is_none(given: Any) -> None:
    with pytest.raises(SpecError, match="pass token= again"):
        connect("localhost:1", token=given)
    with pytest.raises(SpecError, match="pass token= again"):
        serve(Catch, token=given)
    for metadata in (given, [("authorization", given)]):
        with pytest.raises(SpecError, match="pass metadata= again"):
            connect("localhost:1", metadata=metadata)


@pytest.mark.row(54)
def test_row_54_logged_configurations() -> None:
    kept = dm_env_rpc_client.Secret(SECRET)
    assert kept.value == Secret(kept).value == copy.deepcopy(kept).value == SECRET
    check(kept, [kept], {"token": kept}, json.dumps({"token": kept}), f"{kept:>20}")
    yaml = pytest.importorskip("yaml")
    check(yaml.dump({"token": kept}))
    assert yaml.safe_load(yaml.safe_dump({"token": str(kept)})) == {"token": "<hidden>"}


@pytest.mark.row(54)
def test_row_54_data_sets(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations=np.zeros((3, 2), np.float32),
            actions=np.zeros(2, int),
            rewards=[1.0, 1.0],
            terminations=[False, False],
            truncations=[False, True],
            infos={},
        )
    ]
    with gymnasium.make(ID, address=address, token=SECRET) as env, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for an author and others.
        dataset = minari.create_dataset_from_buffers(
            "secret/run-v0", buffers, env=env, data_format="arrow"
        )
    check(dataset.env_spec, dataset.storage.metadata)
    files = [Path(folder, name) for folder, _, names in os.walk(tmp_path) for name in names]
    assert any(b"<hidden>" in file.read_bytes() for file in files)
    assert not any(SECRET.encode() in file.read_bytes() for file in files)
    with pytest.raises(SpecError, match="pass token= again"):
        dataset.recover_environment()
    recovered = dataset.recover_environment(token=SECRET)
    steps(recovered)
    recovered.close()


@pytest.mark.row(54)
def test_row_54_environments_of_sb3(address: str) -> None:
    env_util = pytest.importorskip("stable_baselines3.common.env_util")
    kwargs = {"address": address, "token": SECRET, "render_mode": None}
    envs = env_util.make_vec_env(ID, 2, env_kwargs=kwargs)
    try:
        envs.reset()
        for spec in envs.get_attr("spec"):
            check_spec(spec)
    finally:
        envs.close()
