"""The errors of the registry, with the codes of Confluent's."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.edge.web.app import HttpError


class ErrorKind(NamedTuple):
    """A kind of error. Call it with the values for the places `{}` of its text."""

    status: int
    code: int
    text: str

    def __call__(self, *values: object) -> HttpError:
        return HttpError(self.status, self.code, self.text.format(*values))


_SOFT_DELETED: Final = "was soft deleted. Set permanent=true to delete it permanently."
_NOT_SOFT_DELETED: Final = "must be soft deleted before it can be deleted permanently."

path_not_found: Final = ErrorKind(404, 404, "HTTP 404 Not Found")
subject_not_found: Final = ErrorKind(404, 40401, "Subject '{}' not found.")
version_not_found: Final = ErrorKind(404, 40402, "Version {} not found.")
schema_not_found: Final = ErrorKind(404, 40403, "Schema {} not found")
no_such_schema: Final = ErrorKind(404, 40403, "Schema not found")
subject_soft_deleted: Final = ErrorKind(404, 40404, f"Subject '{{}}' {_SOFT_DELETED}")
subject_not_soft_deleted: Final = ErrorKind(404, 40405, f"Subject '{{}}' {_NOT_SOFT_DELETED}")
version_soft_deleted: Final = ErrorKind(404, 40406, f"Subject '{{}}' version {{}} {_SOFT_DELETED}")
version_not_soft_deleted: Final = ErrorKind(404, 40407, f"Subject '{{}}' version {{}} {_NOT_SOFT_DELETED}")
no_subject_config: Final = ErrorKind(404, 40408, "Subject '{}' has no compatibility level of its own.")
no_subject_mode: Final = ErrorKind(404, 40409, "Subject '{}' has no mode of its own.")
association_not_found: Final = ErrorKind(404, 40410, "Association for '{}' not found.")
exporter_not_found: Final = ErrorKind(404, 40450, "Exporter '{}' not found.")

incompatible: Final = ErrorKind(409, 40901, "{}")
resource_is_associated: Final = ErrorKind(409, 40903, "Resource '{1}' already has another association of type '{0}'.")
subject_is_associated: Final = ErrorKind(409, 40904, "Subject '{}' has an association; delete that first.")
subject_is_strongly_associated: Final = ErrorKind(409, 40905, "Subject '{}' has a strong association.")
no_live_version: Final = ErrorKind(409, 40907, "Subject '{}' needs a version that is not deleted for its association.")
association_frozen: Final = ErrorKind(409, 40908, "The association of type '{}' of subject '{}' is frozen.")
invalid_exporter_name: Final = ErrorKind(
    409, 40950, "An exporter needs a name of 1 to 255 printable characters without a slash."
)
invalid_exporter_config: Final = ErrorKind(409, 40951, "Missing or invalid exporter config: {}.")
invalid_exporter_subjects: Final = ErrorKind(409, 40952, "Invalid exporter subjects: {}.")
exporter_exists: Final = ErrorKind(409, 40960, "Exporter '{}' already exists.")
exporter_running: Final = ErrorKind(409, 40961, "Exporter '{}' is already running.")
exporter_starting: Final = ErrorKind(409, 40962, "Exporter '{}' is already starting.")
exporter_not_paused: Final = ErrorKind(409, 40963, "Exporter '{}' is not paused; pause it first.")
too_many_exporters: Final = ErrorKind(
    409, 40964, "There are {} exporters already; delete one, or raise exporter.max.exporters."
)

invalid_schema: Final = ErrorKind(422, 42201, "{}")
#: tests of confluent-kafka look for "The specified version … is not a valid version id"
invalid_version: Final = ErrorKind(
    422, 42202, "The specified version '{}' is not a valid version id: use a number from 1 to 2147483647, or latest."
)
invalid_compatibility: Final = ErrorKind(
    422, 42203, "Invalid compatibility level. Valid values are NONE, BACKWARD, BACKWARD_TRANSITIVE, FORWARD, "
    "FORWARD_TRANSITIVE, FULL, FULL_TRANSITIVE.",
)  # fmt: skip
invalid_mode: Final = ErrorKind(
    422, 42204, "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD."
)
forward_is_global: Final = ErrorKind(422, 42204, "FORWARD can only be the mode of all contexts, ':.__GLOBAL:'.")
not_permitted: Final = ErrorKind(422, 42205, "{}")
referenced: Final = ErrorKind(422, 42206, "Version {1} of subject '{0}' is referenced by {2}; delete that first.")
subject_referenced: Final = ErrorKind(422, 42206, "Subject '{}' is referenced, so it cannot have a strong association.")
invalid_subject: Final = ErrorKind(422, 42208, "'{}' cannot be the name of a subject.")
schema_too_large: Final = ErrorKind(422, 42209, "{}")
invalid_rule_set: Final = ErrorKind(422, 42210, "{}")
context_not_empty: Final = ErrorKind(422, 42211, "The context '{}' still has subjects; delete them permanently first.")
invalid_association: Final = ErrorKind(422, 42212, "'{}' of the association is not valid: {}.")

store_failed: Final = ErrorKind(500, 50001, "{}")
timed_out: Final = ErrorKind(500, 50002, "{}")
forwarding_failed: Final = ErrorKind(500, 50003, "{}")
leader_unknown: Final = ErrorKind(500, 50004, "The registry has no leader at the moment; try again.")
