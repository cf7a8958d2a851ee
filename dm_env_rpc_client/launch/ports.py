"""Free ports, reserved for commands that take their port as an argument.

A port is chosen before the server listens on it, so another program can bind it in the meantime.
Three measures make conflicts over ports rare and harmless:

- `Port` holds the port with a bound socket that does not listen. The operating system assigns a
  held port neither to a socket that requests any free port nor to an outgoing connection. A server
  that sets SO_REUSEADDR, as gRPC does in every language, can still listen on a held port.
- This process never has two `Port`s with the same number.
- If the server ends and its port may have been in use (`Port.was_taken`), or if another program
  listens on the port (`Port.is_foreign`), the server is restarted on another port. Later attempts
  do not hold the port, because some servers do not set SO_REUSEADDR.

The remaining risk is that another program explicitly binds the same port just before the server
does, on a system where /proc does not show the owner of a socket.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dm_env_rpc_client.system.locks import make_lock

_STATES = {
    "R": "computes",
    "S": "sleeps",
    "D": "waits for a device",
    "T": "is stopped by a signal",
    "t": "is held by a debugger",
    "Z": "has ended",
}
"""Descriptions of the common process states, by their letters in proc_pid_stat(5)."""

_SHOWN = 5


class Process(NamedTuple):
    """The fields of /proc/PID/stat that are used here.

    Attributes:
      pid: the process id.
      name: the name of the program, truncated by the system.
      state: a letter.
      parent: the id of the parent process.
      session: the session id.
      seconds: the processor time used, in seconds.
    """

    pid: int
    name: str
    state: str
    parent: int
    session: int
    seconds: float


def descendants(root: int) -> list[Process]:
    """Return a process, its descendants, and all other processes in their sessions."""
    there = list(_read())
    found = {root}
    while more := {each.pid for each in there if each.parent in found} - found:
        found |= more
    sessions = {each.session for each in there if each.pid in found - {root}}
    return [each for each in there if each.pid in found or each.session in sessions]


def doing(supervisor: int) -> str:
    """Describe the state of a supervised command's processes, which have their own session."""
    own = [each for each in descendants(supervisor) if each.session != supervisor]
    shown = [
        f"{each.pid} {each.name!r} {_STATES.get(each.state, each.state)}, "
        f"{each.seconds:.1f} s of processor time"
        for each in own[:_SHOWN]
    ]
    if len(own) > _SHOWN:
        shown.append(f"and {len(own) - _SHOWN} more")
    return "; ".join(shown)


def processes() -> list[int]:
    """Return the ids of all processes."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _read() -> Iterator[Process]:
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in processes():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            before, _, after = text.rpartition(")")
            fields = after.split()
            name = before.partition("(")[2]
            seconds = (int(fields[11]) + int(fields[12])) / ticks
            yield Process(pid, name, fields[0], int(fields[1]), int(fields[3]), seconds)


_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE|errno 98|port .*in use", re.I)
_LISTENING = "0A"

_lock = make_lock()
_taken: set[int] = set()


class Port:
    """A free TCP port on the loopback interface, reserved until `close` is called.

    Args:
      is_held: whether to keep other programs from getting the port.

    Attributes:
      number: the port number.
      is_lost: whether another program was found listening on the port.
    """

    def __init__(self, is_held: bool = True):
        self.is_lost = False
        with _lock:
            while True:
                probe = _bound()
                self.number = int(probe.getsockname()[1])
                if self.number not in _taken:
                    break
                probe.close()
            _taken.add(self.number)
        self._socket = probe
        if not is_held:
            self.stop_holding()

    def close(self) -> None:
        """Release the port; repeated calls have no effect."""
        self.stop_holding()
        with _lock:
            _taken.discard(self.number)
        self.number = 0

    def stop_holding(self) -> None:
        """Close the socket that holds the port, but keep the number reserved in this process."""
        self._socket.close()

    def was_taken(self, logs: str) -> bool:
        """Whether a server might have ended because its port was in use.

        Args:
          logs: the end of the server's output.
        """
        return bool(_IN_USE.search(logs) or _listening(self.number))

    def is_foreign(self, supervisor: int) -> bool:
        """Whether another program is known to listen on the port.

        Args:
          supervisor: the process id of the server's supervisor.

        Returns:
          False if a process below the supervisor listens, or if the operating system does not show
          the listening process.
        """
        owners = set(_owners(_listening(self.number)))
        return bool(owners) and not owners & {each.pid for each in descendants(supervisor)}


def _bound() -> socket.socket:
    """Return a socket bound to a free port of 127.0.0.1, or of ::1 on a machine without it."""
    try:
        return _bound_to(socket.AF_INET, "127.0.0.1")
    except OSError:
        return _bound_to(socket.AF_INET6, "::1")


def _bound_to(family: socket.AddressFamily, host: str) -> socket.socket:
    probe = socket.socket(family)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, 0))
    except BaseException:
        probe.close()
        raise
    return probe


def _listening(port: int) -> set[str]:
    """Return the sockets that listen on a port, as named by the links in /proc."""
    sockets: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            sockets.update(_inodes(Path(table).read_text(), port))
    return sockets


def _inodes(table: str, port: int) -> Iterator[str]:
    for line in table.splitlines()[1:]:
        # https://docs.kernel.org/networking/proc_net_tcp.html
        _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
        if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
            yield f"socket:[{inode}]"


def _owners(sockets: set[str]) -> Iterator[int]:
    """Yield the processes visible in /proc that have any of the sockets open."""
    for pid in processes() if sockets else ():
        with contextlib.suppress(OSError):
            folder = f"/proc/{pid}/fd"
            if not sockets.isdisjoint(
                os.readlink(f"{folder}/{each}") for each in os.listdir(folder)
            ):
                yield pid
