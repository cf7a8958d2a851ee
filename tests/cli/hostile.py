"""A server whose every text controls terminals, and what must not reach one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from dm_env_rpc_client import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.testing import Request, Response, Script

# C0, DEL and C1 controls, marks of direction, separators of lines and paragraphs.
_CODES = [
    *range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F),
    *range(0x2066, 0x206A), 0x2028, 0x2029,
]  # fmt: skip
CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
EVIL = f"{CLIPBOARD}\x1b[2J[link=http://evil]here[/link][/] {''.join(map(chr, _CODES))}"

_OWN = re.compile(r"\t|\r\n|\r|\n|\x1b\[[\d;]*m|\x1b\[\?25[lh]|\x1b\[\d*[AKG]")
"""What rich writes to terminals: ends of lines, styles, movements of the cursor."""

SPEC = dm_env_rpc_pb2.TensorSpec(name=f"a{EVIL}", dtype=dm_env_rpc_pb2.INT32)
_TEXT = dm_env_rpc_pb2.TensorSpec(name=f"text{EVIL}", dtype=dm_env_rpc_pb2.STRING)


def leftover(shown: str, on_terminal: bool) -> list[str]:
    """The characters of an output that control a terminal, but for the command's own."""
    rest = _OWN.sub("", shown) if on_terminal else re.sub(r"[\t\n]", "", shown)
    return [c for c in rest if not c.isprintable()]


def evil_error(code: int = 3) -> status_pb2.Status:
    """A Status that is hostile in its message and in its details."""
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.DebugInfo(stack_entries=[EVIL, f"{EVIL}\n"], detail=EVIL))
    return status_pb2.Status(code=code, message=EVIL, details=[packed])


def serving(refuses: str = "", ends: str = "") -> Script:
    """Returns the script of a server that serves hostile names, units, values and texts.

    Args:
      refuses: the name of a request that is answered with a hostile error.
      ends: the name of a request at which the stream ends with a hostile status.
    """
    specs = dm_env_rpc_pb2.ActionObservationSpecs(actions={1: SPEC}, observations={1: _TEXT})

    answers: dict[str, Any] = {
        "create_world": {"world_name": EVIL},
        "join_world": {"specs": specs},
        "reset": {"specs": specs},
    }

    def answer(request: Request) -> Response:
        kind = str(request.WhichOneof("payload"))
        if kind == "extension":
            return _property(request)
        if kind == "step":
            text = dm_env_rpc_pb2.Tensor(strings={"array": [EVIL]})
            texts = dict.fromkeys(request.step.requested_observations, text)
            return Response(step={"state": dm_env_rpc_pb2.RUNNING, "observations": texts})
        return Response(**{kind: answers.get(kind, {})})

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            if request.WhichOneof("payload") == ends:
                context.abort(grpc.StatusCode.INTERNAL, EVIL.replace("\0", ""))
            if request.WhichOneof("payload") == refuses:
                yield Response(error=evil_error())
            else:
                yield answer(request)

    return script


def _property(request: Request) -> Response:
    asked, told = properties_pb2.PropertyRequest(), properties_pb2.PropertyResponse()
    request.extension.Unpack(asked)
    if asked.HasField("list_property"):
        if asked.list_property.key:
            return Response(error=evil_error())
        for name in (f"key{EVIL}", "unit"):  # The first cannot be read.
            spec = told.list_property.values.add(is_readable=True, description=EVIL)
            spec.spec.name, spec.spec.dtype = name, dm_env_rpc_pb2.STRING
    elif asked.HasField("read_property"):
        if EVIL in asked.read_property.key:
            return Response(error=evil_error())
        told.read_property.value.strings.array.append(EVIL)
    else:
        told.write_property.SetInParent()
    response = Response()
    response.extension.Pack(told)
    return response
