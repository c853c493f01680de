#!/usr/bin/env python3
"""The openai, anthropic and LangChain clients from PyPI against `sinter serve`. Ends with status 77 where they are not installed.

usage: clients_test.py PROGRAM MODEL CHAT_TEMPLATE
"""
import json
import subprocess
import sys

try:
    import anthropic
    import openai
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)


def openai_routes(client):
    name = client.models.list().data[0].id
    ask = dict(model=name, max_tokens=16, seed=4)
    text = client.completions.create(prompt="Once upon", **ask).choices[0].text
    assert "".join(c.choices[0].text for c in client.completions.create(prompt="Once upon", stream=True, **ask)) == text
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}]
    reply = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=3, **ask)
    assert len(reply.choices[0].logprobs.content) == reply.usage.completion_tokens
    parts = list(client.chat.completions.create(messages=messages, stream=True, stream_options={"include_usage": True}, **ask))
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == reply.choices[0].message.content
    assert parts[-1].usage.total_tokens == reply.usage.total_tokens
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    made = client.chat.completions.create(model=name, messages=messages, seed=1, response_format=form).choices[0].message.content
    assert isinstance(json.loads(made)["ok"], bool), made
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}]
    called = client.chat.completions.create(model=name, messages=messages, seed=1, tools=tools, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert called.finish_reason == "tool_calls" and isinstance(json.loads(called.message.tool_calls[0].function.arguments)["x"], int)
    with client.chat.completions.stream(model=name, messages=messages, max_tokens=8) as stream:
        kinds = {event.type for event in stream}
        assert "content.delta" in kinds, kinds
    answer = client.responses.create(model=name, input="Hi", max_output_tokens=8)
    assert isinstance(answer.output_text, str)
    events = [e.type for e in client.responses.create(model=name, input="Hi", max_output_tokens=8, stream=True)]
    assert events[0] == "response.created" and events[-1] in ("response.completed", "response.incomplete"), events
    for bad, kind in [(dict(temperature=-1), openai.BadRequestError), (dict(model="other"), openai.NotFoundError)]:
        try:
            client.chat.completions.create(**{"model": name, "messages": messages, **bad})
            raise SystemExit(f"{bad} was accepted")
        except kind as e:
            assert e.message


def anthropic_routes(client, name):
    ask = dict(model=name, max_tokens=12, messages=[{"role": "user", "content": "Hi"}], system="s", extra_body={"temperature": 0})
    reply = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == reply.content[0].text
    tools = [{"name": "add", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}]
    called = client.messages.create(**{**ask, "max_tokens": 300}, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert called.stop_reason == "tool_use" and isinstance(called.content[-1].input["x"], int), called
    assert client.messages.count_tokens(model=name, messages=ask["messages"]).input_tokens > 0
    try:
        client.messages.create(**{**ask, "max_tokens": 10**4})
        raise SystemExit("too many tokens were accepted")
    except anthropic.BadRequestError:
        pass


def main():
    program, model, template = sys.argv[1:4]
    server = subprocess.Popen([program, "serve", model, "--port", "0", "--chat-template", template], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0)
        openai_routes(client)
        name = client.models.list().data[0].id
        anthropic_routes(anthropic.Anthropic(base_url=address, api_key="none", max_retries=0), name)
        try:
            from langchain_openai import ChatOpenAI
            chat = ChatOpenAI(base_url=address + "/v1", api_key="none", model=name, max_tokens=8)
            assert isinstance(chat.invoke("Hi").content, str)
        except ImportError:
            print("LangChain is not installed: left out")
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0
    print("clients: all routes")


main()
