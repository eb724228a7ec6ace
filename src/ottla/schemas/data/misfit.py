"""The error of data that do not fit their schema, and the limits of one value."""

from __future__ import annotations

from typing import Final

from ottla.model.errors import OttlaError

#: values inside of each other; the Protobuf library has the same limit
DATA_DEPTH_MAX: Final = 100
_QUOTED_MAX: Final = 60


class DataMisfit(OttlaError):
    """Data do not fit their schema. The message says where, as a JSON pointer, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        #: names and indexes from the innermost value outwards
        self._tokens: list[str | int] = []

    def inside(self, token: str | int) -> DataMisfit:
        """Note that the value is this member or item of an outer one. Return the same error."""
        self._tokens.append(token)
        return self

    @property
    def place(self) -> str:
        """The JSON pointer to the value; "" for the whole value."""
        tokens = (str(token).replace("~", "~0").replace("/", "~1") for token in reversed(self._tokens))
        return "".join(f"/{token[:_QUOTED_MAX]}" for token in tokens)

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self._tokens else self.reason


def kind_of(value: object) -> str:
    """Return how an error calls a JSON value: its type, and short texts and numbers themselves."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        noun = "the string" if isinstance(value, str) else "the number"
        # repr() of an integer with more than 4300 digits is an error, and slow.
        if isinstance(value, int) and value.bit_length() > 4 * _QUOTED_MAX:
            return f"an integer of {value.bit_length()} bits"
        text = repr(value)
        return f"{noun} {text if len(text) <= _QUOTED_MAX else f'{text[:_QUOTED_MAX]}…'}"
    return "an array" if isinstance(value, list) else "an object"


def too_deep() -> DataMisfit:
    return DataMisfit(f"the data have more than {DATA_DEPTH_MAX} values inside of each other")
