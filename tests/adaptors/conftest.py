"""Servers for several files."""

from __future__ import annotations

from dm_env_rpc_client.server import Catch
from tests.adaptors.walkers import Arm, Walker
from tests.support.environments import Robot
from tests.support.serving import serving

server = serving({"Walker": Walker, "Arm": Arm, "Catch": Catch, "Robot": Robot}, checks_errors=True)
