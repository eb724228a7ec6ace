"""The settings of topics with `schema.validation`: which are valid, and the names of dead-letter topics. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.metadata.topic_plans import check_topic_name
from ottla.broker.metadata.view import INTERNAL_TOPICS
from ottla.model.errors import InvalidConfig, KafkaError
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.settings_registry import DEAD_LETTER, NO_VALIDATION


def dead_letter_topic(topic: str, settings: TopicSettings) -> str:
    """Return the dead-letter topic of a topic."""
    return settings.schema_validation_dlq_topic or f"{topic}-dlq"


def new_dead_letter_topic(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return the dead-letter topic that a change of a topic's own settings chooses; None if it chooses none.

    The broker writes to it on behalf of producers, so that a client which chooses it must be allowed to write to it.
    """
    names = (TopicSettings.schema_validation.name, TopicSettings.schema_validation_dlq_topic.name)
    old, new = ([settings.get(name, "").strip() for name in names] for settings in (before, after))
    return new[1] or f"{topic}-dlq" if new[0] == DEAD_LETTER and new != old else None


def check_validation(topic: str, settings: TopicSettings, broker: BrokerSettings) -> None:
    """Raise InvalidConfig if these settings of a topic cannot work with those of the broker."""
    if settings.schema_action == NO_VALIDATION:
        return
    if topic in INTERNAL_TOPICS:
        raise InvalidConfig("schema.validation is not for internal topics")
    if not broker.schema_registry_url:
        raise InvalidConfig(
            "schema.validation needs a schema registry; set schema.registry.url of the brokers first, such as "
            "http://127.0.0.1:8081"
        )
    if settings.schema_action == DEAD_LETTER:
        dead = dead_letter_topic(topic, settings)
        try:
            check_topic_name(dead)
        except KafkaError as error:
            raise InvalidConfig(f"schema.validation.dlq.topic: {error}") from None
        if dead == topic or dead in INTERNAL_TOPICS:
            raise InvalidConfig(f"schema.validation.dlq.topic must be another topic than {dead}")
