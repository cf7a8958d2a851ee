"""The properties that servers and their environments offer beside actions and observations."""

# Read `offered.py` first: the registry. `strings.py` shows it what an environment reads and writes
# itself; in `processes/`, workers ask for the properties of the server's own process.
