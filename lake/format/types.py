"""Types: the one form in which a dataset keeps each, and the text that names it in digests.

The canonical form of a type, at any depth:

| input | canonical |
|---|---|
| string, large_string, string_view | large_string |
| binary, large_binary, binary_view | large_binary |
| list, list_view | list, the item field named "item" |
| large_list, large_list_view | large_list, the item field named "item" |
| map | map, the fields named "key" and "value" |
| dictionary as a column | dictionary<int32, value> where `has_vocabulary`, else its value type |
| dictionary inside another type; run-end encoded | its value type |
| arrow.json, arrow.opaque | the same over canonical storage |
| union | refused |
| anything else | as it is |

Nullability and metadata of child fields are kept, metadata sorted by key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lake.errors import SchemaError
from lake.format.arrays import is_octets, is_text

MAX_DEPTH = 64  # of a type within types: Arrow writes no deeper one
EXTENSION_NAME, EXTENSION_METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"


def canonical_column(type_: pa.DataType) -> pa.DataType:
    """The canonical type of a column; SchemaError for what no dataset can hold."""
    if pa.types.is_fixed_size_binary(values_of(type_)) and not values_of(type_).byte_width:
        raise SchemaError(f"{type_} cannot be stored: make it bool, or drop it")
    _check_depth(type_)
    if isinstance(type_, pa.DictionaryType) and has_vocabulary(type_.value_type):
        return pa.dictionary(pa.int32(), canonical(type_.value_type), type_.ordered)
    return canonical(type_)


def values_of(type_: pa.DataType) -> pa.DataType:
    """The type of the values of dictionaries and runs; of anything else, itself."""
    while isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
        type_ = type_.value_type
    return type_


def _check_depth(type_: pa.DataType) -> None:
    """That a type is not nested too deep, level by level: a type may be too deep to recurse into."""
    level, depth = [type_], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise SchemaError(
                f"a type nested over {MAX_DEPTH} deep cannot be stored: flatten it, or store it as text"
            )
        level = [child for one in level for child in _below(one)]


def _below(type_: pa.DataType) -> list[pa.DataType]:
    type_ = values_of(type_)
    if isinstance(type_, pa.BaseExtensionType):
        return _below(type_.storage_type)
    if pa.types.is_union(type_) or not pa.types.is_nested(type_):
        return []
    return [field.type for field in children(type_)]


def canonical(type_: pa.DataType) -> pa.DataType:
    """The canonical type of values inside others: as of a column, but never a dictionary."""
    if isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
        return canonical(type_.value_type)
    if isinstance(type_, pa.JsonType):
        return pa.json_(pa.large_string())
    if isinstance(type_, pa.OpaqueType):
        return pa.opaque(canonical(type_.storage_type), type_.type_name, type_.vendor_name)
    if is_text(type_):
        return pa.large_string()
    if is_octets(type_):
        return pa.large_binary()
    if pa.types.is_union(type_):
        raise SchemaError(
            f"{type_} cannot be stored: use a struct with a nullable field for each kind of value"
        )
    if not pa.types.is_nested(type_):
        return type_
    fields = [canonical_field(child, canonical(child.type)) for child in children(type_)]
    if not pa.types.is_struct(type_):
        names = ("key", "value") if pa.types.is_map(type_) else ("item",)
        fields = [field.with_name(name) for field, name in zip(fields, names, strict=True)]
    return with_children(type_, fields)


def canonical_field(field: pa.Field, type_: pa.DataType) -> pa.Field:
    """The field with this type and its metadata in order."""
    return pa.field(field.name, type_, field.nullable, sorted_metadata(field.metadata))


def sorted_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    """Metadata in the order of its keys; None if there is none."""
    return dict(sorted(metadata.items())) if metadata else None


def has_vocabulary(type_: pa.DataType) -> bool:
    """Whether a dictionary of such values stays one: booleans, integers, floats, decimals, strings, binaries.

    Times and nested values are stored as such: a version document could not list them exactly. Nor are
    float16, decimal32 and decimal64 kept, which Arrow cannot look up.
    """
    return bool(
        pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_float32(type_)
        or pa.types.is_float64(type_)
        or pa.types.is_decimal128(type_)
        or pa.types.is_decimal256(type_)
        or pa.types.is_fixed_size_binary(type_)
        or is_text(type_)
        or is_octets(type_)
    )


def children(type_: pa.DataType) -> list[pa.Field]:
    """The child fields of a nested type: of a map its key and value."""
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return list(type_) if pa.types.is_struct(type_) else [type_.value_field]


def with_children(type_: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    """The nested type with other child fields; list views become lists."""
    if pa.types.is_struct(type_):
        return pa.struct(fields)
    if pa.types.is_map(type_):
        return pa.map_(*fields, keys_sorted=type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(fields[0], type_.list_size)
    wide = pa.types.is_large_list(type_) or pa.types.is_large_list_view(type_)
    return pa.large_list(fields[0]) if wide else pa.list_(fields[0])


def canonical_type(what: pa.DataType | pa.Field) -> str:
    """The canonical text of a type: what enters digests and readable schemas, the same for all its layouts.

    >>> canonical_type(pa.list_(pa.struct([("a", pa.string_view()), ("b", pa.timestamp("ns", "UTC"))])))
    'list<struct<"a":string,"b":timestamp[ns,"UTC"]>>'

    | type | text |
    |---|---|
    | null, bool, int8 to int64, uint8 to uint64 | as named here |
    | float16, float32, float64, date32, date64, month_day_nano_interval | as named here |
    | strings, binaries of any width | `string`, `binary` |
    | fixed-size binary of n bytes | `fixed_size_binary[n]` |
    | decimals of w bits | `decimalw[precision,scale]` |
    | times, durations | `time32[unit]`, `time64[unit]`, `duration[unit]` |
    | timestamps | `timestamp[unit]`, with a zone `timestamp[unit,zone]` |
    | lists of any width | `list<T>` |
    | fixed-size list of n items | `fixed_size_list<T,n>` |
    | struct | `struct<name:T,name:T>` |
    | map | `map<K,V>`, with sorted keys `map<K,V,sorted>` |
    | extension | `extension<name,parameters,T>`, T its storage |
    | dictionary, run-end encoded | as its values |

    Names, zones and parameters are JSON strings (UTF-8, not escaped beyond need), so that no two types share
    a text. An extension's parameters are its serialized bytes, each as the character of its number; those of
    arrow.fixed_shape_tensor are canonical JSON with `dim_names`, `permutation` (each if set) and `shape`,
    those of arrow.opaque with `type_name` and `vendor_name`. A field whose metadata names an extension that
    is not registered reads like one that is. Nullability, metadata and the names of list items and map fields
    are left out.
    """
    if not isinstance(what, pa.Field):
        return _text(what)
    extension = (what.metadata or {}).get(EXTENSION_NAME)
    if extension is None:
        return _text(what.type)
    parameters = what.metadata.get(EXTENSION_METADATA, b"").decode("latin-1")
    return _extension_text(extension.decode("utf-8", "backslashreplace"), parameters, what.type)


_FLAT_TEXTS = {
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.date32(): "date32",
    pa.date64(): "date64",
    pa.month_day_nano_interval(): "month_day_nano_interval",
}


def _text(type_: pa.DataType) -> str:
    if isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
        return _text(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _extension_text(type_.extension_name, _parameters(type_), type_.storage_type)
    if is_text(type_):
        return "string"
    if is_octets(type_):
        return "binary"
    if pa.types.is_nested(type_) and not pa.types.is_union(type_):
        return _nested_text(type_)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return f"timestamp[{type_.unit},{_json(type_.tz)}]"
    if pa.types.is_decimal(type_):
        return f"decimal{type_.bit_width}[{type_.precision},{type_.scale}]"
    return _FLAT_TEXTS.get(type_, str(type_))  # the others are as Arrow writes them


def _nested_text(type_: pa.DataType) -> str:
    texts = [canonical_type(child) for child in children(type_)]
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{_json(f.name)}:{text}' for f, text in zip(type_, texts, strict=True))}>"
    if pa.types.is_map(type_):
        return f"map<{','.join([*texts, 'sorted'] if type_.keys_sorted else texts)}>"
    if pa.types.is_fixed_size_list(type_):
        return f"fixed_size_list<{texts[0]},{type_.list_size}>"
    return f"list<{texts[0]}>"


def _extension_text(name: str, parameters: str, storage: pa.DataType) -> str:
    return f"extension<{_json(name)},{_json(parameters)},{_text(storage)}>"


def _parameters(type_: pa.DataType) -> str:
    """What an extension type is set to, apart from its storage; "" if there is nothing to set."""
    if isinstance(type_, pa.FixedShapeTensorType):
        found = {"shape": type_.shape, "dim_names": type_.dim_names, "permutation": type_.permutation}
        return _json({key: list(value) for key, value in found.items() if value is not None})
    if isinstance(type_, pa.OpaqueType):
        return _json({"type_name": type_.type_name, "vendor_name": type_.vendor_name})
    if isinstance(type_, pa.ExtensionType):
        serialized: bytes = type_.__arrow_ext_serialize__()
        return serialized.decode("latin-1")
    return ""


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
