"""Users of the REST proxy with bearer tokens, who act towards the cluster with their own token (OAUTHBEARER)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from registry_stand_in import RegistryStandIn, registry_stand_in
from rest_process import RestClient, error_of, rest_process

from secure_broker import AUDIENCE, ISSUER, SecureBroker, allow_only

BINARY = {"content-type": "application/vnd.kafka.json.v2+json"}
CONSUMER = {"content-type": "application/vnd.kafka.v2+json", "accept": "application/vnd.kafka.json.v2+json"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker with OAUTHBEARER, and two topics that one user each may use."""
    with SecureBroker(tmp_path_factory.mktemp("broker")) as running:
        for name in ("ann", "bob"):
            allow_only(running, f"topic-of-{name}", f"User:{name}")
        yield running


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryStandIn]:
    with registry_stand_in() as (running, _):
        yield running


@pytest.fixture(scope="module")
def proxy(broker: SecureBroker, registry: RegistryStandIn) -> Iterator[RestClient]:
    """A proxy without credentials of its own."""
    settings = {
        "client.security.protocol": "SASL_PLAINTEXT", "authentication.method": "BEARER",
        "authentication.pass.through": "true", "sasl.oauthbearer.jwks.endpoint.url": f"file://{broker.keys}",
        "sasl.oauthbearer.expected.issuer": ISSUER, "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": "0", "consumer.request.timeout.ms": "20000",
    }  # fmt: skip
    options = [f"-X{name}={value}" for name, value in settings.items()]
    with rest_process(broker.addresses["SASL_PLAINTEXT"], "--registry", registry.url, *options) as client:
        client.http.headers["authorization"] = f"Bearer {broker.token(sub='ann')}"
        client.find_cluster()
        yield client


def as_user(broker: SecureBroker, name: str, lifetime_s: int = 3600, **claims: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {broker.token(sub=name, lifetime_s=lifetime_s, **claims)}"}


def produce_v2(proxy: RestClient, topic: str, headers: dict[str, str]) -> httpx.Response:
    body = {"records": [{"value": {"n": 1}}]}
    return proxy.post(f"/topics/{topic}", body, headers={**headers, **BINARY})


def test_acls_of_the_user_decide(proxy: RestClient, broker: SecureBroker) -> None:
    """Producers of version 2 and 3, admin requests and streams of records log in with the token of the request."""
    for name, other in (("ann", "bob"), ("bob", "ann")):
        user = as_user(broker, name)
        assert produce_v2(proxy, f"topic-of-{name}", user).status_code == 200
        refused = produce_v2(proxy, f"topic-of-{other}", user)
        assert (refused.status_code, refused.headers["content-type"]) == (403, "application/vnd.kafka.v2+json")
        (result,) = refused.json()["offsets"]
        assert (result["error_code"], result["offset"], bool(result["error"])) == (40301, None, True)
        line = proxy.post(f"topics/topic-of-{name}/records", {"value": {"type": "JSON", "data": 1}}, headers=user)
        assert line.json()["error_code"] == 200
        assert proxy.get(f"topics/topic-of-{name}", headers=user).status_code == 200
        assert error_of(proxy.get(f"topics/topic-of-{other}", headers=user)) == (403, 40301)
        found = proxy.get(f"topics/topic-of-{name}/records?offset=earliest&limit=1", headers=user)
        assert found.status_code == 200
        assert json.loads(found.text.splitlines()[0])["offset"] == 0


def test_schema_is_registered_as_the_user_and_only_for_a_topic_that_the_user_may_write_to(
    proxy: RestClient, broker: SecureBroker, registry: RegistryStandIn
) -> None:
    """A user without rights must not create the first version of a subject, which decides about the owner's."""
    ann, bob = as_user(broker, "ann"), as_user(broker, "bob")
    data = {"type": "AVRO", "schema": '"string"', "data": "x"}
    v2 = {"value_schema": '"string"', "records": [{"value": "x"}]}
    avro = {"content-type": "application/vnd.kafka.avro.v2+json"}
    registry.logins.clear()
    assert proxy.post("topics/topic-of-ann/records", {"value": data}, headers=bob).json()["error_code"] == 40301
    refused = proxy.post("/topics/topic-of-ann", v2, headers={**bob, **avro})
    assert (refused.status_code, refused.json()["offsets"][0]["error_code"]) == (403, 40301)
    assert (registry.subjects, registry.logins) == ({}, [])
    assert proxy.post("topics/topic-of-ann/records", {"value": data}, headers=ann).json()["error_code"] == 200
    assert proxy.post("/topics/topic-of-bob", v2, headers={**bob, **avro}).status_code == 200
    assert set(registry.subjects) == {"topic-of-ann-value", "topic-of-bob-value"}
    assert set(registry.logins) == {ann["authorization"], bob["authorization"]}


def test_request_without_a_valid_token_is_refused(proxy: RestClient, broker: SecureBroker) -> None:
    for headers in (
        {"authorization": ""}, as_user(broker, "ann", lifetime_s=-1), as_user(broker, "ann", aud="other"),
        {"authorization": "Bearer x.y.z"}, {"authorization": "Basic YW5uOmFubg=="},
    ):  # fmt: skip
        assert error_of(produce_v2(proxy, "topic-of-ann", headers)) == (401, 40101)


def make_consumer(proxy: RestClient, group: str, user: dict[str, str]) -> str:
    made = proxy.post(f"/consumers/{group}", {"format": "json", "auto.offset.reset": "earliest"},
                      headers={**user, **CONSUMER, "accept": "application/vnd.kafka.v2+json"})  # fmt: skip
    assert made.status_code == 200, made.text
    return f"/consumers/{group}/instances/{made.json()['instance_id']}"


def test_consumer_instance_belongs_to_its_user_and_takes_over_a_newer_token(
    proxy: RestClient, broker: SecureBroker
) -> None:
    first, newer = as_user(broker, "ann", 600), as_user(broker, "ann", 1200)
    path = make_consumer(proxy, "ann-group", first)
    body = {"topics": ["topic-of-ann"]}
    assert proxy.post(f"{path}/subscription", body, headers={**first, **CONSUMER}).status_code == 204
    produce_v2(proxy, "topic-of-ann", first)
    assert proxy.get(f"{path}/records", headers={**newer, **CONSUMER}).json() != []
    assert error_of(proxy.get(f"{path}/records", headers={**as_user(broker, "bob"), **CONSUMER})) == (404, 40403)
    assert proxy.delete(path, headers={**newer, **CONSUMER}).status_code == 204


def test_consumer_that_may_not_read_gets_an_error(proxy: RestClient, broker: SecureBroker) -> None:
    user = as_user(broker, "ann")
    path = make_consumer(proxy, "ann-curious", user)
    body = {"topics": ["topic-of-bob"]}
    assert proxy.post(f"{path}/subscription", body, headers={**user, **CONSUMER}).status_code == 204
    refused = proxy.get(f"{path}/records", headers={**user, **CONSUMER})
    assert error_of(refused) == (403, 40301)
    assert refused.json()["message"].startswith("Not authorized to access topics")
    assert refused.headers["content-type"] == CONSUMER["accept"]


def test_end_of_a_token_ends_a_stream_that_uses_it(proxy: RestClient, broker: SecureBroker) -> None:
    url = f"{proxy.cluster}/topics/topic-of-ann/records?offset=latest&follow=true"
    # On a busy machine a short token may expire before the stream begins.
    for lifetime_s in (2, 8, 30, 90):
        user = as_user(broker, "ann", lifetime_s)
        expires = time.time() + lifetime_s - 1
        with proxy.http.stream("GET", url, headers=user) as answer:
            lines = list(answer.iter_lines())
        if answer.status_code == 200:
            break
    assert json.loads(lines[-1])["error_code"] == 40101
    assert time.time() >= expires
