"""Validation of inputs and updates by the model of a pydantic state.

A model's validators may look at several fields, of which an input has some and the thread the others. The values for
such a model are therefore validated together with the thread's values, as the first node will get them: after the
thread has been read and before anything is stored (`ModelValues.validator`). Fields of a model without validators are
validated one by one, before the thread is acquired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._checks.values import Misfit, mismatch_of, refused_input, refused_update
from .._core.ownership import own
from .._core.program import Write
from ..channels.overwrite import unwrap_overwrite
from ..types import START


def _validates_by_field(model: Any) -> bool:
    """Return True if a model's fields can be validated one by one, as it has no user code that may read several."""
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

    Only keys without a reducer are validated: the value of a key with one is not known before the fold.

    Args:
        model: the class.
        shape: makes a model from a mapping, whose values it copies.
        keys: the fields, without managed values.
        plain: those of the keys that have no reducer or other channel.

    Attributes:
        by_field: True if each field can be validated without the others.
    """

    def __init__(
        self, model: Any, shape: Callable[[dict[str, Any]], Any], keys: Iterable[str], plain: frozenset[str]
    ) -> None:
        self._model = model
        self._shape = shape
        self._keys = tuple(keys)
        self._plain = plain
        self.by_field = _validates_by_field(model)

    def validate(self, given: dict[str, Any], held: Mapping[str, Any]) -> dict[str, Any] | Misfit:
        """Validate the values of an input or update.

        Missing required fields are not errors: a node may read less than the whole state. If a key with a reducer is
        among the values, errors of validators of the whole model do not count, as these see the key before its fold.

        Args:
            given: values by key. Those of other schemas are returned unchanged.
            held: the thread's values by key.

        Returns:
            The values, each replaced by the model's; or the place and reason of the first error.
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
        except Exception as error:  # a ValidationError, or any other exception of a validator
            if hasattr(error, "errors"):
                wrong = mismatch_of(error, leaving_out=is_no_problem)
            else:
                wrong = Misfit((), f"is refused: {type(error).__name__}: {error}") if is_whole else None
            if wrong is not None:
                return wrong
            return {**given, **{name: self._validate_field(name, value) for name, value in values.items()}}
        # Besides the given fields, those that a validator has set count as part of the update.
        counted = values.keys() | (self._plain & (made.model_fields_set - state.keys()))
        return {**given, **{name: own(getattr(made, name), name) for name in self._keys if name in counted}}

    def _validate_field(self, name: str, value: Any) -> Any:
        """Return the model's value for a field; the given one if validators of the model need the other fields."""
        blank = self._model.model_construct()
        try:
            self._model.__pydantic_validator__.validate_assignment(blank, name, own(value))
        except Exception:  # a validator of the whole model may raise anything without the other fields, or it is frozen
            return value
        return getattr(blank, name)

    def validate_update(self, writes: list[Write], held: Mapping[str, Any]) -> list[Write]:
        """Validate the writes of an update.

        Args:
            writes: the writes, of which only those to the model's fields are validated.
            held: the thread's values by key.

        Returns:
            The writes with the model's values, followed by writes of fields that a validator has set.

        Raises:
            InvalidUpdateError: the model refuses a value.
        """
        given = {name: value for name, value in writes if name in self._keys}
        made = self.validate(given, held)
        if isinstance(made, Misfit):
            raise refused_update(made)
        changed = [(name, made[name] if value is given.get(name) else value) for name, value in writes]
        return changed + [(name, value) for name, value in made.items() if name not in given]

    def validator(self) -> Callable[[Mapping[str, Any], list[Write]], list[Write]] | None:
        """Return the function that validates an input or update with the thread's values (`Program.validate`).

        Returns:
            A function of the thread's values and the writes; None if fields are validated one by one.
        """
        return None if self.by_field else self._validate_writes

    def _validate_writes(self, held: Mapping[str, Any], writes: list[Write]) -> list[Write]:
        if not writes or writes[0][0] != START:
            return self.validate_update(writes, held)
        made = self.validate(writes[0][1], held)
        if isinstance(made, Misfit):
            raise refused_input(made)
        return [(START, made)]

    def validates(self, key: str) -> bool:
        """Return True if the model validates the writes of a key.

        Args:
            key: the key.

        Returns:
            True for fields without a reducer or other channel.
        """
        return key in self._plain
