"""Worlds in child processes: `serve(..., processes=N)`.

The server's own process listens, admits clients and keeps the only registry of worlds. Each world
runs in one of N worker processes. A pipe connects each client stream to the worker whose world the
stream has joined. The server's own process forwards the bytes of requests and answers unchanged. A
batch is hosted by the server's own process, and its rows are spread over the workers.
"""

# Read `worker_pool.py` first: the workers as the server's own process sees them, each a
# `WorkerProcess`. `streams.py` has the server's end of a stream, which chooses the worker that
# answers a request, `registry.py` the worlds of all workers. `worker_main.py` runs in each worker,
# `worker_streams.py` answers there, `for_workers.py` answers a worker's requests to the server's
# own process. `spread_batch.py` has a batch, and `worker_rows.py` its rows in a worker.
#
# A step passes the stream's thread in the server's own process, the pipe, and the owner of the
# world in the worker. The session of a stream, with specs, codec and the handlers of extensions,
# is in the worker; the session of a batch is in the server's own process, for which `SpreadBatch`
# is an environment that scatters actions over the workers and gathers the results of rows.
#
# When a worker ends, the kernel closes the pipes of its streams. Joined streams end with
# UNAVAILABLE, and so do streams with a request that may have begun: passed to the next worker, a
# request that has ended one worker could end all. Rows of batches fail once and are recreated in
# the replacement, with their settings. Counts live in shared memory, which the replacement
# continues; errors and log records are sent as they happen, before the answer.
#
# A worker stopped by a signal gets no worlds and is killed after 10 s; time in which all processes
# were stopped does not count. A worker whose GIL is held for long cannot be distinguished from a
# computing one: it is passed over while it takes no streams.
#
# Workers ignore SIGINT, SIGTERM and SIGHUP: a terminal or a supervisor signals the whole process
# group, and the server's own process ends the workers in order. For the same reason they are ended
# before multiprocessing sends SIGTERM at the exit.
