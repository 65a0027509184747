"""What a pydantic state makes of an input or an update: the model's own values, or where it refuses them.

A model's validators may look at several fields, and an input brings some of these: the thread has the others. So the
values of such a model are validated together with what the thread holds, as the first node will get them, when the
thread has been read and before anything is stored (`ModelValues.validator`). Fields of a model without validators are
validated by themselves, before the thread is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._checks.values import Mismatch, mismatch_of, refused_input, refused_update
from .._core.isolation import own
from .._core.program import Write
from ..channels.overwrite import unwrap_overwrite
from ..types import START


def _validates_by_field(model: Any) -> bool:
    """Return True if a model's fields can be validated one by one: no code of the user's looks at the others."""
    decorators = model.__pydantic_decorators__
    return not (
        decorators.model_validators
        or decorators.root_validators
        or decorators.field_validators
        or model.__pydantic_post_init__
        or model.__pydantic_custom_init__
        or any(hasattr(mark, "func") for field in model.model_fields.values() for mark in field.metadata)
    )


class ModelValues:
    """Validates values for some fields of a pydantic model.

    Only keys that keep their last value are validated: what a key with a reducer will hold is not known before the
    fold.

    Args:
        model: the class.
        shape: makes an object of a mapping, which it copies.
        keys: the fields, but for those that the runtime fills in.
        plain: those of them that keep their last value.

    Attributes:
        by_field: fields can be validated without the others.
    """

    def __init__(
        self, model: Any, shape: Callable[[dict[str, Any]], Any], keys: Iterable[str], plain: frozenset[str]
    ) -> None:
        self._model = model
        self._shape = shape
        self._keys = tuple(keys)
        self._plain = plain
        self.by_field = _validates_by_field(model)

    def validate(self, given: dict[str, Any], held: Mapping[str, Any]) -> dict[str, Any] | Mismatch:
        """Return the values with those that the model makes of them, or where the model refuses them.

        Missing required fields are not refused: a node may read less than the whole state. A
        validator of the whole model does not count where a reducer's key is given too, as it would see half of it.

        Args:
            given: by key; keys of other schemas are returned as they are.
            held: what the thread holds, by key.
        """
        values = {name: unwrap_overwrite(value) for name, value in given.items() if name in self._plain}
        if not values:
            return given
        is_whole = all(name in self._plain or name not in self._keys for name in given)
        state = {**{name: held[name] for name in self._keys if name in held}, **values}

        def is_no_problem(problem: Mapping[str, Any]) -> bool:
            place = problem["loc"]
            if not place:
                return not is_whole
            return place[0] not in values or (problem["type"] == "missing" and len(place) == 1)

        try:
            made = self._shape(state)
        except Exception as error:  # pydantic's ValidationError, or any error of a validator
            if hasattr(error, "errors"):
                wrong = mismatch_of(error, leaving_out=is_no_problem)
            else:
                wrong = Mismatch((), f"is refused: {type(error).__name__}: {error}") if is_whole else None
            if wrong is not None:
                return wrong
            return {**given, **{name: self._validate_field(name, value) for name, value in values.items()}}
        counted = values.keys() | (self._plain & (made.model_fields_set - state.keys()))  # set by a validator
        return {**given, **{name: own(getattr(made, name), name) for name in self._keys if name in counted}}

    def _validate_field(self, name: str, value: Any) -> Any:
        """A field's value as the model makes it; as it is where the model's own validators need the other fields."""
        blank = self._model.model_construct()
        try:
            self._model.__pydantic_validator__.validate_assignment(blank, name, own(value))
        except Exception:  # a validator of the whole model's, which may raise anything; or the model is frozen
            return value
        return getattr(blank, name)

    def validate_update(self, writes: list[Write], held: Mapping[str, Any]) -> list[Write]:
        """Return the writes of an update with the model's values. Raises `InvalidUpdateError`."""
        given = {name: value for name, value in writes if name in self._keys}
        made = self.validate(given, held)
        if isinstance(made, Mismatch):
            raise refused_update(made)
        changed = [(name, made[name] if value is given.get(name) else value) for name, value in writes]
        return changed + [(name, value) for name, value in made.items() if name not in given]

    def validator(self) -> Callable[[Mapping[str, Any], list[Write]], list[Write]] | None:
        """What validates an input or update together with what the thread holds (`Program.validate`); None if fields
        are validated by themselves."""
        return None if self.by_field else self._validate_writes

    def _validate_writes(self, held: Mapping[str, Any], writes: list[Write]) -> list[Write]:
        if not writes or writes[0][0] != START:
            return self.validate_update(writes, held)
        made = self.validate(writes[0][1], held)
        if isinstance(made, Mismatch):
            raise refused_input(made)
        return [(START, made)]

    def validates(self, key: str) -> bool:
        """Return True if the model validates what is written to a key."""
        return key in self._plain
