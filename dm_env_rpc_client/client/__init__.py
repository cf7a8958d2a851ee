"""Connections to servers: send requests and give each answer to the request it belongs to.

`connection.py` is for threads, `async_connection.py` for coroutines. Read `protocol/pipeline.py`
first, the rules that both follow, then `threaded_pipeline.py`, which adds threads and locks.
May import `protocol`, `transports` and what they import; not `server`.

## One connection, many requests

`dm_env_rpc_client.connect` opens a connection. `send` waits for the answer, `submit` returns a
`concurrent.futures.Future`; any number of threads may call them. Requests are the messages of the
protocol:

```python
import dm_env_rpc_client
from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.server import Catch, serve

server = serve(Catch)

with dm_env_rpc_client.connect(server.address, request_timeout=30.0) as connection:
    created = connection.send(dm_env_rpc_pb2.CreateWorldRequest())
    connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=created.world_name))
    action = dm_env_rpc_client.pack_tensor(1, "int32")
    step = dm_env_rpc_pb2.StepRequest(actions={1: action}, requested_observations=[1])
    futures = [connection.submit(step) for _ in range(8)]
    print([future.result().state for future in futures][:2])  # [1, 1]
```

Answers carry no ids: the n-th answer belongs to the n-th request ("Streaming" in the protocol's
[overview][]). If that order is in doubt, the connection is poisoned: every pending request fails
with the first cause chained, and so does every later one. The doubt begins with an interrupted
wait, a missed deadline, an answer of the wrong type, an extra answer or the end of the stream. An
error that the server answers fails its own request only. `connection.reopen()` opens a new
connection to the same server.

A connection that was opened before a fork raises an error in the child process; open another one
there.

With asyncio, any number of coroutines may send at once. Cancelling one that waits for an answer
poisons the connection, since it is unknown whether the server has carried out the request:

```python
import asyncio


async def main():
    async with await dm_env_rpc_client.connect_async(server.address) as connection:
        created = await connection.send(dm_env_rpc_pb2.CreateWorldRequest(), timeout=5.0)
        await connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=created.world_name))
        answers = await asyncio.gather(*(connection.send(step) for _ in range(8)))
        print(answers[0].observations[1].shape)  # [10, 5]


asyncio.run(main())
server.stop()
```

## Security

Plaintext is allowed to loopback only. Elsewhere pass `credentials=`, or `insecure=True`.
`Tls(ca=FILE)` trusts the authorities in a PEM file, `Tls()` those that the machine trusts, and
`cert` and `key` are the client's own, if the server requires a certificate; both transports take
it. An `ssl.SSLContext` (over http2) or channel credentials of grpcio (over grpc) are possible, too.
Local credentials of gRPC with an address that is not loopback are refused.

`token=` is a secret that the server requires (`serve(token=...)`), sent as `authorization: Bearer
...`. `metadata=` sends other pairs with the call.

A failure that another attempt would not change ends `connect` at once: a certificate of another
host or authority, or an expired one, a missing client certificate, a server without HTTP/2, TLS on
one end only. A refused token ends the first request.

## Moving over from dm-env-rpc

Names and signatures are the same where the concept is the same. Imports change:

| in `dm_env_rpc.v1` | in `dm_env_rpc_client` |
| --- | --- |
| `connection.Connection`, `create_secure_channel_and_connect` | the same names; or `connect` |
| `async_connection.AsyncConnection` | `AsyncConnection`; or `connect_async` |
| `async_connection.create_secure_async_channel_and_connect` | the same name |
| `dm_env_adaptor.DmEnvAdaptor`, `AutoObservations` | the same names |
| `dm_env_adaptor.create_world`, `join_world`, `create_and_join_world` | the same names; or `make` |
| `spec_manager.SpecManager` | `SpecManager` |
| `tensor_utils.pack_tensor`, `unpack_tensor`, `get_tensor_type` | the same names |
| `tensor_utils.data_type_to_np_type`, `np_type_to_data_type` | the same names |
| `tensor_spec_utils.bounds`, `set_bounds`, `Bounds` | the same names |
| `dm_env_utils.dm_env_spec`, `tensor_spec_to_dm_env_spec` and its reverse | the same names |
| `dm_env_flatten_utils.flatten_dict`, `unflatten_dict` | the same names |
| `error.DmEnvRpcError` | `DmEnvRpcError` |
| `extensions.properties.PropertiesExtension` | the same path |
| `dm_env_rpc_pb2`, `extensions.properties_pb2` | the same names, with the same classes |
| `dm_env_rpc_pb2_grpc` | `dm_env_rpc_pb2_grpc`, without the experimental class `Environment` |

Other errors are raised. Code that catches the left ones catches the right ones instead:

| there | here |
| --- | --- |
| `grpc.RpcError`, `StopIteration`: the stream has ended | `ConnectionLostError` |
| `grpc.FutureTimeoutError`: no connection | `ConnectionLostError`, `DeadlineExceededError` |
| `ValueError`: the connection or the environment is closed | `ConnectionClosedError` |
| `ValueError`, `RuntimeError`: an answer of the wrong type or state | `ProtocolError` |
| `TypeError`: no such data type | `SpecError`, which is a ValueError |
| `KeyError`: no such action or observation | `UnknownNameError`, also a KeyError |

`ConnectionLostError` and `ConnectionClosedError` are also `ConnectionError`, and
`DeadlineExceededError` is a `TimeoutError`. After one of them the connection is dead.

Connections and environments:

- A program may replace `connection.send` with a function of one argument. The functions that
  create, join, reset and leave worlds and the properties go through it. Steps and resets of an
  environment, its `close` and what cleans up do not: catch their errors where they are called, or
  in `step` of a subclass.
- `close` of connections and environments raises nothing; what fails is logged as a warning.
- The connection of `create_and_join_world` is not closed with the environment, as there. `make`
  owns its connection and its world: `close` leaves, destroys and closes. Callbacks of
  `env.on_close` are called afterwards and may end the process of the server.
- An `AsyncConnection` is closed with `await connection.close()` or `async with`; there with
  `connection.close()` or `with`.
- A Reset is not sent if no sequence is running: the first `reset` is one Step.
- A reset that changes the specs is adopted; there it is a RuntimeError.
- `env.connection` is the connection; a subclass may assign its own. Extensions are None after
  `close`, as there; `extensions=` may be a function of the connection.
- Local credentials, the default of `create_secure_channel_and_connect`, are refused for addresses
  that are not loopback; there it waits for ever.

Values:

- A FIRST TimeStep never has a discount, even if the server sends one.
- An action that does not fit its dtype, shape or bounds, or is not finite, is a `SpecError`; there
  it is wrapped, cut or rounded, and bounds are not checked.
- Unpacked arrays of strings have the dtype object. All arrays are writable.
- A name that is also the parent of another, as `a` and `a.b`, is a SpecError.

The loading code of a suite, ported:

```python
def mapped(send):
    def send_mapped(request):
        try:
            return send(request)
        except ConnectionError as error:
            raise RuntimeError("the engine is gone") from error

    return send_mapped


engine = serve(Catch)  # in a suite a process, or a container
connection = dm_env_rpc_client.connect(engine.address)
connection.send = mapped(connection.send)
env, world = dm_env_rpc_client.create_and_join_world(connection, {}, {})
env.on_close(engine.stop)
env.on_close(connection.close)  # called before the one that was added earlier
env.reset()
env.close()
```

Both packages may be imported in one process.

[overview]: https://github.com/google-deepmind/dm_env_rpc/blob/master/docs/v1/overview.md
"""
