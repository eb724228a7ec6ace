"""Protobuf: the grammar, the canonical text, and errors with line and column."""

from __future__ import annotations

import pytest

from ottla.schemas.protobuf.parser import parse_text
from ottla.schemas.protobuf.printer import Printer
from ottla.schemas.schema import Budget, InvalidSchema

#: ~ ends a line that has spaces only, because the layout indents empty lines inside of nested messages
_LAYOUT = """\
syntax = "proto3";
package shop.orders;

import "google/protobuf/timestamp.proto";
import public "google/protobuf/empty.proto";
import weak "google/protobuf/any.proto";

option java_package = "shop";

message Order {
  reserved 5, 7 to 9;
  reserved "old";

  option deprecated = true;

  optional int32 id = 1;
  repeated Line lines = 2 [
    deprecated = true,
    json_name = "l"
  ];
  map<string, google.protobuf.Timestamp> times = 3;

  oneof payment {
    string card = 10;
    bytes token = 11 [(confluent.field_meta).tags = "PII"];
  }

  message Line {
    Kind kind = 1;
  ~
    message Empty {}
    enum Kind {
      reserved 3 to 5;
      NONE = 0;
      SOME = 1 [deprecated = true];
    }
  }
}
enum State {
  option allow_alias = true;
  OPEN = 0;
  NEW = 0;
}

service Orders {
  rpc Get (Order) returns (stream .shop.orders.Order) {
    option deprecated = true;
  };
  rpc Put (stream Order) returns (Order);
}
""".replace("~", "")


def _printed(text: str) -> str:
    return Printer().file(parse_text(text, Budget()))


def test_text_in_the_canonical_layout_is_unchanged() -> None:
    assert _printed(_LAYOUT) == _LAYOUT


def test_order_comments_and_white_space_are_made_canonical() -> None:
    text = """// a
    /* b */ syntax = 'proto3'  ;
    enum Z { Z0 = 0 ; }
    message A { enum E { E0 = 0; } oneof o { int32 b = 2; } message B {} int32 a = 0x1; ; option deprecated=true; }
    import "google/protobuf/any.proto"; package p;;
    """
    assert (
        _printed(text)
        == """\
syntax = "proto3";
package p;

import "google/protobuf/any.proto";

message A {
  option deprecated = true;

  int32 a = 1;

  oneof o {
    int32 b = 2;
  }

  message B {}
  enum E {
    E0 = 0;
  }
}
enum Z {
  Z0 = 0;
}
"""
    )


def test_proto2_prints_groups_extensions_and_defaults() -> None:
    text = """
    message A {
      extensions 100 to 199, 500 to max [declaration = {number: 500, full_name: ".x", type: "int32"}];
      required string s = 1 [default = "a\\"b", deprecated = false];
      optional bytes b = 2 [default = "\\xff\\001"];
      optional group G = 3 { optional int32 x = 1; }
      extend A { optional int32 e = 100; }
    }
    extend A { repeated int32 f = 101 [packed = true]; }
    """
    assert (
        _printed(text)
        == """
message A {
  required string s = 1 [
    deprecated = false,
    default = "a\\"b"
  ];
  optional bytes b = 2 [default = "\\377\\001"];

  optional group G = 3 {
    optional int32 x = 1;
  }

  extensions 100 to 199, 500 to max [declaration = {
    number: 500,
    full_name: ".x",
    type: "int32"
  }];

  extend A {
    optional int32 e = 100;
  }
}

extend A {
  repeated int32 f = 101 [packed = true];
}
"""
    )


def test_values_of_options_are_printed_as_messages_and_lists() -> None:
    text = """
    syntax = "proto3"; import "google/protobuf/descriptor.proto";
    message O { string s = 1; repeated int32 n = 2; O o = 3; map<string, int32> m = 4; double d = 5; O.E e = 6;
      enum E { E0 = 0; E1 = 1; } }
    extend google.protobuf.MessageOptions { O opt = 50000; repeated string names = 50001; }
    message A { option (opt) = { s: "x" "y" n: 1, n: [2, -3]; o < e: E1 > m { key: "k" value: 1 } d: -inf };
      option (names) = 'a'; option (names) = 'b'; }
    """
    expected = """
  option (opt) = {
    s: "xy",
    n: [
      1,
      2,
      -3
    ],
    o: {
      e: E1
    },
    m: {
      key: "k",
      value: 1
    },
    d: -inf
  };
  option (names) = "a";
  option (names) = "b";
"""
    assert expected in _printed(text)
    assert _printed(_printed(text)) == _printed(text)


def test_editions_are_accepted() -> None:
    text = (
        'edition = "2023";\npackage p;\n\noption features.field_presence = IMPLICIT;\n\nmessage A {\n'
        "  reserved old, older;\n\n"
        "  int32 a = 1 [features = {\n    field_presence: LEGACY_REQUIRED\n  }];\n  repeated int32 b = 2;\n}\n"
    )
    assert _printed(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('syntax = "proto4";', 'line 1, column 10: unknown syntax "proto4"'),
        ('syntax = "proto3";\nmessage A {\n  int32 a 1;\n}', 'line 3, column 11: expected "=", found "1"'),
        ('syntax = "proto3";\nmessage A {', "line 2, column 12: the message"),
        ('syntax = "proto3"; message A { string s = 1 [json_name = "a]; }', "column 58: the string does not end"),
        ('syntax = "proto3"; /* a', "line 1, column 20: the comment has no end"),
        ('syntax = "proto3"; /* /* */ */', "block comments cannot be nested"),
        ("message A { int32 a = 1; }", 'expected "optional", "required" or "repeated", found "int32"'),
        ('syntax = "proto3"; message A { required int32 a = 1; }', "required fields are not allowed in proto3"),
        ('syntax = "proto3"; message A { repeated map<int32, int32> a = 1; }', "a map has no label"),
        ('syntax = "proto3"; message A { oneof o { repeated int32 a = 1; } }', "a field of a oneof has no label"),
        ('syntax = "proto3"; message A { oneof o { map<int32, int32> a = 1; } }', "a map is not allowed in a oneof"),
        ('syntax = "proto3"; message A { group G = 1 {} }', "groups are allowed in proto2 only"),
        ("message A { optional group g = 1 {} }", "the name of a group starts with a capital letter"),
        ('syntax = "proto3"; message A { int32 a = 08; }', 'expected the number of a field, found "08"'),
        ('syntax = "proto3"; message A { int32 a = 1b; }', "a number is followed by 'b'"),
        ('syntax = "proto3"; message A { reserved 5 to 3; }', "the range 5 to 3 ends before it starts"),
        ('syntax = "proto3"; message A { reserved 1, "a"; }', 'expected a number, found ""a""'),
        ('syntax = "proto3"; option java_package = "\\q";', "invalid escape sequence"),
        ('message A {} syntax = "proto3";', "must be the first statement"),
        ('syntax = "proto3"; package a; package b;', "the package is stated twice"),
        ('edition = "1999";', 'unknown edition "1999"'),
        ('edition = "2023"; message A { optional int32 a = 1; }', 'the label "optional" is not allowed in editions'),
    ],
)
def test_wrong_syntax_is_rejected_with_its_position(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse_text(text, Budget())
    assert message in str(caught.value)
    assert str(caught.value).startswith("line ")
