from .fault_proxy import FaultProxy as FaultProxy
from .scripted_server import Request as Request
from .scripted_server import Response as Response
from .scripted_server import Script as Script
from .scripted_server import ScriptedServer as ScriptedServer
from .scripted_server import answering as answering
from .scripted_server import echo as echo
