#!/usr/bin/env python3
"""Replies that have to follow a schema do, whatever the model: 200 generated schemas, or --count of them.

    tests/serving/schemas.py [--binary target/release/flint-rt] [--device NAME] [--count 200] [--seed 1]

Each schema is asked for once, drawn at temperature 1; the reply is read as JSON and compared with the schema by the validator below,
which knows the keywords that are generated. Every schema has an end: a text or a number of any length may go on until the context is
full, which is no fault of the server's. Needs only Python's standard library. Exits 1 if a reply is not valid.
"""
import argparse
import json
import random
import re
import sys
import time

from common import Server, add_flags

WORDS = ["name", "age", "path", "lines", "is_new", "tags", "owner", "price", "unit", "note"]


def schema(draw, depth):
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "const", "pattern", "format"]
    kinds += ["object", "array", "anyOf", "nullable"] * (2 if depth > 0 else 0)
    kind = draw.choice(kinds)
    if kind == "integer":
        low = draw.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 500)}
    if kind == "number":
        return {"type": "number", "enum": draw.sample([0.5, 1.25, -3, 1e3, 0], 3)}
    if kind == "string":
        return {"type": "string", "minLength": draw.randint(0, 3), "maxLength": draw.randint(3, 12)}
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": draw.sample(["red", "green", 5, None, True, "a \"b\" \\ c", "é 🦀", 1.5], draw.randint(1, 5))}
    if kind == "const":
        return {"const": draw.choice(["fixed", 7, {"a": [1, 2]}])}
    if kind == "pattern":
        return {"type": "string", "pattern": draw.choice(["^[a-z]{2,5}$", "^(yes|no)$", "^[A-Z][a-z]{0,6}-[0-9]{3}$"])}
    if kind == "format":
        return {"type": "string", "format": draw.choice(["date", "uuid", "ipv4"])}
    if kind == "array":
        return {"type": "array", "items": schema(draw, depth - 1), "minItems": draw.randint(0, 2), "maxItems": draw.randint(2, 4)}
    if kind == "anyOf":
        return {"anyOf": [schema(draw, depth - 1) for _ in range(draw.randint(2, 3))]}
    if kind == "nullable":
        return {"type": ["string", "null"], "maxLength": 8}
    names = draw.sample(WORDS, draw.randint(1, 5))
    properties = {name: schema(draw, depth - 1) for name in names}
    required = [name for name in names if draw.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


FORMATS = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": r"((25[0-5]|2[0-4]\d|1?\d?\d)(\.|$)){4}",
}
TYPES = {
    "integer": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and v == int(v),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
}


def same(a, b):
    """Equal as JSON has it: true is not 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def fits(value, wanted):
    if "anyOf" in wanted:
        return any(fits(value, one) for one in wanted["anyOf"])
    if "enum" in wanted:
        return any(same(value, one) for one in wanted["enum"])
    if "const" in wanted:
        return same(value, wanted["const"])
    kinds = wanted["type"] if isinstance(wanted["type"], list) else [wanted["type"]]
    if not any(TYPES[kind](value) for kind in kinds):
        return False
    if isinstance(value, str):
        return (
            wanted.get("minLength", 0) <= len(value) <= wanted.get("maxLength", 1 << 30)
            and re.search(wanted.get("pattern", ""), value) is not None
            and re.fullmatch(FORMATS.get(wanted.get("format"), r"[\s\S]*"), value) is not None
        )
    if isinstance(value, list):
        count = wanted["minItems"] <= len(value) <= wanted["maxItems"]
        return count and all(fits(item, wanted["items"]) for item in value)
    if isinstance(value, dict):
        known = wanted["properties"]
        return all(name in value for name in wanted["required"]) and all(
            name in known and fits(item, known[name]) for name, item in value.items()
        )
    if TYPES["number"](value):
        return wanted.get("minimum", value) <= value <= wanted.get("maximum", value)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    wrong, began = 0, time.monotonic()
    with Server(args, ["--parallel", "1"]) as server:
        for number in range(args.count):
            wanted = schema(draw, 3)
            body = {
                "messages": [{"role": "user", "content": "Answer with some JSON."}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}},
                "seed": number,
                "max_tokens": 2048,
            }
            status, text = server.ask("POST", "/v1/chat/completions", body)
            try:
                choice = json.loads(text)["choices"][0]
                # One that the context ends is not over.
                is_valid = status == 200 and choice["finish_reason"] == "stop" and fits(json.loads(choice["message"]["content"]), wanted)
            except (KeyError, ValueError):
                is_valid = False
            if not is_valid:
                wrong += 1
                print(f"schema {number}: {json.dumps(wanted)}\n  {status} {text[:500]}")
    print(f"{args.count - wrong} of {args.count} replies are valid, in {time.monotonic() - began:.1f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
