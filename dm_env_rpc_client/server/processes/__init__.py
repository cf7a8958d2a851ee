"""Several worker processes behind one address: `serve(..., processes=N)`.

The server's own process accepts connections and hands each socket to the worker with the fewest
worlds, which serves it as a server of one process does: on the usual path nothing is forwarded.
A stream that asks for a world of another worker is forwarded there.
"""

# Read `workers.py` first: the workers as the server's own process sees them, each a
# `WorkerProcess`. `worker.py` is what runs in each of them, `routing.py` decides where a request
# goes, `forwarding.py` takes it there and answers it there, `board.py` is what all processes see of
# one another. CONTRIBUTING.md has the design.
