"""NumPy values to Tensor messages and back; a conversion that would change a value is an error.

Pure: no I/O, no state. Read `codecs.py` first, the eleven data types; then `packing.py` (values),
`specs.py` (which values are allowed) and `spec_manager.py` (all values of an agent by UID and
name). May import `errors`, `displays` and the generated modules.

## Values and specs

A tensor of the protocol is a shape and a flat list of one of eleven types. `pack_tensor` and
`unpack_tensor` go from NumPy to that and back. A value that the dtype cannot hold exactly is an
error:

```python
import numpy as np

import dm_env_rpc_client

tensor = dm_env_rpc_client.pack_tensor([[1, 2], [3, 4]], np.uint8)
print(tensor.shape, dm_env_rpc_client.unpack_tensor(tensor).dtype)  # [2, 2] uint8
try:
    dm_env_rpc_client.pack_tensor([1, 256], np.uint8)
except dm_env_rpc_client.SpecError as error:
    print(error)  # 256
```

A `TensorSpec` of the protocol is a dm_env spec here, and the other way round:

```python
from dm_env import specs

spec = specs.BoundedArray((2,), np.float32, -1.0, 1.0, "torque")
message = dm_env_rpc_client.dm_env_spec_to_tensor_spec(spec)
print(dm_env_rpc_client.bounds(message).max)  # 1.0
print(dm_env_rpc_client.tensor_spec_to_dm_env_spec(message) == spec)  # True
```

A `SpecManager` packs and unpacks all actions or observations of an agent, by UID and by name. It
checks shape, dtype and, for actions, bounds and finiteness; an error names the path to the value:

```python
manager = dm_env_rpc_client.SpecManager({7: message})
packed = manager.pack({"torque": np.zeros(2, np.float32)})
print(list(packed), manager.unpack(packed)["torque"])  # [7] [0. 0.]
print(manager.name_to_uid("torque"))  # 7
```

Names with periods are levels of nested dictionaries:

```python
flat = dm_env_rpc_client.flatten_dict({"arm": {"torque": 1, "grip": 2}}, ".")
print(flat)  # {'arm.torque': 1, 'arm.grip': 2}
print(dm_env_rpc_client.unflatten_dict(flat, "."))  # {'arm': {'torque': 1, 'grip': 2}}
```

## Limits of memory

A few bytes can ask for gigabytes: one element may stand for an array of any shape, and a string, an
`Any` or a spec takes a few bytes in a message and up to 3,000 in memory. `Limits` bounds what one
message may take. With the defaults it is at most 4 times the size of the message plus 64 MiB (5
times on a client over the transport "grpc", since grpcio keeps a copy). A
message that would take more is refused before the memory is taken, with an error that names the
limit: on the client a `ProtocolError`, on the server a Status with RESOURCE_EXHAUSTED or
INVALID_ARGUMENT. `connect`, `make` and `serve` take `limits=`:

```python
from dm_env_rpc_client.server import Catch, serve

wide = dm_env_rpc_client.Limits(message_bytes=512 << 20, expanded_bytes=256 << 20)
with serve(Catch, limits=wide) as server:
    env = dm_env_rpc_client.make(server.address, limits=wide)
    print(env.reset().observation["board"].shape)  # (10, 5)
    env.close()
```
"""
