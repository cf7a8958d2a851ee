from .parallel_env import RemoteParallelEnv as RemoteParallelEnv
