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
| `connection.create_secure_channel_and_connect` | the same name, or `connect` |
| `connection.Connection` | `Connection` |
| `dm_env_adaptor.create_and_join_world`, `DmEnvAdaptor` | the same names |
| `dm_env_adaptor.create_world`, `join_world` | the same names |
| `spec_manager.SpecManager` | `SpecManager` |
| `tensor_utils.pack_tensor`, `unpack_tensor` | the same names |
| `dm_env_rpc_pb2` | `dm_env_rpc_pb2`, the same classes |

These differ:

- An action that does not fit its dtype is a `SpecError`; there it is wrapped, cut or rounded.
- Arrays of strings have the dtype object.
- A FIRST TimeStep never has a discount.
- A reset that changes the specs is adopted.
- The errors are those of `dm_env_rpc_client.errors`.

Both packages may be imported in one process.

[overview]: https://github.com/google-deepmind/dm_env_rpc/blob/master/docs/v1/overview.md
"""
