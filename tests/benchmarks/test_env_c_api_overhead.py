from __future__ import annotations

import pytest

from tests.benchmarks.sections.env_c_api_overhead import measure

ALLOWED_US = 15.0


@pytest.mark.slow
def test_a_step_costs_little_more_than_the_c_functions_and_one_copy() -> None:
    medians = measure()
    overhead = medians["EnvCApiEnvironment"] - medians["the C functions and one copy"]
    print(f"{overhead:.2f} us over the C functions and one copy; {medians}")
    assert overhead <= ALLOWED_US
