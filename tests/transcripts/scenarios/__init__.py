"""The scenarios, by the file of their transcripts, and by name."""

from tests.transcripts.scenarios import (
    batches,
    bridges,
    errors,
    games,
    gymnasium_spaces,
    gymnasium_ways,
    one_file,
    properties,
    restarts,
    values,
    vectors,
    ways,
    worlds,
)
from tests.transcripts.scene import Scenario

SCENARIOS: dict[str, dict[str, Scenario]] = {
    module.__name__.rpartition(".")[2]: module.SCENARIOS
    for module in (
        values,
        ways,
        batches,
        worlds,
        errors,
        gymnasium_spaces,
        gymnasium_ways,
        vectors,
        games,
        properties,
        restarts,
        one_file,
        bridges,
    )
}
