"""Streams that grpcio carries: for targets, credentials and proxies that only it has."""
