"""Is it a dm_env_rpc server? Checks against any server, in any language.

Run them by `dm-env-rpc check HOST:PORT`, by
`pytest --pyargs dm_env_rpc_client.compliance --dm-env-rpc-address HOST:PORT`, or by `run`.

Read `trial.py` first: what a check works with. It talks to a server by raw streams
(`probe.py`), since a Connection refuses what the checks have to try.
"""

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import Outcome, Result
from dm_env_rpc_client.compliance.runner import run, run_check
from dm_env_rpc_client.compliance.table import CHECKS

__all__ = ["CHECKS", "Check", "Options", "Outcome", "Result", "run", "run_check"]
