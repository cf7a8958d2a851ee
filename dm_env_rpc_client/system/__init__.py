"""The operating system: fork handlers, locks, waits, pipes, owners, children. For any room."""

# `forking.py`: objects that are told when they are in a forked child. `locks.py`: how a lock is
# tried, so that a signal does not leave it locked. `waiting.py`: waits that a signal ends.
# `owners.py`: threads to which objects belong. `busy_wait.py`: looking before sleeping.
# `deadline.py`: one timeout for several waits. `polling.py`, `message_pipe.py`: between threads,
# and between processes. `children.py`: child processes that end with their parent. `spawned.py`:
# those of them that run a function. `objects.py`, `launch_text.py`: what a command line names.
