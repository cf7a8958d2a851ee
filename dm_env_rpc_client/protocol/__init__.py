"""What client and server agree on, without I/O.

Read `lifecycle.py` first, the table of states; then `envelopes.py` (requests and responses),
`pipeline.py` (which answer belongs to which request) and `step_codec.py` (a Step as bytes: the
hot path; `mid_steps.py`, those of many environments). `telemetry.py` says what both ends report to
whoever takes it. May import `tensors`, `errors` and the generated modules.

## The states of a connection

A connection follows one table at both ends, `lifecycle.TRANSITIONS`. Requests about a world
(create, reset, destroy) and extensions are allowed in every state. Any other request that has no
arrow in this picture is refused with an error and changes nothing:

```mermaid
stateDiagram-v2
    [*] --> NOT_JOINED
    NOT_JOINED --> JOINED: join_world
    JOINED --> NOT_JOINED: leave_world
    JOINED --> JOINED: reset
    JOINED --> RUNNING: step
    RUNNING --> NOT_JOINED: leave_world
    RUNNING --> RUNNING: step
    RUNNING --> TERMINATED: step
    RUNNING --> INTERRUPTED: reset, reset_world, step
    TERMINATED --> NOT_JOINED: leave_world
    TERMINATED --> RUNNING: step
    TERMINATED --> TERMINATED: reset
    INTERRUPTED --> NOT_JOINED: leave_world
    INTERRUPTED --> RUNNING: step
    INTERRUPTED --> INTERRUPTED: reset
```

In terms of dm_env: the step that leads to RUNNING from another state is FIRST, a step that stays in
RUNNING is MID, and one that leads to TERMINATED or INTERRUPTED is LAST, with discount 0 and 1,
unless the server observes a discount of its own. After a LAST step the next one begins a new
sequence, and its actions are ignored. `DmEnvAdaptor.state` says which state the environment is in:

```python
import dm_env_rpc_client
from dm_env_rpc_client.server import Catch, serve

with serve(Catch) as server, dm_env_rpc_client.make(server.address) as env:
    print(env.state.name)  # JOINED
    timestep = env.reset()
    print(env.state.name)  # RUNNING
    while not timestep.last():
        timestep = env.step({"paddle": 1})
    print(env.state.name, timestep.discount)  # TERMINATED 0.0
```

The protocol's own words are in its [overview][] ("States") and its [reference][] (StepRequest,
ResetRequest, ResetWorldRequest).

[overview]: https://github.com/google-deepmind/dm_env_rpc/blob/master/docs/v1/overview.md
[reference]: https://github.com/google-deepmind/dm_env_rpc/blob/master/docs/v1/reference.md
"""
