"""What a server of this package answers beside the environment: health checks, reflection."""
