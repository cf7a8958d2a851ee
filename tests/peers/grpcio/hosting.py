"""What both of grpcio's servers are told on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import grpc

SERVICE = "dm_env_rpc.v1.Environment"
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]
GRACE_SECONDS = 0.5


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default="127.0.0.1:0")
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--key", type=Path)
    return parser.parse_args()


def listen(server: Any, options: argparse.Namespace) -> str:
    """Has a server listen; returns where."""
    if options.certificate:
        pair = (options.key.read_bytes(), options.certificate.read_bytes())
        credentials = grpc.ssl_server_credentials([pair])
        port = server.add_secure_port(options.address, credentials)
    else:
        port = server.add_insecure_port(options.address)
    if options.address.startswith("unix:"):
        return str(options.address)
    return f"{options.address.rpartition(':')[0]}:{port}"
