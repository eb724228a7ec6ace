"""Registry clients of others against `ottla registry`: Confluent's for JavaScript and Java, and franz-go's.

Each program runs once, with an instance that is not the leader: it forwards all changes. The data that one client
encodes is decoded by confluent-kafka, and the other way round. The campaign `registry-clients` runs them in more ways,
such as with TLS and a password.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import registry_clients
import trustme
from registry_clients import Program
from registry_process import RegistryProcess

from ottla.security.password_hashes import SALT_BYTES, hash_password, user_line
from ottla.testing import BrokerProcess

pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

pytestmark = pytest.mark.foreign

AVRO = json.dumps({"type": "record", "name": "Order", "namespace": "py", "fields": [{"name": "id", "type": "int"}]})
JSON = json.dumps({"type": "object", "title": "Order", "properties": {"id": {"type": "integer"}}})


#: `make campaign NAME=registry-clients` runs all programs, in all ways to reach a registry
ALL = os.environ.get("OTTLA_REGISTRY_CLIENTS") == "all"
WAYS = ("follower", "leader", "group", "secure") if ALL else ("follower",)


@pytest.fixture(scope="module", params=WAYS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The members of a task that name a registry.

    follower: an instance that cannot be the leader, and forwards all changes. group: two instances, of which a client
    chooses one. secure: with TLS and basic authentication.
    """
    with BrokerProcess.start() as broker, ExitStack() as stack:
        if request.param == "secure":
            settings, members = secure(tmp_path_factory.mktemp("secure"))
            instance = stack.enter_context(RegistryProcess(broker.bootstrap, settings, scheme="https"))
            yield {"urls": [instance.url], **members}
            return
        leader = stack.enter_context(RegistryProcess(broker.bootstrap))
        if request.param == "leader":
            yield {"urls": [leader.url]}
            return
        follower = stack.enter_context(RegistryProcess(broker.bootstrap, {"leader.eligibility": "false"}))
        yield {"urls": [follower.url] if request.param == "follower" else [follower.url, leader.url]}


def secure(directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of a registry with TLS and basic authentication, and what a client needs for it."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    server = directory / "server.pem"
    server.touch(0o600)
    authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).private_key_and_cert_chain_pem.write_to_path(
        server
    )
    users = directory / "users"
    users.touch(0o600)
    users.write_text(user_line("alice", hash_password(b"s3cret", bytes(SALT_BYTES))) + "\n")
    settings = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(server),
        "authentication.method": "BASIC", "authentication.users.file": str(users),
    }  # fmt: skip
    return settings, {"user": "alice", "password": "s3cret", "ca": str(directory / "ca.pem")}


@pytest.fixture(scope="module")
def confluent(target: dict[str, Any]) -> Iterator[SchemaRegistryClient]:
    conf = {"url": target["urls"][0]}
    if "ca" in target:
        conf |= {"ssl.ca.location": target["ca"], "basic.auth.user.info": f"{target['user']}:{target['password']}"}
    with SchemaRegistryClient(conf) as client:
        yield client


@pytest.fixture(scope="module")
def encoded(confluent: SchemaRegistryClient) -> dict[str, bytes]:
    """The order 42 in each format, as confluent-kafka encodes it."""
    order = message_class("py")
    headers: list[tuple[str, bytes]] = []
    with_header = {"schema.id.serializer": header_schema_id_serializer}
    data = {
        "avro": AvroSerializer(confluent, AVRO)({"id": 42}, value_of("py-avro")),
        "json": JSONSerializer(JSON, confluent)({"id": 42}, value_of("py-json")),
        "protobuf": ProtobufSerializer(order, confluent, {"use.deprecated.format": False})(
            order(id=42), value_of("py-protobuf")
        ),
        "avro with a header": AvroSerializer(confluent, AVRO, conf=with_header)(
            {"id": 42}, SerializationContext("py-avro", MessageField.VALUE, headers)
        ),
    }
    return {**data, "header": dict(headers)["__value_schema_id"]}


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def message_class(package: str) -> Any:
    """Return the class of a message with the field `id`."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}_order.proto", package=package, syntax="proto3")
    file.message_type.add(name="Order").field.add(name="id", number=1, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Order"))


def run(make: Callable[[], Program | str], target: dict[str, Any], encoded: dict[str, bytes]) -> dict[str, Any]:
    program = make()
    if isinstance(program, str):
        pytest.skip(program)
    read = {name: base64.b64encode(data).decode() for name, data in encoded.items()}
    return program.run({**target, "prefix": f"of-{program.name}", "read": read})


def decode(client: SchemaRegistryClient, package: str, data: dict[str, str]) -> dict[str, int]:
    """Return the field `id` of what a program has encoded, as confluent-kafka decodes it."""
    order = message_class(package)
    conf = {"use.deprecated.format": False}
    readers: dict[str, Callable[[bytes], int]] = {
        "avro": lambda value: AvroDeserializer(client)(value, value_of("other"))["id"],
        "json": lambda value: JSONDeserializer(None, schema_registry_client=client)(value, value_of("other"))["id"],
        "protobuf": lambda value: ProtobufDeserializer(order, conf, client)(value, value_of("other")).id,
    }
    return {name: readers[name](base64.b64decode(text)) for name, text in data.items() if name in readers}


@pytest.mark.skipif(not ALL, reason="npm installs 171 MB: make campaign NAME=registry-clients")
def test_confluents_client_for_javascript(
    target: dict[str, Any], confluent: SchemaRegistryClient, encoded: dict[str, bytes]
) -> None:
    found = run(registry_clients.node, target, encoded)
    assert found["calls"] == {
        "register": [1, 36],
        "register again": True,
        "by subject and id": True,
        "by guid": True,
        "unknown id": 40403,
        "lookup": True,
        "lookup of an unknown schema": 40403,
        "second version": 2,
        "latest": 2,
        "metadata": {"properties": {"owner": "node"}, "tags": {"**": ["PII"]}},
        "rules": "message.id > 0",
        "unknown version": 40402,
        "with metadata": 2,
        "versions": [1, 2],
        "version of a schema": 1,
        "subjects": True,
        "incompatible": 40901,
        "not a schema": 42201,
        "check": False,
        "check a version": True,
        "references": 1,
        "delete what is referenced": 42206,
        "level of the subject before": 40408,
        "set level": "FULL",
        "level": "FULL",
        "set config": {"compatibility": "BACKWARD", "normalize": True},
        "config": {"compatibilityLevel": "BACKWARD", "normalize": True},
        "default level": "BACKWARD",
        "default config": {"compatibilityLevel": "BACKWARD"},
        "wrong level": 42203,
        "register in a context": 1,
        "by id in a context": '"bytes"',
        "associate": "of-node-shared",
        "associations": ["of-node-shared"],
        "serialize with the associated subject": 6,
        "associations after deletion": [],
        "delete permanently first": 40407,
        "delete a version": 1,
        "deleted version": 1,
        "delete a version permanently": 1,
        "delete the subject": [2],
        "delete the subject permanently": [2],
    }
    assert found["read"] == dict.fromkeys(("avro", "json", "protobuf", "avro with a header"), 42)
    assert found["evolved"] == {"id": 1, "currency": "EUR"}
    data = found["data"]
    assert decode(confluent, "node", data) == {"avro": 42, "json": 42, "protobuf": 42}
    # confluent-kafka does not read such short data with a header, so its parts are compared.
    header = base64.b64decode(data["header"])
    assert (header[0], base64.b64decode(data["avro with a header"])) == (1, base64.b64decode(data["avro"])[5:])
    assert json.loads(str(confluent.get_schema_by_guid(str(uuid.UUID(bytes=header[1:]))).schema_str))["name"] == "Order"


def test_confluents_client_for_java(
    target: dict[str, Any], confluent: SchemaRegistryClient, encoded: dict[str, bytes]
) -> None:
    found = run(registry_clients.java, target, encoded)
    assert found["calls"] == {
        "register again": True,
        "register with a full response": [2, True],
        "by id": True,
        "by subject and id": True,
        "metadata": {"owner": "java"},
        "rules": "message.id > 0",
        "unknown id": 40403,
        "latest": 2,
        "version": True,
        "unknown version": 40402,
        "with metadata": 2,
        "version of a schema": 1,
        "id of a schema": True,
        "id of an unknown schema": 40403,
        "versions": [1, 2],
        "subjects": ["of-java-value"],
        "subjects of the id": True,
        "versions of the id": True,
        "schemas": 1,
        "incompatible": 40901,
        "check": False,
        "reasons": True,
        "references": "of-java-value",
        "schema with references": "java.Order",
        "delete what is referenced": 42206,
        "global level": "BACKWARD",
        "level of the subject before": 40408,
        "set level": "FULL",
        "level": "FULL",
        "set config": "BACKWARD_TRANSITIVE",
        "config": "major",
        "config after deletion": 40408,
        "global mode": "READWRITE",
        "set mode": "READONLY",
        "mode": "READONLY",
        "register in a read-only subject": 42205,
        "mode after deletion": 40409,
        "register in a context": 1,
        "contexts": True,
        "subjects of the context": 1,
        "import mode": "IMPORT",
        "import": 4711,
        "imported": 4711,
        "delete permanently first": 40407,
        "delete a version": 1,
        "versions with deleted ones": [1, 2],
        "delete a version permanently": 1,
        "delete the subject": [2],
        "subjects with deleted ones": True,
        "delete the subject permanently": [2],
    }
    assert found["read"] == {"avro": 42, "avro with a newer schema": [42, "EUR"]}
    assert decode(confluent, "java", found["data"]) == {"avro": 42}
    latest = AvroDeserializer(confluent)(base64.b64decode(found["data"]["avro latest"]), value_of("other"))
    assert latest == {"id": 43, "currency": "CZK"}


def test_registry_client_of_franz_go(
    target: dict[str, Any], confluent: SchemaRegistryClient, encoded: dict[str, bytes]
) -> None:
    found = run(registry_clients.golang, target, {name: encoded[name] for name in ("avro", "json", "protobuf")})
    assert found["calls"] == {
        "types": ["AVRO", "JSON", "PROTOBUF"],
        "create": ["of-go-value", 1, "AVRO", True],
        "metadata": {"owner": "go"},
        "rules": "message.id > 0",
        "register again": True,
        "by id": True,
        "text by id": True,
        "by guid": True,
        "ids by guid": True,
        "lookup": True,
        "lookup of an unknown schema": 40403,
        "second version": 2,
        "versions": [1, 2],
        "latest": 2,
        "text by version": True,
        "unknown version": 40402,
        "schemas of the subject": 2,
        "all schemas": 1,
        "subjects of the id": True,
        "versions of the id": True,
        "subjects": ["of-go-value"],
        "incompatible": 40901,
        "not a schema": 42201,
        "references": [{"name": "go.Order", "subject": "of-go-value", "version": 2}],
        "referenced by": 1,
        "delete what is referenced": 42206,
        "level of the subject before": 40408,
        "level with the default": "BACKWARD",
        "set level": "FULL_TRANSITIVE",
        "level": ["FULL_TRANSITIVE", True, "major"],
        "reset level": None,
        "check": [False, True],
        "set mode": "READONLY",
        "register in a read-only subject": 42205,
        "mode": "READONLY",
        "reset mode": "READONLY",
        "mode of the subject without its own": 40409,
        "global mode": "READWRITE",
        "create in a context": [True, 1],
        "contexts": True,
        "delete a context with subjects": 42211,
        "delete in a context": None,
        "delete in a context permanently": None,
        "delete a context": None,
        "import mode": "IMPORT",
        "import": 4711,
        "imported": [4711, 5],
        "register to delete": None,
        "delete permanently first": 40407,
        "delete a version": None,
        "delete a version again": 40406,
        "versions with deleted ones": [1, 2],
        "delete a version permanently": None,
        "delete the subject": [2],
        "deleted subjects": 1,
        "delete the subject permanently": [2],
    }
    assert found["read"] == {"avro": 42, "json": 42, "protobuf": 42}
    assert decode(confluent, "go", found["data"]) == {"avro": 42, "json": 42, "protobuf": 42}
