"""The MCAP file of a recording: what is written, and what is read without believing its sizes."""

# Read `container.py` first, which writes; `layout.py` takes records apart.
