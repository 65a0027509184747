"""The pytest plugin: fixtures of the test kit, and options for the number of simulations.

pytest loads the plugin wherever this package is installed, so the plugin imports the kit only in its fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import FaultySaver, VirtualClock

SEED = "simulation_seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pregel-async", "simulations of graphs (pregel_async.testing)")
    group.addoption(
        "--simulations",
        type=int,
        default=20,
        metavar="N",
        help="how many seeds each test with the fixture simulation_seed runs on (default: 20)",
    )
    group.addoption(
        "--simulation-seed",
        type=int,
        default=None,
        metavar="SEED",
        help="run them on this seed alone, which the message of a failure names",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if SEED not in metafunc.fixturenames:
        return
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if SEED in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return  # the test chooses its seeds itself
    one: int | None = metafunc.config.getoption("simulation_seed")
    count = int(metafunc.config.getoption("simulations") or 0)
    seeds = range(count) if one is None else [one]
    metafunc.parametrize(SEED, seeds, indirect=True, ids=[f"seed {seed}" for seed in seeds])


@pytest.fixture
def simulation_seed(request: pytest.FixtureRequest) -> int:
    """A seed for `simulate`. The test runs once per seed: `--simulations` seeds, or `--simulation-seed` alone."""
    seed: int = request.param
    return seed


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that advances when the test moves it or when every task sleeps: `compile(environment=virtual_clock)`."""
    from .testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def faulty_saver(virtual_clock: VirtualClock) -> FaultySaver:
    """A saver in memory, with the time of `virtual_clock`. `faulty_saver.add(Fault(...))` injects a fault."""
    from checkpoint_savers.memory import InMemorySaver

    from .testing import FaultySaver

    return FaultySaver(InMemorySaver(clock=virtual_clock.now), clock=virtual_clock)
