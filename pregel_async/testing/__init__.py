"""A test kit: a virtual clock, scripted nodes and models, faulty savers, recorded threads, and seeded simulations."""

from .clock import VirtualClock
from .faults import Faults, SimulatedFailure
from .loop import SimulatedLoop, StuckError
from .recorded import RecordedThreadsError, check_recorded, recorded
from .saver import WRITES, Crash, Fault, FaultySaver, PassingSaver
from .script import Played, Script, ScriptEndedError, asks, fails, gives, returns, waits
from .scripted_model import ScriptedModel, calls
from .simulate import Simulation, SimulationError, simulate

__all__ = [
    "WRITES",
    "Crash",
    "Fault",
    "Faults",
    "FaultySaver",
    "PassingSaver",
    "Played",
    "RecordedThreadsError",
    "Script",
    "ScriptEndedError",
    "ScriptedModel",
    "SimulatedFailure",
    "SimulatedLoop",
    "Simulation",
    "SimulationError",
    "StuckError",
    "VirtualClock",
    "asks",
    "calls",
    "check_recorded",
    "fails",
    "gives",
    "recorded",
    "returns",
    "simulate",
    "waits",
]
