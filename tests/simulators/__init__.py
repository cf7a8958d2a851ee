"""Simulators served from a process of their own: `python -m tests.sessions foreign --simulators`.

Their packages are those of the extra `test-simulators`, in an environment of their own.
"""
