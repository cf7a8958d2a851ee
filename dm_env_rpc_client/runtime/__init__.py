"""Tools of Python and the operating system that are independent of any protocol."""

# `deadline.py`: one timeout for several waits. `children.py`: child processes that end with their
# parent. `objects.py`, `setting_text.py` and `launch_text.py`: objects, settings and servers to
# launch, as they are named on a command line. `conversions.py`: environments of other libraries, as
# they are served. The files are independent of one another.
