"""Operating system helpers for all packages: forks, locks, waits, pipes, threads, processes."""

# `forking.py`: notification of objects in a forked child. `locks.py`: how a lock is
# tried, so that a signal does not leave it locked. `waiting.py`: waits that a signal ends, until a
# deadline, and for several threads. `owner_threads.py`: threads to which objects belong.
# `polling.py`, `message_pipe.py`: between threads, with a look before sleeping, and between
# processes. `children.py`: child processes that end with their parent; `spawned.py`: those of them
# that run a function. `sources.py`: what a command line names.
