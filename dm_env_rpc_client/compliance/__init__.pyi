from .check import Check as Check
from .options import Options as Options
from .outcome import ComplianceWarning as ComplianceWarning
from .outcome import Outcome as Outcome
from .outcome import Result as Result
from .runner import CHECKS as CHECKS
from .runner import Suite as Suite
from .runner import run as run
