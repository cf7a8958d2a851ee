"""Addresses, TLS, tokens, sockets and connection attempts, for clients and servers."""

# `addresses.py`: what an address may be. `credentials.py` and `metadata.py`: TLS, and what is sent
# with a call, such as a token. `status.py`: gRPC's statuses as errors. `sockets.py`: what all
# sockets share, and the two ways to wait for them. `reaching.py`: names, connects and handshakes;
# `attempts.py`: again until there is a connection. `listening.py`: sockets that listen. Nothing
# here knows HTTP/2 or grpcio.
