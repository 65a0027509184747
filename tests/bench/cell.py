"""One cell of the table: one workload on one engine, in this process. Prints one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from limit import Limit
from workloads import Engine


async def measure(engine: str, workload: str, params: dict[str, Any], budget: float) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        build = getattr((Limit if engine == "limit" else Engine)(engine, stack), workload, None)
        if build is None:
            return {}
        case = await build(**params)
        result = await case.run()  # warm
        assert case.right(result), str(result)[:300]
        times: list[float] = []
        figures: list[dict[str, float]] = []
        while sum(times) < budget and len(times) < 50:
            begun = time.perf_counter()
            result = await case.run()
            times.append(time.perf_counter() - begun)
            figures.append(case.figures(result))
        assert case.right(result)
        more = {key: statistics.median(figure[key] for figure in figures) for key in figures[0]}
        return {"us": statistics.median(times) / case.units * 1e6, **more}


def main() -> None:
    engine, workload, params, budget = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), float(sys.argv[4])
    if engine == "pregel-async, uvloop":
        import uvloop

        found = uvloop.run(measure(engine, workload, params, budget))
    else:
        found = asyncio.run(measure(engine, workload, params, budget))
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
