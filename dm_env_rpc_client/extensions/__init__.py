"""Client side of the protocol's extensions: reading, writing and listing properties.

`properties.py` is the properties extension, `legacy_properties.py` the same for servers of the
1.0 line. Read `property_access.py` first, the interface of both. May import `client`, `tensors`
and `displays`.

## Properties

Properties are data beside actions and observations, for debugging and tuning. On the server they
are plain Python:

```python
import dm_env_rpc_client
from dm_env_rpc_client.server import Catch, Properties, serve


class Tunable(Catch):
    gravity = 9.81

    def __init__(self, **settings):
        super().__init__(**settings)
        self.properties = Properties()
        self.properties.expose(self, "gravity", prefix="physics")
```

On the client they are read and written by key; `walk` yields the specs of all of them:

```python
from dm_env_rpc_client.extensions.properties import PropertiesExtension

with serve(Tunable) as server, dm_env_rpc_client.connect(server.address) as connection:
    env, world = dm_env_rpc_client.create_and_join_world(connection, {}, {})
    properties = PropertiesExtension(connection)
    properties["physics.gravity"] = 1.62
    print(properties["physics.gravity"])  # 1.62
    print([spec.key for spec in properties.walk()])  # ['physics', 'physics.gravity']
    env.close()
```

`extensions.legacy_properties.LegacyProperties` has the same interface for servers of the protocol's
1.0 line. From a shell:

```sh
dm-env-rpc properties list localhost:50051 --values
dm-env-rpc properties set localhost:50051 physics.gravity=1.62 --world NAME
```

The extension is described in the protocol's [own document][].

## Extensions of your own

An extension is a protobuf message. `serve(..., extensions={MyRequest: answer})` calls `answer` with
the message and the world that the connection is joined to, and `connection.send` takes the message
in an `Any` and returns an `Any`:

```python
from google.protobuf import any_pb2, wrappers_pb2


def double(request, world):
    return wrappers_pb2.Int64Value(value=2 * request.value)


with (
    serve(Catch, extensions={wrappers_pb2.Int64Value: double}) as server,
    dm_env_rpc_client.connect(server.address) as connection,
):
    request, answer = any_pb2.Any(), wrappers_pb2.Int64Value()
    request.Pack(wrappers_pb2.Int64Value(value=21))
    connection.send(request).Unpack(answer)
    print(answer.value)  # 42
```

[own document]: https://github.com/google-deepmind/dm_env_rpc/blob/master/docs/v1/extensions/properties.md
"""
