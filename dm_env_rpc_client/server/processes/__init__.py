"""Worlds in child processes: `serve(..., processes=N)`.

The server's own process listens, admits clients, and has the one registry of worlds; each world is
in one of N workers. For each stream of a client there is a pipe to the worker in which it has
joined a world, over which the bytes of requests and answers pass unread. A batch is in the server's
own process, and its rows are spread over the workers.
"""

# Read `worker_pool.py` first: the workers as the server's own process sees them, each a
# `WorkerProcess`. `streams.py` has the server's end of a stream, which chooses the worker that
# answers a request, `registry.py` the worlds of all workers. `worker_main.py` is what runs in each
# of them, `worker_streams.py` answers there, `for_workers.py` answers what a worker asks the
# server's own process. `spread_batch.py` has a batch, and `worker_rows.py` its rows in a worker.
# CONTRIBUTING.md has the design.
