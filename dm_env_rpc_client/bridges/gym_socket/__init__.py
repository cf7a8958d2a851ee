"""gym-socket-api, a byte protocol over TCP, joined to dm_env in both directions.

`GymSocketEnvironment` is the client, `serve` the server. Read `packets.py` first: it lists the
packets and their answers. `fields.py` and `packet_codec.py` make bytes of them, `space_json.py`,
`space_specs.py` and `samples.py` translate spaces and their elements; none of these does I/O.
Above them are `connection.py` and `environment.py` for the client, and `server_session.py`,
`session_runner.py` and `server.py` for the server. Only `tcp.py` touches sockets.

May import `errors`, `runtime`, `tensors` and the addresses of `transports`; never grpc.

## Both ends

gym-socket-api is an older byte protocol over TCP, with servers and clients in several languages.
Here a server's environment is a `dm_env.Environment`, and any dm_env or Gymnasium environment can
be served to its clients (Gymnasium is the extra `gymnasium`):

```python
import functools

import gymnasium

from dm_env_rpc_client.bridges import gym_socket

environments = {"CartPole-v1": functools.partial(gymnasium.make, "CartPole-v1")}
with (
    gym_socket.serve(environments, "localhost:0") as server,
    gym_socket.GymSocketEnvironment(server.address, "CartPole-v1") as env,
):
    env.reset()
    print(env.step(env.sample_action()).reward)  # 1.0
```

Clients get the environments that `environments` names and no others; with `processes=True` each
client gets a process of its own. `dialect="latest"` on both ends speaks the protocol's latest
dialect instead of the first. The protocol has neither encryption nor passwords, so both ends refuse
addresses that are not loopback unless they get `insecure=True`.

From one protocol to the other it is one command:

```sh
dm-env-rpc serve gymnasium://CartPole-v1 --protocol gym-socket
dm-env-rpc serve gym-socket://localhost:5001/CartPole-v1
dm-env-rpc serve dm-env-rpc://localhost:50051 --protocol gym-socket --name Catch
```
"""

from dm_env_rpc_client.bridges.gym_socket.environment import GymSocketEnvironment
from dm_env_rpc_client.bridges.gym_socket.fields import Limits
from dm_env_rpc_client.bridges.gym_socket.server import Server, serve

__all__ = ["GymSocketEnvironment", "Limits", "Server", "serve"]
