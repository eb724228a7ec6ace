"""What commands do when the address of the cluster belongs to a server whose replies are malformed or make no sense."""

from __future__ import annotations

import random
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import Result

from ottla.client.protocol.frames import SIZE
from ottla.wire import APIS, Message, encode, response_header_version
from ottla.wire.frame import REQUEST_START, frame_reply
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.wire.messages.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from ottla.wire.messages.list_groups import ListGroupsResponse
from ottla.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic

Run = Callable[..., Result]
#: returns the bytes that the server sends instead of a valid reply, which has its size
Spoil = Callable[[bytes], bytes]

_COMMANDS = {
    "topic list": ["ApiVersions", "Metadata"],
    "group list": ["ApiVersions", "Metadata", "ListGroups"],
    "config describe --broker-defaults": ["ApiVersions", "DescribeConfigs"],
}


def with_size(payload: bytes) -> bytes:
    return SIZE.pack(len(payload)) + payload


def with_random_body(frame: bytes) -> bytes:
    return with_size(frame[4:8] + random.Random(1).randbytes(len(frame)))


_MALFORMED: dict[str, Spoil] = {
    "no bytes": lambda frame: b"",
    "half of a size": lambda frame: frame[:2],
    "a size alone": lambda frame: frame[:4],
    "a page": lambda frame: b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "a size of 0": lambda frame: with_size(b""),
    "a size below that of a correlation id": lambda frame: with_size(frame[4:7]),
    "a negative size": lambda frame: SIZE.pack(-1) + frame[4:],
    "a size of 2 GB": lambda frame: SIZE.pack(0x7FFFFFFF) + frame[4:],
    "another correlation id": lambda frame: frame[:4] + SIZE.pack(SIZE.unpack_from(frame, 4)[0] + 1) + frame[8:],
    "no body": lambda frame: with_size(frame[4:8]),
    "a body that ends too early": lambda frame: with_size(frame[4:-1]),
    "a body that ends too late": lambda frame: with_size(frame[4:] + b"\0"),
    "fewer bytes than its size": lambda frame: frame[:-1],
    "random bytes": with_random_body,
    "bytes of ones": lambda frame: with_size(frame[4:8] + b"\xff" * len(frame)),
}


class FakeBroker(socketserver.ThreadingTCPServer):
    """A broker with one topic and no groups, which sends what ``spoils`` returns for a reply, then closes."""

    daemon_threads = True

    def __init__(self, spoils: Mapping[str, Spoil], replies: Mapping[str, Message]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port: int = self.server_address[1]
        self.spoils = spoils
        apis = APIS.items()
        versions = [ApiVersion(api_key=key, min_version=a.versions[0], max_version=a.versions[1]) for key, a in apis]
        self.replies: dict[str, Message] = {
            "ApiVersions": ApiVersionsResponse(api_keys=versions),
            "Metadata": metadata(self.port),
            "ListGroups": ListGroupsResponse(groups=[]),
            "DescribeConfigs": describe_configs(DescribeConfigsResult(resource_type=4, resource_name="", configs=[])),
            **replies,
        }


class _Connection(socketserver.StreamRequestHandler):
    server: FakeBroker

    def handle(self) -> None:
        while len(size := self.rfile.read(SIZE.size)) == SIZE.size:
            request = self.rfile.read(SIZE.unpack(size)[0])
            api_key, version, correlation_id = REQUEST_START.unpack_from(request)
            name = APIS[api_key].name
            body = encode(self.server.replies[name], version)
            reply = frame_reply(correlation_id, body, response_header_version(api_key, version))
            spoil = self.server.spoils.get(name)
            self.wfile.write(reply if spoil is None else spoil(reply))
            if spoil is not None:
                return


def metadata(port: int, host: str = "127.0.0.1", topic: str | None = "t") -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=1, host=host, port=port)]
    return MetadataResponse(brokers=brokers, controller_id=1, topics=[MetadataResponseTopic(name=topic, partitions=[])])


def describe_configs(*rows: DescribeConfigsResult) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=list(rows))


@contextmanager
def fake_broker(spoils: Mapping[str, Spoil], replies: Mapping[str, Message]) -> Iterator[FakeBroker]:
    with FakeBroker(spoils, replies) as broker:
        thread = threading.Thread(target=broker.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield broker
        finally:
            broker.shutdown()
            thread.join()


@pytest.fixture
def run(ottla: Run) -> Callable[..., Result]:
    """Run a command against a broker with these replies. Check that it ends with one line and without a traceback."""

    def run_command(command: str, spoils: Mapping[str, Spoil] | None = None, **replies: Message) -> Result:
        with fake_broker(spoils or {}, replies) as broker:
            result = ottla(*command.split(), "-b", f"127.0.0.1:{broker.port}")
        assert isinstance(result.exception, SystemExit | None), result.exception
        return result

    return run_command


@pytest.mark.parametrize("command", _COMMANDS)
def test_valid_replies_are_understood(run: Any, command: str) -> None:
    result = run(command)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("kind", _MALFORMED)
@pytest.mark.parametrize(("command", "api"), [(command, api) for command, apis in _COMMANDS.items() for api in apis])
def test_malformed_reply_is_one_line_and_exit_code_4(run: Any, command: str, api: str, kind: str) -> None:
    result = run(command, {api: _MALFORMED[kind]})
    assert result.exit_code == 4, result.output
    (line,) = result.stderr.splitlines()
    assert "accepts connections but gives no Kafka answer" in line
    assert "\0" not in line


@pytest.mark.parametrize("seed", range(30))
def test_changed_bytes_of_a_reply_never_end_a_command_with_a_traceback(run: Any, seed: int) -> None:
    source = random.Random(seed)
    command = source.choice(list(_COMMANDS))

    def change(frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(source.choice((1, 1, 3))):
            changed[source.randrange(8, len(changed))] = source.randrange(256)
        return bytes(changed)

    result = run(command, {source.choice(_COMMANDS[command][1:]): change})
    assert len(result.stderr.splitlines()) <= 1
    assert result.exit_code in (0, 1, 3, 4)


@pytest.mark.parametrize("port", [-1, 0, 65_536, 0x7FFFFFFF])
def test_broker_with_an_impossible_port_is_unreachable(run: Any, port: int) -> None:
    result = run("group list", Metadata=metadata(port))
    assert result.exit_code == 4, result.output
    (line,) = result.stderr.splitlines()
    assert f"127.0.0.1:{port} cannot be reached" in line


@pytest.mark.parametrize("host", ["", "a\0b", "a" * 300, "a..b", "\ud7ff"])
def test_broker_with_an_impossible_host_is_unreachable(run: Any, host: str) -> None:
    result = run("group list", Metadata=metadata(9092, host))
    assert result.exit_code == 4, result.output
    (line,) = result.stderr.splitlines()
    assert "cannot be reached" in line


def test_settings_of_no_resource_are_not_an_answer(run: Any) -> None:
    rows = [DescribeConfigsResult(resource_type=4, resource_name="", configs=[])] * 2
    for reply in (describe_configs(), describe_configs(*rows)):
        result = run("config describe --broker-defaults", DescribeConfigs=reply)
        assert result.exit_code == 4, result.output
        (line,) = result.stderr.splitlines()
        assert "gives no Kafka answer" in line


def test_topic_without_a_name_is_listed_without_a_name(run: Any) -> None:
    result = run("topic list -r ^$", Metadata=metadata(9092, topic=None))
    assert (result.exit_code, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize("address", ["a..b:9092", "127.0.0.1:99999"])
def test_address_that_cannot_exist_is_unreachable(ottla: Run, address: str) -> None:
    result = ottla("topic", "list", "-b", address)
    assert result.exit_code == 4, result.output
    (line,) = result.stderr.splitlines()
    assert f"no broker reachable at {address}" in line
