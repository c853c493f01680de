#!/usr/bin/env python3
"""Random generations of a random model against schemas: Python's jsonschema has to accept every one of them. Exit status
77 where it is not installed. Schemas: those of the JSON-Schema-Test-Suite that become a grammar, and random ones.

usage: schema_generations_test.py PROGRAM MODEL CHAT_TEMPLATE [COUNT]
"""
import collections
import json
import os
import random
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("jsonschema is not installed: left out")
    sys.exit(77)

program, model = sys.argv[1:3]
count = int(sys.argv[4]) if len(sys.argv) > 4 else 2000
here = os.path.dirname(os.path.abspath(__file__))
draw = random.Random(7)


def random_schema(depth=0):
    kind = draw.choice(["string", "pattern", "format", "integer", "number", "enum", "boolean", "null"] + ["object", "object", "array", "anyOf", "ref"] * (depth < 3))
    if kind == "string":
        low = draw.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + draw.randint(0, 12)}
    if kind == "pattern":
        return {"type": "string", "pattern": draw.choice(["^[a-z]{2,6}$", "^\\d{3}-\\d{4}$", "^(ab|cd)+$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$", "[xyz]"]), "maxLength": 20}
    if kind == "format":
        return {"type": "string", "format": draw.choice(["date", "time", "date-time", "ipv4", "uuid", "email"])}
    if kind in ("integer", "number"):
        low = draw.randint(-1000, 1000)
        bounds = {draw.choice(["minimum", "exclusiveMinimum"]): low, draw.choice(["maximum", "exclusiveMaximum"]): low + draw.randint(2, 500)}
        return {"type": kind, **(bounds if draw.random() < 0.7 else {}), **({"multipleOf": draw.choice([1, 2])} if kind == "integer" and draw.random() < 0.3 else {})}
    if kind == "enum":
        return {"enum": draw.sample(["a", "b\n", "\u00e9", 1, 2.5, None, True, [1], {"x": 1}], draw.randint(1, 4))}
    if kind == "object":
        names = draw.sample(["name", "age", "tags", "x y", "\u00fc", "a\"b", "value"], draw.randint(1, 4))
        return {"type": "object", "properties": {n: random_schema(depth + 1) for n in names}, "required": draw.sample(names, draw.randint(0, len(names))),
                "additionalProperties": draw.choice([False, False, random_schema(3)])}
    if kind == "array":
        low = draw.randint(0, 2)
        return {"type": "array", "items": random_schema(depth + 1), "minItems": low, "maxItems": low + draw.randint(0, 3),
                **({"prefixItems": [random_schema(depth + 1)]} if draw.random() < 0.3 else {})}
    if kind == "anyOf":
        return {"anyOf": [random_schema(depth + 1) for _ in range(draw.randint(1, 3))]}
    if kind == "ref":
        return {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                                   "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#/$defs/node"} if depth == 0 else {"type": "boolean"}
    return {"type": kind}


def main():
    suite = [json.loads(line.rstrip(",\n")) for line in open(here + "/golden/json_schema/draft2020-12.json") if line.startswith("{")]
    # Python's regular expressions are not JavaScript's: \\W and its like mean something else.
    schemas = [g["schema"] for g in suite if g["schema"] is not False and "regex" not in g["file"] and "\\\\" not in json.dumps(g["schema"])]
    schemas += [random_schema() for _ in range(400)]
    closing = {str(i): 5 for text, i in json.load(open(model + "/tokenizer.json"))["model"]["vocab"].items() if text in ('"', "}", "]", '"}')}
    folder = model + "/../generations"
    os.makedirs(folder, exist_ok=True)
    for name in ("in.jsonl", "out.jsonl"):
        if os.path.exists(f"{folder}/{name}"):
            os.remove(f"{folder}/{name}")
    total = int(count * 1.8)
    with open(folder + "/in.jsonl", "w") as f:
        for i in range(total):
            schema = schemas[i % len(schemas)]
            body = {"prompt": "x", "max_tokens": 150, "seed": i + 1, "logit_bias": closing,
                    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
    subprocess.run([program, "batch", folder + "/in.jsonl", folder + "/out.jsonl", "--model", model], check=True)
    seen = collections.Counter()
    for line in open(folder + "/out.jsonl"):
        answer = json.loads(line)
        schema, response = schemas[int(answer["custom_id"]) % len(schemas)], answer["response"]
        if response["status_code"] != 200:
            assert response["status_code"] == 400 and response["body"]["error"]["message"], response
            seen["refused"] += 1
            continue
        choice = response["body"]["choices"][0]
        if choice["finish_reason"] != "stop":
            seen["cut at the length"] += 1
            continue
        try:
            jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(json.loads(choice["text"]))
        except Exception as e:
            sys.exit(f"{json.dumps(schema)}\nallowed {choice['text']!r}\n{type(e).__name__}: {e}")
        seen["validated"] += 1
    print(dict(seen))
    assert seen["validated"] >= count, f"only {seen['validated']} of {total} ended; {count} were wanted"


main()
