"""dm_env_rpc servers in other languages and on other stacks, and clients, all the same to see.

Each serves one environment, whose contract is this. Every server says where it listens in the
first line that it prints, and ends when its stdin does: it stops taking streams, and half a
second later breaks off those that there are. `--address` is where it listens, in gRPC's form;
`--certificate` and `--key` make it TLS.

A world takes one agent at a time. Settings of CreateWorld, all of which may be left out:

- `payload`: what is observed. `echo`: actions of each of
  the eleven dtypes, with the names of the DataTypes in lower case and their numbers as UIDs, are
  observed again under the same names and UIDs; `steps` (12) counts the steps of the sequence,
  `metadata` (13) is that of the call as `key=value`, in hexadecimal where the key ends in `-bin`.
  `scalar` (float32), `vector` (float64[256]), `int32` (84x84, of mixed sign), `uint8` and `float32`
  (84x84x4), `video` (uint8 1080x1920x3) and `bytes` (uint8): one observation `payload` (1), filled
  once, whose first element is the number of the step modulo 100; one action `action` (1), an int32
  that is ignored.
- `bytes`: the size of the payload of that name.
- `shape`: of what is echoed; one variable dimension by default.
- `length`: steps of a sequence after its first, which then is TERMINATED; 0 is for ever.
- `delay`: seconds that each step takes.

Reset takes `length`. ResetWorld waits until the agent, if another, has been told.

The clients are for a server whose environment has one action, `bytes` (1, uint8 of any number), and
observes it as `bytes` (1). `trial ADDRESS BYTES` takes a step of so many bytes there and back,
cancels the stream and joins its world again; opens a stream with a deadline that passes; and takes
50 steps in each of 16 worlds, on 16 streams at once. It prints `bytes`, `late`, the number of the
status at the deadline, and `steps`.
"""
