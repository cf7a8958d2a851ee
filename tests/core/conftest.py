from __future__ import annotations

from hypothesis import HealthCheck, settings

# On a busy machine a slow example says nothing about the code.
settings.register_profile("core", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("core")
