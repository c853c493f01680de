#!/usr/bin/env python3
"""Render chat templates with Jinja2, set up as Hugging Face transformers sets it up, and store what comes out.

    make_chat_goldens.py OUT_FOLDER TEMPLATE.jinja...        one JSON file per template, with the standard conversations
    make_chat_goldens.py --features FEATURES.json            small templates that share variables, filled in place

OUT_FOLDER/conversations.json holds the variables of each conversation; a golden is {"source", "template", "cases":
{conversation: {"expected"} or {"error"}}}. "error" is what Jinja2 raised; the C++ interpreter must fail there too, in its
own words. FEATURES.json is {"variables", "cases": [{"name", "template", "expected" or "error"}]}. Needs the package jinja2.
"""
import argparse
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = 1750000000  # Sunday 2025-06-15 15:06:40 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words; it prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(text):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(text)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(template, variables):
    """("expected", text) or ("error", what was raised)."""
    try:
        return "expected", environment().from_string(template).render(**variables)
    except Exception as e:  # whatever the template provokes is a result here
        return "error", f"{type(e).__name__}: {e}"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, \"now\" or later",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "default": 3, "minimum": 0.5},
                "places": {"type": "array", "items": {"type": "string"}},
                "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": ["wind"]},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {"type": "object", "properties": {}}}}


def call(arguments, identifier="call00001"):
    return {"id": identifier, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def conversations():
    system = {"role": "system", "content": "You are terse."}
    user = {"role": "user", "content": "  Is it <warm> in Zürich & \"Genève\"? 日本語 🙂\n"}
    answer = {"role": "assistant", "content": "Yes.\n\nIt is."}
    more = {"role": "user", "content": "And tomorrow?"}
    arguments = {"city": "Zürich", "days": 2, "exact": True, "none": None, "list": [1, 2.5, "x"], "map": {"a": "b'c"}}
    asks = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
    asks_text = {"role": "assistant", "content": None, "tool_calls": [call(json.dumps(arguments))]}
    asks_twice = {"role": "assistant", "content": "Let me see.", "tool_calls": [call({"city": "A"}), call({"city": "B"}, "call00002")]}
    told = {"role": "tool", "content": "{\"temperature\": 21}", "tool_call_id": "call00001", "name": "get_weather"}
    told_twice = dict(told, content="rain", tool_call_id="call00002")
    thinks = {"role": "assistant", "content": "Yes.", "reasoning_content": "It is summer.\nSo yes.", "thinking": "It is summer."}
    thinks_inline = {"role": "assistant", "content": "<think>\nIt is summer.\n</think>\n\nYes."}
    parts = {"role": "user", "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}]}
    image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
    tools = [WEATHER, CLOCK]
    documents = [{"title": "Swiss weather", "text": "Often fine.", "doc_id": "1"}, {"title": "Other", "text": "No."}]
    return {
        "user": dict(messages=[user]),
        "user, no prompt": dict(messages=[user], add_generation_prompt=False),
        "system": dict(messages=[system, user]),
        "developer": dict(messages=[dict(system, role="developer"), user]),
        "turns": dict(messages=[system, user, answer, more]),
        "turns, no prompt": dict(messages=[user, answer], add_generation_prompt=False),
        "two users": dict(messages=[user, more]),
        "parts": dict(messages=[system, parts]),
        "image": dict(messages=[image]),
        "tools": dict(messages=[system, user], tools=tools),
        "tools, no system": dict(messages=[user], tools=tools),
        "tool call": dict(messages=[user, asks, told], tools=tools),
        "tool call as text": dict(messages=[system, user, asks_text, told], tools=tools),
        "tool call without tools": dict(messages=[user, asks, told]),
        "tool calls twice": dict(messages=[user, asks_twice, told, told_twice, answer, more], tools=tools),
        "tool call last": dict(messages=[user, asks], tools=tools, add_generation_prompt=False),
        "thinking": dict(messages=[user, thinks, more], enable_thinking=True),
        "thinking inline": dict(messages=[user, thinks_inline, more]),
        "not thinking": dict(messages=[user, thinks_inline], enable_thinking=False, thinking=False),
        "thinking with tools": dict(messages=[user, dict(asks, reasoning_content="Ask."), told], tools=tools, reasoning_effort="high"),
        "documents": dict(messages=[user], documents=documents),
        "empty": dict(messages=[]),
    }


def standard_variables(given):
    base = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return {**base, **given}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", metavar="FEATURES.json")
    parser.add_argument("--source", default="", help="where the templates come from and under which licence")
    parser.add_argument("out", nargs="?", type=pathlib.Path)
    parser.add_argument("templates", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    if args.features:
        path = pathlib.Path(args.features)
        golden = json.loads(path.read_text())
        for case in golden["cases"]:
            kind, text = render(case["template"], golden["variables"])
            case.pop("expected", None), case.pop("error", None)
            case[kind] = text
        lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in golden["cases"])
        variables = json.dumps(golden["variables"], ensure_ascii=False)
        path.write_text(f'{{"variables": {variables},\n"cases": [\n{lines}\n]}}\n')
        return
    if not args.out:
        parser.error("an output folder is needed")
    args.out.mkdir(parents=True, exist_ok=True)
    variables = {name: standard_variables(given) for name, given in conversations().items()}
    (args.out / "conversations.json").write_text(json.dumps(variables, ensure_ascii=False, indent=1) + "\n")
    for path in args.templates:
        template = path.read_bytes().decode()
        cases = {}
        for name, given in variables.items():
            kind, text = render(template, json.loads(json.dumps(given)))
            cases[name] = {kind: text}
        golden = {"source": args.source, "template": template, "cases": cases}
        (args.out / (path.stem + ".json")).write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
