"""A workflow that is one function: `@entrypoint`. Its steps are tasks: calls that run at once, and whose results are
kept.

When the function runs again, after a crash, a failure or a question, each call that had finished gives the result that
is stored. What the function returned last time on the same thread comes in as `previous`.

python examples/09_workflow.py
"""

from __future__ import annotations

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async import entrypoint, task


class Environment:
    """What the tasks do to the world outside."""

    counted = 0
    mail_works = False


@task
async def count_words(text: str) -> int:
    Environment.counted += 1
    print(f"    counting the words of {text!r}")
    return len(text.split())


@task
def send_mail(total: int) -> str:  # a plain function runs in a worker thread
    if not Environment.mail_works:
        raise ConnectionError("the mail server does not answer")
    return f"mailed: {total} words"


@entrypoint(checkpointer=InMemorySaver())
async def report(texts: list[str], *, previous: int | None = None) -> entrypoint.final[str, int]:
    counts = [count_words(text) for text in texts]  # all of them run now
    total = (previous or 0) + sum([await count for count in counts])
    return entrypoint.final(value=await send_mail(total), save=total)  # the next run's previous is the total


async def main() -> None:
    print("the first run fails at the mail:")
    try:
        await report.ainvoke(["one two", "three"], "words")
    except ConnectionError as error:
        print(f"    failed: {error}")

    print("it goes on, and counts nothing again:")
    Environment.mail_works = True
    print(f"    {await report.ainvoke(None, 'words')}")

    print("the next run on the thread adds to it:")
    print(f"    {await report.ainvoke(['four five six'], 'words')}")
    print(f"{Environment.counted} texts were counted")


if __name__ == "__main__":
    anyio.run(main)
