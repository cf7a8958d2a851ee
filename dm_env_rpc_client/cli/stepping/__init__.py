"""The commands `dm-env-rpc run` and `dm-env-rpc bench`, which step an environment."""

# `episodes` has the policies, the episodes and the phases of a step; `watch` asks the server what a
# step waits for, also for `play`.
