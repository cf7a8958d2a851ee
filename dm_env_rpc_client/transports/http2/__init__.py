"""gRPC over HTTP/2 on a plain socket (RFC 9113 and the gRPC wire protocol)."""

# `protocol/` is HTTP/2 without I/O, `client/` a client's connections, `server/` a server's
# listener.
