"""The generated message classes: cheap to import, honest about equality, and in step with the generator."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.wire import APIS, ZERO_UUID, Message, request_class, response_class
from ottla.wire.messages.consumer_group_describe import Member
from ottla.wire.messages.fetch import FetchRequest, PartitionData
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

ROOT = Path(__file__).resolve().parents[3]
MESSAGES = ROOT / "src" / "ottla" / "wire" / "messages"


@pytest.mark.parametrize("module", ["kio", "ruff"])
def test_generator_needs_are_only_for_development(module: str) -> None:
    code = f"import sys, ottla.wire.messages.metadata; sys.exit({module!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_one_api_does_not_import_the_others() -> None:
    code = "import sys, ottla.wire.messages.metadata; print(*(m for m in sys.modules if '.messages.' in m))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == ["ottla.wire.messages.metadata"]


@pytest.mark.skipif(
    importlib.util.find_spec("kio") is None or importlib.util.find_spec("ruff") is None,
    reason="kio or ruff is not installed; `pip install -e '.[dev]'` brings both",
)
def test_generating_again_yields_the_same_files(tmp_path: Path) -> None:
    generator = ROOT / "tools" / "generate_messages.py"
    subprocess.run([sys.executable, generator, "--target", tmp_path], check=True, capture_output=True)
    generated = {path.name: path.read_bytes() for path in tmp_path.glob("*.py")}
    checked_in = {path.name: path.read_bytes() for path in MESSAGES.glob("*.py")}
    assert generated == checked_in


def test_table_agrees_with_the_classes() -> None:
    for key, api in APIS.items():
        for cls in (request_class(key), response_class(key)):
            assert (key, api.versions, api.flexible_from) == (cls.API_KEY, cls.VERSIONS, cls.FLEXIBLE_FROM)


def test_every_class_can_be_made_of_defaults() -> None:
    for key in APIS:
        for cls in (request_class(key), response_class(key)):
            assert cls() == cls()


def test_message_without_fields_does_not_change_other_classes() -> None:
    assert Message() == Message()
    assert MetadataRequestTopic(name="a").name == "a"
    with pytest.raises(TypeError, match="topic"):
        MetadataRequestTopic(topic="a")  # type: ignore[call-arg]


def test_defaults_are_those_of_kafka() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.session_epoch) == (-1, 0x7FFF_FFFF, -1)
    partition = PartitionData()
    assert (partition.records, partition.preferred_read_replica) == (None, -1)
    assert MetadataRequestTopic().topic_id == ZERO_UUID


def test_required_struct_is_not_shared_between_messages() -> None:
    assert Member().assignment == Member().assignment
    assert Member().assignment is not Member().assignment


def test_a_list_equals_a_tuple_of_equal_elements() -> None:
    topics = [MetadataRequestTopic(name="a")]
    assert MetadataRequest(topics=topics) == MetadataRequest(topics=tuple(topics))


def test_messages_with_one_different_field_differ() -> None:
    assert MetadataRequestTopic(name="a") != MetadataRequestTopic(name="b")
    assert MetadataRequest(topics=()) != MetadataRequest(topics=None)


def test_messages_of_different_classes_differ() -> None:
    assert MetadataRequest() != FetchRequest()


def test_messages_are_no_dictionary_keys() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(MetadataRequest())


def test_unknown_field_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        MetadataRequest().topic = "a"  # type: ignore[attr-defined]


def test_repr_shows_every_field() -> None:
    shown = repr(MetadataRequestTopic(topic_id=b"0123456789abcdef", name="a"))
    assert shown == "MetadataRequestTopic(topic_id=b'0123456789abcdef', name='a')"
