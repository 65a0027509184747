"""`RunStoreConformance`: all clauses for run stores."""

from __future__ import annotations

from .changes import Waiting
from .crashes import Crashes
from .lifecycle import Lifecycle
from .search import RunSearch
from .suite import OpenSaverAt as OpenSaverAt  # authors import it from here, with the suite
from .supersteps import Supersteps


class RunStoreConformance(Lifecycle, Supersteps, RunSearch, Waiting, Crashes):
    """All clauses for run stores. Override the fixture `open_saver`."""
