"""The picture of the layers shows the code as it is."""

from __future__ import annotations

import pytest

from tests.architecture.picture import PICTURE, imports, lines, picture, rows


def test_the_picture_is_of_this_code() -> None:
    """Run `python tests/architecture/picture.py` when this fails: the imports have changed."""
    assert PICTURE.read_text("utf-8") == picture(imports())


def test_everything_stands_on_something_lower() -> None:
    """No import leads up, or sideways: and the savers know nothing of the runtime."""
    found = imports()
    level = {box: number for number, row in enumerate(rows(found)) for box in row}
    assert len(level) > 40
    assert all(level[other] < level[box] for box, others in found.items() for other in others)
    assert not any(
        other.startswith("pregel_async") for box, others in found.items() if "savers" in box for other in others
    )


def test_a_circle_is_told() -> None:
    """It has no picture."""
    with pytest.raises(ValueError, match="p.a -> p.b -> p.a"):
        rows({"p.a": {"p.b"}, "p.b": {"p.a"}})


def test_what_follows_from_others_is_left_out() -> None:
    """a stands on c by way of b."""
    assert lines({"p.a": {"p.b", "p.c"}, "p.b": {"p.c"}, "p.c": set()}) == [("p.a", "p.b"), ("p.b", "p.c")]
