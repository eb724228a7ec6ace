"""Topic subscriptions by regular expression, resolved by the coordinator.

A client sends the expression, so matching must take time linear in the length of a topic name. RE2 guarantees this:
Ottla uses Google's library, Kafka uses RE2/J. The library is imported when the first expression arrives, because most
brokers never receive one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ottla.model.errors import ErrorCode, Refused

#: memory limit of a compiled expression; a larger expression is rejected as invalid
_COMPILED_BYTES_MAX: Final = 1 << 20
#: characters; much longer than a topic name, which has at most 249
_EXPRESSION_LENGTH_MAX: Final = 4096


def matching_topics(expression: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the whole expression matches, sorted.

    :raises Refused: INVALID_REGULAR_EXPRESSION.
    """
    match = _compile(expression).fullmatch
    return tuple(sorted(name for name in names if match(name) is not None))


def _compile(expression: str) -> Any:
    import re2

    if len(expression) > _EXPRESSION_LENGTH_MAX:
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression has more than {_EXPRESSION_LENGTH_MAX} characters; use a shorter one.",
        )
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES_MAX
    # The error goes into the response to the client; RE2 would also print it to the broker's standard error.
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{expression!r} is not a regular expression of RE2: {reason}",
        ) from None
