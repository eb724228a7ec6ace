"""Definitions of google/type and of Confluent's own files, without comments and without options for code generators.

google/protobuf is part of the Protobuf library; these files are not, so that their definitions are needed here.
"""

from __future__ import annotations

from typing import Final


def _message(name: str, fields: str) -> str:
    """Return a message from its fields in the order of their numbers: `string a, int32 b`."""
    lines = (f"{field.strip()} = {number};" for number, field in enumerate(fields.split(","), 1))
    return f"message {name} {{ {' '.join(lines)} }}"


def _enum(name: str, values: str) -> str:
    return f"enum {name} {{ {' '.join(f'{value} = {number};' for number, value in enumerate(values.split()))} }}"


def _google(body: str, *imports: str) -> str:
    lines = "".join(f'import "google/protobuf/{name}.proto"; ' for name in imports)
    return f'syntax = "proto3"; package google.type; {lines}{body}'


KNOWN_TEXTS: Final = {
    "google/type/calendar_period.proto": _google(
        _enum("CalendarPeriod", "CALENDAR_PERIOD_UNSPECIFIED DAY WEEK FORTNIGHT MONTH QUARTER HALF YEAR")
    ),
    "google/type/color.proto": _google(
        _message("Color", "float red, float green, float blue, google.protobuf.FloatValue alpha"), "wrappers"
    ),
    "google/type/date.proto": _google(_message("Date", "int32 year, int32 month, int32 day")),
    "google/type/datetime.proto": _google(
        "message DateTime { int32 year = 1; int32 month = 2; int32 day = 3; int32 hours = 4; int32 minutes = 5; "
        "int32 seconds = 6; int32 nanos = 7; "
        "oneof time_offset { google.protobuf.Duration utc_offset = 8; TimeZone time_zone = 9; } } "
        + _message("TimeZone", "string id, string version"),
        "duration",
    ),
    "google/type/dayofweek.proto": _google(
        _enum("DayOfWeek", "DAY_OF_WEEK_UNSPECIFIED MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY")
    ),
    "google/type/decimal.proto": _google(_message("Decimal", "string value")),
    "google/type/expr.proto": _google(
        _message("Expr", "string expression, string title, string description, string location")
    ),
    "google/type/fraction.proto": _google(_message("Fraction", "int64 numerator, int64 denominator")),
    "google/type/interval.proto": _google(
        _message("Interval", "google.protobuf.Timestamp start_time, google.protobuf.Timestamp end_time"), "timestamp"
    ),
    "google/type/latlng.proto": _google(_message("LatLng", "double latitude, double longitude")),
    "google/type/money.proto": _google(_message("Money", "string currency_code, int64 units, int32 nanos")),
    "google/type/month.proto": _google(
        _enum(
            "Month",
            "MONTH_UNSPECIFIED JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER",
        )
    ),
    "google/type/phone_number.proto": _google(
        "message PhoneNumber { message ShortCode { string region_code = 1; string number = 2; } "
        "oneof kind { string e164_number = 1; ShortCode short_code = 2; } string extension = 3; }"
    ),
    "google/type/postal_address.proto": _google(
        _message(
            "PostalAddress",
            "int32 revision, string region_code, string language_code, string postal_code, string sorting_code, "
            "string administrative_area, string locality, string sublocality, repeated string address_lines, "
            "repeated string recipients, string organization",
        )
    ),
    "google/type/quaternion.proto": _google(_message("Quaternion", "double x, double y, double z, double w")),
    "google/type/timeofday.proto": _google(
        _message("TimeOfDay", "int32 hours, int32 minutes, int32 seconds, int32 nanos")
    ),
    "confluent/meta.proto": (
        'syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto"; '
        + _message("Meta", "string doc, map<string; string> params, repeated string tags, repeated Rule rules").replace(
            "string; string", "string, string"
        )
        + _message("Rule", "string name, string doc, string expr, string sql")
        + "".join(
            f"extend google.protobuf.{options} {{ Meta {name} = 1088; }} "
            for options, name in (
                ("FileOptions", "file_meta"),
                ("MessageOptions", "message_meta"),
                ("FieldOptions", "field_meta"),
                ("EnumOptions", "enum_meta"),
                ("EnumValueOptions", "enum_value_meta"),
            )
        )
    ),
    "confluent/type/decimal.proto": (
        'syntax = "proto3"; package confluent.type; '
        + _message("Decimal", "bytes value, uint32 precision, int32 scale")
    ),
    "confluent/type/variant.proto": (
        'syntax = "proto3"; package confluent.type; ' + _message("Variant", "bytes metadata, bytes value")
    ),
}
