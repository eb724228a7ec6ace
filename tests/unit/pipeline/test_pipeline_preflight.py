"""Errors that are known before Spark starts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from small_pipeline import HEAD

from ottla.client.errors import ConnectionLost, PropertyRefused
from ottla.pipeline import preflight
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.preflight import (
    BrokersUnreachable,
    DirectoryNotWritable,
    check_cluster,
    check_directories,
    check_functions,
    topics_written,
)

Read = Callable[..., Declaration]


@pytest.fixture
def declaration(read: Read, tmp_path: Path) -> Declaration:
    text = HEAD + "  t: {zone: trusted, from: staged, to: {topic: out}, late_rows: {topic: late}, watermark: "
    text += "{column: ordered_at, delay: 1m}, deduplicate: order_id}\n"
    return replace(read(text), file=str(tmp_path / "p.yaml"), storage="lake", checkpoints="lake/_checkpoints")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_every_address_is_tried_before_the_brokers_are_unreachable(declaration: Declaration) -> None:
    first, second = closed_port(), closed_port()
    away = replace(declaration, brokers=f"127.0.0.1:{first},localhost:{second}")
    with pytest.raises(BrokersUnreachable) as raised:
        check_cluster(away)
    assert str(raised.value) == (
        f"brokers 127.0.0.1:{first}, localhost:{second} cannot be reached: connection refused; start one with "
        f"'ottla broker', or correct 'brokers' in {declaration.file}"
    )


class SilentCluster:
    """A client of a broker that is paused if its port is 1, and of one that knows all topics otherwise."""

    def __init__(self, declaration: Declaration, *, brokers: str, timeout_s: float) -> None:
        self._brokers = brokers

    def metadata(self, topics: list[str], deadline: float) -> None:
        if self._brokers.endswith(":1"):
            raise ConnectionLost(self._brokers, "none in time")

    def topics(self, names: Iterable[str]) -> dict[str, None]:
        return dict.fromkeys(names)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_paused_broker_does_not_stop_a_pipeline_whose_other_brokers_answer(
    declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "open_cluster", SilentCluster)
    check_cluster(replace(declaration, brokers="a:1,b:2"))
    with pytest.raises(ConnectionLost, match="accepts connections but gives no Kafka answer"):
        check_cluster(replace(declaration, brokers="a:1,b:1"))


def test_wrong_properties_keep_their_own_message(declaration: Declaration) -> None:
    with pytest.raises(PropertyRefused, match=r"security\.protocol"):
        check_cluster(replace(declaration, properties={"security.protocol": "magic"}))


def test_topics_written_are_those_of_sinks_and_side_outputs(declaration: Declaration) -> None:
    assert {topic: sink is not None for topic, sink in topics_written(declaration).items()} == {
        "out": True, "late": False,
    }  # fmt: skip


def test_directories_need_not_exist_but_must_be_writable(declaration: Declaration, tmp_path: Path) -> None:
    check_directories(declaration)
    assert not (tmp_path / "lake").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryNotWritable) as raised:
        check_directories(replace(declaration, storage="file/lake"))
    assert str(raised.value) == (
        f"storage {tmp_path}/file/lake cannot be used: {tmp_path}/file is not a directory; correct 'storage' in "
        f"{declaration.file}"
    )


@pytest.mark.parametrize(
    ("key", "uri", "why"),
    [
        ("storage", "hdfs://127.0.0.1:1/lake", "Generic error: Connection refused (os error 111)"),
        ("checkpoints", "wasbs://box@account/x", "pyarrow cannot open wasbs://box@account/x: "),
    ],
)
def test_address_that_cannot_be_opened_is_one_line_before_spark_starts(
    declaration: Declaration, tmp_path: Path, key: str, uri: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake", reason="deltalake is missing: pip install '.[spark]'")
    from ottla.spark.table_location import TableLocation

    def files(location: TableLocation) -> None:
        # As deltalake writes it.
        arrow = "\x1b[31m\u21b3\x1b[0m"
        raise OSError(f"Generic error\n  {arrow} IO error occurred\n   {arrow} Connection refused (os error 111)\n")

    monkeypatch.setattr(TableLocation, "files", files)
    given = {"storage": str(tmp_path / "lake"), "checkpoints": str(tmp_path / "c"), key: uri}
    with pytest.raises(DirectoryNotWritable) as refused:
        check_directories(replace(declaration, **given))
    assert str(refused.value).startswith(f"{key} {uri} cannot be used: {why}")
    assert "\n" not in str(refused.value) and "\x1b" not in str(refused.value)


def test_function_of_a_python_step_must_exist(read: Read, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")
    from ottla.pipeline.plan import FunctionRefused

    text = HEAD + "  t: {zone: trusted, from: staged, python: 'preflight_steps:clean', to: {table: t}}\n"
    declared = replace(read(text), file=str(tmp_path / "p.yaml"))
    with pytest.raises(FunctionRefused, match="No module named 'preflight_steps'; put the module beside"):
        check_functions(declared)
    (tmp_path / "preflight_steps.py").write_text("def clean(rows): return rows\n")
    check_functions(declared)
