"""Compliance checks of the dm_env_rpc protocol for any server, in any language.

Run them by `dm-env-rpc check HOST:PORT`, by
`pytest --pyargs dm_env_rpc_client.compliance --dm-env-rpc-address HOST:PORT`, or by `run`.

Read `trial.py` first: what a check works with. A check talks to the server over a raw stream
(`probe.py`), because a Connection refuses the invalid requests that the checks send.

The names are imported when they are first used: the pytest plugin reads `options.py`, and must
not import more than that.

## Checking a server

Each check cites its clause of the protocol. One that fails says what was sent, what came back and
what was expected; one about something that the server does not offer is skipped, with the reason.
In the shell:

```sh
dm-env-rpc check localhost:50051
dm-env-rpc check localhost:50051 --invalid-create rows=-1 --reset rows=6 --one-agent --json
```

Under pytest, a test for each check:

```sh
pytest --pyargs dm_env_rpc_client.compliance --dm-env-rpc-address localhost:50051
```

In Python:

```python
from dm_env_rpc_client.compliance import Options, Outcome, run
from dm_env_rpc_client.server import Catch, serve

with serve(Catch) as server:
    results = list(run(server.address, Options(invalid_create_settings={"rows": -1})))
print([result.name for result in results if result.outcome is Outcome.FAILED])  # []
```

If the server needs settings, has one world only, or takes only some actions in some states, say so:
`dm-env-rpc check --help` lists the options, and `Options` has the same ones.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
