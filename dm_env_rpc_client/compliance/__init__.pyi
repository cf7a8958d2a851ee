from .check import Check as Check
from .options import Options as Options
from .outcome import Outcome as Outcome
from .outcome import Result as Result
from .runner import run as run
from .runner import run_check as run_check
from .table import CHECKS as CHECKS
