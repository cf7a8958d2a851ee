"""What client and server, and both transports, share: addresses, TLS, tokens, sockets, attempts."""

# `addresses.py`: what an address may be. `credentials.py` and `metadata.py`: TLS, and what is sent
# with a call, such as a token. `status.py`: gRPC's statuses as errors. `sockets.py`: those that
# lead to a server, and what all sockets share; `attempts.py`: until there is a connection.
# `listening.py`: sockets that listen. Nothing here knows HTTP/2 or grpcio.
