"""Work on schemas: on the event loop if it is short, in a thread if it is long, with a limit for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from ottla.edge.registry.election import Instance
from ottla.edge.registry.main import _describe_error
from ottla.edge.registry.parsing import _KEPT_CHARS, Parser
from ottla.edge.registry.records import SchemaVersion
from ottla.edge.registry.service import _LOOP_STEPS, _REQUEST_STEPS, Registry
from ottla.edge.registry.state import State
from ottla.edge.registry.store import StoreSettings
from ottla.schemas.schema import Budget, InvalidSchema, SchemaTooComplex


def with_registry(test: Callable[[Registry], Awaitable[None]]) -> None:
    async def run() -> None:
        own = Instance("http", "127.0.0.1", 8081, True)
        await test(Registry(StoreSettings("127.0.0.1:9", {}), "group", own, State()))

    asyncio.run(run())


def test_short_work_runs_on_the_event_loop() -> None:
    async def test(registry: Registry) -> None:
        assert await registry.compute(threading.current_thread, 100) is threading.main_thread()

    with_registry(test)


@pytest.mark.parametrize(("steps", "chars"), [(_LOOP_STEPS + 1, 100), (1, 1 << 20)], ids=["steps", "chars"])
def test_event_loop_goes_on_during_long_work(steps: int, chars: int) -> None:
    """The work waits for the event loop, which would never answer if it ran the work itself."""

    async def test(registry: Registry) -> None:
        loop_has_run = threading.Event()

        def work() -> bool:
            Budget().spend(steps)
            return loop_has_run.wait(60)

        working = asyncio.create_task(registry.compute(work, chars))
        await asyncio.sleep(0)
        loop_has_run.set()
        assert await working

    with_registry(test)


def test_all_parts_of_a_request_share_a_limit() -> None:
    async def test(registry: Registry) -> None:
        def work() -> None:
            for _ in range(5):
                Budget().spend(_REQUEST_STEPS // 4)

        with pytest.raises(SchemaTooComplex):
            await registry.compute(work, 100)

    with_registry(test)


def test_schema_that_is_too_complex_to_compare_is_an_error_of_the_client() -> None:
    codes = [getattr(_describe_error(error), "error_code", None)
             for error in (SchemaTooComplex("a"), InvalidSchema("a"), ValueError("a"))]  # fmt: skip
    assert codes == [42209, 42201, None]


def test_parsed_schemas_are_kept_up_to_a_number_of_characters() -> None:
    parser = Parser(State())

    def version(number: int) -> SchemaVersion:
        return SchemaVersion(f"s{number}", 1, number, f'{{"title":"{number}{"x" * 1_000_000}"}}', "JSON")

    first = parser.parse_version(version(0))
    assert parser.parse_version(version(0)) is first
    for number in range(1, _KEPT_CHARS // 1_000_000 + 1):
        parser.parse_version(version(number))
    assert parser.parse_version(version(0)) is not first


def test_version_that_was_parsed_while_a_version_was_deleted_is_not_kept() -> None:
    """It may contain the deleted one."""
    parser = Parser(State())
    row = SchemaVersion("s", 1, 1, '"int"')
    parse = parser.parse

    def delete_meanwhile(*args: object, **more: object) -> object:
        parser.forget()
        return parse(*args, **more)  # type: ignore[arg-type]

    parser.parse = delete_meanwhile  # type: ignore[method-assign,assignment]
    assert parser.parse_version(row) is not parser.parse_version(row)
