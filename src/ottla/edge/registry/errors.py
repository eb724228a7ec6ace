"""The errors of the registry, with the codes of Confluent's."""

from __future__ import annotations

from typing import Final

from ottla.edge.web.app import HttpError

INVALID_SCHEMA: Final = 42201
SCHEMA_TOO_LARGE: Final = 42209


def subject_not_found(subject: str) -> HttpError:
    return HttpError(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> HttpError:
    return HttpError(404, 40402, f"Version {version} not found.")


def schema_not_found(name: int | str | None = None) -> HttpError:
    return HttpError(404, 40403, "Schema not found" if name is None else f"Schema {name} not found")


def subject_soft_deleted(subject: str) -> HttpError:
    return HttpError(404, 40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete it permanently.")


def subject_not_soft_deleted(subject: str) -> HttpError:
    return HttpError(404, 40405, f"Subject '{subject}' must be soft deleted before it can be deleted permanently.")


def version_soft_deleted(subject: str, version: int) -> HttpError:
    text = f"Subject '{subject}' version {version} was soft deleted. Set permanent=true to delete it permanently."
    return HttpError(404, 40406, text)


def version_not_soft_deleted(subject: str, version: int) -> HttpError:
    text = f"Subject '{subject}' version {version} must be soft deleted before it can be deleted permanently."
    return HttpError(404, 40407, text)


def no_subject_config(subject: str) -> HttpError:
    return HttpError(404, 40408, f"Subject '{subject}' has no compatibility level of its own.")


def no_subject_mode(subject: str) -> HttpError:
    return HttpError(404, 40409, f"Subject '{subject}' has no mode of its own.")


def association_not_found(resource_id: str) -> HttpError:
    return HttpError(404, 40410, f"Association for '{resource_id}' not found.")


def exporter_not_found(name: str) -> HttpError:
    return HttpError(404, 40450, f"Exporter '{name}' not found.")


def invalid_exporter_name() -> HttpError:
    return HttpError(409, 40950, "An exporter needs a name of 1 to 255 printable characters without a slash.")


def invalid_exporter_config(message: str) -> HttpError:
    return HttpError(409, 40951, f"Missing or invalid exporter config: {message}.")


def invalid_exporter_subjects(message: str) -> HttpError:
    return HttpError(409, 40952, f"Invalid exporter subjects: {message}.")


def exporter_exists(name: str) -> HttpError:
    return HttpError(409, 40960, f"Exporter '{name}' already exists.")


def exporter_running(name: str) -> HttpError:
    return HttpError(409, 40961, f"Exporter '{name}' is already running.")


def exporter_starting(name: str) -> HttpError:
    return HttpError(409, 40962, f"Exporter '{name}' is already starting.")


def exporter_not_paused(name: str) -> HttpError:
    return HttpError(409, 40963, f"Exporter '{name}' is not paused; pause it first.")


def too_many_exporters(limit: int) -> HttpError:
    return HttpError(409, 40964, f"There are {limit} exporters already; delete one, or raise exporter.max.exporters.")


def incompatible(message: str) -> HttpError:
    return HttpError(409, 40901, message)


def resource_is_associated(association_type: str, resource: str) -> HttpError:
    return HttpError(409, 40903, f"Resource '{resource}' already has another association of type '{association_type}'.")


def subject_is_associated(subject: str) -> HttpError:
    return HttpError(409, 40904, f"Subject '{subject}' has an association; delete that first.")


def subject_is_strongly_associated(subject: str) -> HttpError:
    return HttpError(409, 40905, f"Subject '{subject}' has a strong association.")


def no_live_version(subject: str) -> HttpError:
    return HttpError(409, 40907, f"Subject '{subject}' needs a version that is not deleted for its association.")


def association_frozen(association_type: str, subject: str) -> HttpError:
    return HttpError(409, 40908, f"The association of type '{association_type}' of subject '{subject}' is frozen.")


def invalid_schema(message: str) -> HttpError:
    return HttpError(422, INVALID_SCHEMA, message)


def invalid_version(version: object) -> HttpError:
    # Tests of confluent-kafka look for "The specified version … is not a valid version id".
    text = f"The specified version '{version}' is not a valid version id: use a number from 1 to 2147483647, or latest."
    return HttpError(422, 42202, text)


def invalid_compatibility() -> HttpError:
    levels = "NONE, BACKWARD, BACKWARD_TRANSITIVE, FORWARD, FORWARD_TRANSITIVE, FULL, FULL_TRANSITIVE"
    return HttpError(422, 42203, f"Invalid compatibility level. Valid values are {levels}.")


def invalid_mode(message: str = "") -> HttpError:
    modes = "READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD"
    return HttpError(422, 42204, message or f"Invalid mode. Valid values are {modes}.")


def not_permitted(message: str) -> HttpError:
    return HttpError(422, 42205, message)


def referenced(subject: str, version: int, by: str) -> HttpError:
    return HttpError(422, 42206, f"Version {version} of subject '{subject}' is referenced by {by}; delete that first.")


def invalid_subject(subject: str) -> HttpError:
    return HttpError(422, 42208, f"'{subject}' cannot be the name of a subject.")


def schema_too_large(message: str) -> HttpError:
    return HttpError(422, SCHEMA_TOO_LARGE, message)


def invalid_rule_set(message: str) -> HttpError:
    return HttpError(422, 42210, message)


def context_not_empty(context: str) -> HttpError:
    return HttpError(422, 42211, f"The context '{context}' still has subjects; delete them permanently first.")


def invalid_association(member: str, reason: str) -> HttpError:
    return HttpError(422, 42212, f"'{member}' of the association is not valid: {reason}.")


def subject_referenced(subject: str) -> HttpError:
    return HttpError(422, 42206, f"Subject '{subject}' is referenced, so it cannot have a strong association.")


def store_failed(message: str) -> HttpError:
    return HttpError(500, 50001, message)


def timed_out(message: str) -> HttpError:
    return HttpError(500, 50002, message)


def forwarding_failed(message: str) -> HttpError:
    return HttpError(500, 50003, message)


def leader_unknown() -> HttpError:
    return HttpError(500, 50004, "The registry has no leader at the moment; try again.")
