from .from_dm_env import GymnasiumEnv as GymnasiumEnv
from .from_dm_env import info_of as info_of
from .from_dm_env import is_terminated as is_terminated
from .from_dm_env import make_remote as make_remote
from .proxy import GymnasiumProxy as GymnasiumProxy
from .to_dm_env import GymnasiumEnvironment as GymnasiumEnvironment
from .vector_env import RemoteVectorEnv as RemoteVectorEnv
