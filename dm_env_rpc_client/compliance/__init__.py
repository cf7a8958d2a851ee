"""Is it a dm_env_rpc server? Checks against any server, in any language.

Run them by `dm-env-rpc check HOST:PORT`, by
`pytest --pyargs dm_env_rpc_client.compliance --dm-env-rpc-address HOST:PORT`, or by `run`.

Read `trial.py` first: what a check works with. It talks to a server by raw streams
(`probe.py`), since a Connection refuses what the checks have to try.

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

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import Outcome, Result
from dm_env_rpc_client.compliance.runner import run, run_check
from dm_env_rpc_client.compliance.table import CHECKS

__all__ = ["CHECKS", "Check", "Options", "Outcome", "Result", "run", "run_check"]
