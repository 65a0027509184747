"""Write a workflow as one function (`@entrypoint`), whose steps are tasks: concurrent calls with stored results.

When the function runs again, after a crash, a failure or a question, each finished call returns its stored result.
`previous` holds the value that the last run on the same thread saved.

python examples/09_workflow.py
"""

from __future__ import annotations

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async import entrypoint, task


class World:
    """The effects of the tasks outside the state."""

    counted = 0
    mail_works = False


@task
async def count_words(text: str) -> int:
    World.counted += 1
    print(f"    counting the words of {text!r}")
    return len(text.split())


@task
def send_mail(total: int) -> str:  # a plain function runs in a worker thread
    if not World.mail_works:
        raise ConnectionError("the mail server does not answer")
    return f"mailed: {total} words"


@entrypoint(checkpointer=InMemorySaver())
async def report(texts: list[str], *, previous: int | None = None) -> entrypoint.final[str, int]:
    counts = [count_words(text) for text in texts]  # all tasks start now
    total = (previous or 0) + sum([await count for count in counts])
    return entrypoint.final(value=await send_mail(total), save=total)  # the next run gets the total as `previous`


async def main() -> None:
    print("the first run fails at the mail:")
    try:
        await report.ainvoke(["one two", "three"], "words")
    except ConnectionError as error:
        print(f"    failed: {error}")

    print("it goes on, and counts nothing again:")
    World.mail_works = True
    print(f"    {await report.ainvoke(None, 'words')}")

    print("the next run on the thread adds to it:")
    print(f"    {await report.ainvoke(['four five six'], 'words')}")
    print(f"{World.counted} texts were counted")


if __name__ == "__main__":
    anyio.run(main)
