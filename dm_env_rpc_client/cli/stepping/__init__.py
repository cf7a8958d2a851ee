"""`dm-env-rpc run` and `bench`, which step an environment."""

# `policies` has the sources of actions, `stopwatch` the phases of a step; `watch` asks the server
# what a step waits for, also for `play`.
