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
    import pydantic
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


def streamed_calls(parts):
    """Names and arguments of a stream's tool calls, and why it ended."""
    calls, finish = {}, None
    for choice in (c for p in parts for c in p.choices):
        finish = choice.finish_reason or finish
        for d in choice.delta.tool_calls or []:
            name, arguments = calls.get(d.index, ("", ""))
            calls[d.index] = (name + (d.function.name or ""), arguments + (d.function.arguments or ""))
    return list(calls.values()), finish


def openai_options(client, name):
    """n, best_of, echo, seeds, stops, tool choices, schemas from types, tools and schemas of /v1/responses, embeddings."""
    ask = dict(model=name, max_tokens=20)
    several = client.completions.create(prompt=["A dog", "A cat"], n=3, best_of=4, seed=1, **ask)
    assert [c.index for c in several.choices] == list(range(6))
    whole = client.completions.create(prompt="A dog", seed=1, n=2, logprobs=1, **ask)
    texts = ["", ""]
    for part in client.completions.create(prompt="A dog", seed=1, n=2, logprobs=1, stream=True, **ask):
        for c in part.choices:
            texts[c.index] += c.text
    assert texts == [c.text for c in whole.choices], (texts, whole)
    for seed in (0, 1, -7):  # each is a seed, 0 too
        assert len({client.completions.create(prompt="A dog", seed=seed, **ask).choices[0].text for _ in range(3)}) == 1, seed
    assert len({client.completions.create(prompt="A dog", **ask).choices[0].text for _ in range(4)}) > 1, "without a seed all are alike"
    scored = client.completions.create(model=name, prompt="Once upon a time", max_tokens=0, echo=True, logprobs=2).choices[0]
    assert scored.text == "Once upon a time" and scored.logprobs.token_logprobs[0] is None and len(scored.logprobs.top_logprobs[1]) in (2, 3)

    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    shape = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}, "unit": {"enum": ["c", "f"]}}, "required": ["city", "unit"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": shape}}, {"type": "function", "function": {"name": "now"}}]
    for choice in ("auto", "none", "required", {"type": "function", "function": {"name": "now"}}):
        ask = dict(model=name, messages=messages, tools=tools, tool_choice=choice, max_tokens=400, seed=4, parallel_tool_calls=False)
        made = client.chat.completions.create(**ask).choices[0]
        calls = [(c.function.name, c.function.arguments) for c in made.message.tool_calls or []]
        assert streamed_calls(client.chat.completions.create(stream=True, **ask)) == (calls, made.finish_reason), choice
        assert bool(calls) == (choice not in ("auto", "none")) or choice == "auto", (choice, made)
    turn = [{"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "noon"}]
    client.chat.completions.create(model=name, messages=messages + turn, tools=tools, max_tokens=2)

    class Step(pydantic.BaseModel):
        what: str = pydantic.Field(max_length=6)
        done: bool
    class Plan(pydantic.BaseModel):
        steps: list[Step] = pydantic.Field(max_length=2)
        note: str | None = pydantic.Field(max_length=4)
    parsed = client.chat.completions.parse(model=name, messages=messages, response_format=Plan, max_tokens=900, seed=2).choices[0].message.parsed
    assert isinstance(parsed, Plan)
    assert isinstance(client.responses.parse(model=name, input="Hi", text_format=Plan, max_output_tokens=900).output_parsed, Plan)
    flat = [{"type": "function", "name": "weather", "parameters": shape, "strict": True}]
    ask = dict(model=name, tools=flat, tool_choice="required", max_output_tokens=400, parallel_tool_calls=False)
    call = next(o for o in client.responses.create(input="Hi", **ask).output if o.type == "function_call")
    assert set(json.loads(call.arguments)) == {"city", "unit"}, call
    after = [{"role": "user", "content": "Hi"}, call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}]
    client.responses.create(model=name, input=after, tools=flat, max_output_tokens=2)
    assert "response.function_call_arguments.delta" in {e.type for e in client.responses.create(input="Hi", stream=True, **ask)}
    floats = client.embeddings.create(model=name, input=["a dog", "a cat"], encoding_format="float").data
    packed = client.embeddings.create(model=name, input=["a dog", "a cat"]).data
    assert all(abs(a - b) < 1e-6 for f, p in zip(floats, packed) for a, b in zip(f.embedding, p.embedding)) and len(packed) == 2
    for bad in (dict(tool_choice="required"), dict(top_logprobs=3), dict(n=0), dict(response_format={"type": "yaml"}), dict(messages=[]), dict(max_tokens=10**6),
                dict(tools=tools, tool_choice={"type": "function", "function": {"name": "nobody"}})):
        try:
            client.chat.completions.create(**{"model": name, "messages": messages, "max_tokens": 2, **bad})
            raise SystemExit(f"{bad} was accepted")
        except openai.BadRequestError as e:
            assert e.message, bad


def langchain_routes(address, name):
    try:
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
    except ImportError:
        print("LangChain is not installed: left out")
        return

    @tool
    def add(x: int, y: int) -> int:
        "adds"
        return x + y
    class Joke(pydantic.BaseModel):
        "a joke"
        text: str = pydantic.Field(max_length=10)
        rating: int | None = None
    where = dict(base_url=address + "/v1", api_key="none", model=name)
    chat = ChatOpenAI(max_tokens=300, seed=5, **where)
    whole = chat.invoke("Hi").content
    assert "".join(p.content for p in chat.stream("Hi")) == whole and len(chat.batch(["a", "b", "c"])) == 3
    called = chat.bind_tools([add], tool_choice="add", parallel_tool_calls=False).invoke("Hi").tool_calls
    assert called and set(called[0]["args"]) == {"x", "y"}, called
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Joke, method=method).invoke("Hi"), Joke), method
    assert len(OpenAIEmbeddings(check_embedding_ctx_length=False, **where).embed_documents(["a", "b"])) == 2
    assert isinstance(OpenAI(max_tokens=5, **where).invoke("Hi"), str)


def anthropic_routes(client, name):
    ask = dict(model=name, max_tokens=12, messages=[{"role": "user", "content": "Hi"}], system="s", extra_body={"temperature": 0})
    reply = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == reply.content[0].text
    tools = [{"name": "add", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}]
    called = client.messages.create(**{**ask, "max_tokens": 300}, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert called.stop_reason == "tool_use" and isinstance(called.content[-1].input["x"], int), called
    result = [{"role": "assistant", "content": [b.model_dump() for b in called.content]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.content[-1].id, "content": "4"}]}]
    assert client.messages.create(**{**ask, "messages": ask["messages"] + result}, tools=tools).content
    with client.messages.stream(**{**ask, "max_tokens": 300}, tools=tools, tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True}) as stream:
        assert isinstance(stream.get_final_message().content[-1].input["x"], int)
    letter = reply.content[0].text.strip()[2]
    stopped = client.messages.create(**ask, stop_sequences=[letter])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", letter), stopped
    assert [m.id for m in client.models.list().data] == [name]
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
        openai_options(client, name)
        anthropic_routes(anthropic.Anthropic(base_url=address, api_key="none", max_retries=0), name)
        langchain_routes(address, name)
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0
    print("clients: all routes")


main()
