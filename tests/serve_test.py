#!/usr/bin/env python3
"""Starts `sinter serve` and asks it what clients ask: completions, chat, streams, schemas, tools, errors, overload,
clients that go, shutdown. Only Python's own library.

usage: serve_test.py PROGRAM MODEL CHAT_TEMPLATE [--overload SECONDS] [--malformed COUNT]
"""
import argparse
import base64
import http.client
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time


class Server:
    def __init__(self, program, model, *options, env=None, is_read=True):
        command = [program, "serve", model, "--port", "0", *options]
        self.program = program
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.stderr = []
        if is_read:
            self.reader = threading.Thread(target=lambda: self.stderr.extend(self.process.stderr), daemon=True)
            self.reader.start()
        else:
            self.process.stderr.close()
        address = self.process.stdout.readline().strip()
        if not address:
            self.process.wait()
            sys.exit("the server did not start:\n" + "".join(self.stderr))
        self.port = int(address.rsplit(":", 1)[1])

    def ask(self, path, body=None, method=None, headers=None, raw=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = raw if raw is not None else (json.dumps(body) if body is not None else None)
        connection.request(method or ("POST" if data is not None else "GET"), path, data, headers or {})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        return reply.status, text, reply

    def json(self, path, body=None, status=200, headers=None):
        got, text, _ = self.ask(path, body, headers=headers)
        assert got == status, f"{path}: {got} instead of {status}: {text[:400]}"
        return json.loads(text)

    def stream(self, path, body):
        got, text, _ = self.ask(path, {**body, "stream": True})
        assert got == 200, text
        events = [e for e in text.decode().split("\n\n") if e.strip()]
        data = ["\n".join(l[6:] for l in e.split("\n") if l.startswith("data: ")) for e in events]
        return [json.loads(d) for d in data if d and d != "[DONE]"], data

    def stats(self):
        return self.json("/stats")

    def end(self, sent=signal.SIGTERM):
        self.process.send_signal(sent)
        status = self.process.wait(timeout=60)
        return status


def completions(s):
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.9, "seed": 7, "ignore_eos": True}
    whole = s.json("/v1/completions", body)
    text = whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 12 and whole["choices"][0]["finish_reason"] == "length", whole
    assert s.json("/v1/completions", body)["choices"][0]["text"] == text, "the same seed gave another text"
    parts, data = s.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert "".join(p["choices"][0]["text"] for p in parts if p["choices"]) == text, "streamed and whole differ"
    assert parts[-1]["usage"]["completion_tokens"] == 12 and data[-1] == "[DONE]", data[-2:]
    ids = s.json("/tokenize", {"prompt": body["prompt"]})["tokens"]
    assert s.json("/detokenize", {"tokens": ids, "skip_special_tokens": True})["prompt"].strip() == body["prompt"]
    assert s.json("/v1/completions", {**body, "prompt": ids})["choices"][0]["text"] == text, "token ids gave another text"
    several = s.json("/v1/completions", {**body, "prompt": [body["prompt"], "A dog"], "n": 2, "seed": 9})["choices"]
    assert [c["index"] for c in several] == [0, 1, 2, 3]
    again = s.json("/v1/completions", {**body, "seed": 9})["choices"][0]["text"]
    assert several[0]["text"] == again, "a choice depends on its neighbours"
    logged = s.json("/v1/completions", {**body, "logprobs": 3, "echo": True})["choices"][0]
    lp = logged["logprobs"]
    assert logged["text"] == body["prompt"] + text, "asking for logprobs changed the text"
    assert len(lp["tokens"]) == len(ids) + 12 and lp["token_logprobs"][0] is None and all(x <= 0 for x in lp["token_logprobs"][1:])
    scored = s.json("/v1/completions", {"prompt": body["prompt"], "max_tokens": 0, "echo": True, "logprobs": 1})["choices"][0]
    assert len(scored["logprobs"]["tokens"]) == len(ids) and scored["text"] == body["prompt"], scored
    for a, b in zip(scored["logprobs"]["token_logprobs"][1:], lp["token_logprobs"][1:]):
        assert abs(a - b) < 1e-5, "scores differ"
    stop = text.strip()[3:5]
    if stop:
        cut = s.json("/v1/completions", {**body, "stop": [stop]})["choices"][0]
        assert cut["text"] == text[: text.index(stop)] and cut["finish_reason"] == "stop", cut
        parts, _ = s.stream("/v1/completions", {**body, "stop": [stop]})
        assert "".join(p["choices"][0]["text"] for p in parts if p["choices"]) == cut["text"]


def chat(s):
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10, "seed": 3, "ignore_eos": True}
    whole = s.json("/v1/chat/completions", body)
    text = whole["choices"][0]["message"]["content"]
    parts, _ = s.stream("/v1/chat/completions", body)
    assert "".join(p["choices"][0]["delta"].get("content") or "" for p in parts if p["choices"]) == text
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    prompt = s.json("/apply-template", body)["prompt"]
    assert prompt == "[user] Hello [assistant] ", prompt
    message = s.json("/v1/messages", {"messages": body["messages"], "max_tokens": 10, "temperature": 0})
    assert message["stop_reason"] in ("max_tokens", "end_turn") and message["content"][0]["type"] == "text", message
    events, _ = s.stream("/v1/messages", {"messages": body["messages"], "max_tokens": 10, "temperature": 0})
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == message["content"][0]["text"]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    answer = s.json("/v1/responses", {"input": "Hello", "max_output_tokens": 10, "temperature": 0})
    assert answer["output"][0]["content"][0]["text"] == message["content"][0]["text"], answer
    events, _ = s.stream("/v1/responses", {"input": "Hello", "max_output_tokens": 10, "temperature": 0})
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == message["content"][0]["text"]


def reasoning(s):
    """What stands between <think> and </think> is apart from the answer, in each API's form, whole and streamed."""
    body = {"max_tokens": 60, "guided_regex": "<think>[a-c]{3}</think>[x-z]{3}", "seed": 4}
    say = {**body, "messages": [{"role": "user", "content": "x"}]}
    told = s.json("/v1/chat/completions", say)["choices"][0]["message"]
    thought, text = told["reasoning_content"], told["content"]
    assert len(thought) == 3 and len(text) == 3 and thought[0] in "abc" and text[0] in "xyz", told
    parts, _ = s.stream("/v1/chat/completions", say)
    deltas = [p["choices"][0]["delta"] for p in parts if p["choices"]]
    assert ["".join(d.get(k) or "" for d in deltas) for k in ("reasoning_content", "content")] == [thought, text], deltas
    message = s.json("/v1/messages", say)["content"]
    assert [(p["type"], p.get("thinking", p.get("text"))) for p in message] == [("thinking", thought), ("text", text)], message
    ask = {k: v for k, v in body.items() if k != "max_tokens"} | {"input": "x", "max_output_tokens": 60}
    items = s.json("/v1/responses", ask)["output"]
    assert [(i["type"], i["content"][0]["text"]) for i in items] == [("reasoning", thought), ("message", text)] and items[0]["id"] != items[1]["id"], items
    events, _ = s.stream("/v1/responses", ask)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert ["".join(e["delta"] for e in events if e["type"] == f"response.{k}_text.delta") for k in ("reasoning", "output")] == [thought, text]
    assert [(i["type"], i["content"][0]["text"]) for i in events[-1]["response"]["output"]] == [("reasoning", thought), ("message", text)], events[-1]


def structured(s):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
              "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}, "required": ["name", "age", "tags"], "additionalProperties": False}
    for seed in range(1, 9):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "seed": seed,
                "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}}
        choice = s.json("/v1/chat/completions", body)["choices"][0]
        assert choice["finish_reason"] == "stop", choice
        value = json.loads(choice["message"]["content"])
        assert list(value) == ["name", "age", "tags"] and len(value["name"]) <= 8 and 0 <= value["age"] <= 99 and set(value["tags"]) <= {"a", "b"}, value
    body = {"prompt": "x", "max_tokens": 40, "seed": 5}
    assert s.json("/v1/completions", {**body, "guided_choice": ["yes", "no"]})["choices"][0]["text"] in ("yes", "no")
    got = s.json("/v1/completions", {**body, "guided_regex": "[a-c]{4}-[0-9]{2}"})["choices"][0]["text"]
    assert len(got) == 7 and got[4] == "-", got
    assert s.json("/v1/completions", {**body, "grammar": 'root ::= "(" [xy]{3} ")"'})["choices"][0]["text"][0] == "("
    for bad, word in [({"guided_json": {"type": "object", "if": {}}}, "if"), ({"guided_regex": "(?=a)"}, "lookaround"),
                      ({"grammar": "root ::= root"}, "left recursion"), ({"guided_json": {"type": "array", "uniqueItems": True}}, "uniqueItems")]:
        message = s.json("/v1/completions", {**body, **bad}, status=400)["error"]["message"]
        assert word in message, message
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"]}}}]
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "seed": 2, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        made = s.json("/v1/chat/completions", body)["choices"][0]
        assert made["finish_reason"] == "tool_calls", made
        call = made["message"]["tool_calls"][0]["function"]
        assert call["name"] == "get_weather" and "city" in json.loads(call["arguments"]), call
        parts, _ = s.stream("/v1/chat/completions", body)
        deltas = [t for p in parts if p["choices"] for t in p["choices"][0]["delta"].get("tool_calls", [])]
        assert "".join(d["function"].get("arguments", "") for d in deltas) == call["arguments"], deltas


def embeddings(s):
    one = s.json("/v1/embeddings", {"input": "Once upon a time"})["data"][0]["embedding"]
    assert abs(sum(x * x for x in one) - 1) < 1e-4, "not of length 1"
    ids = s.json("/tokenize", {"prompt": "Once upon a time"})["tokens"]
    several = s.json("/v1/embeddings", {"input": [ids, [5, 6]], "encoding_format": "base64"})
    assert [d["index"] for d in several["data"]] == [0, 1] and several["usage"]["prompt_tokens"] == len(ids) + 2
    packed = base64.b64decode(several["data"][0]["embedding"])
    assert list(struct.unpack(f"{len(one)}f", packed)) == [struct.unpack("f", struct.pack("f", x))[0] for x in one], "base64 and floats differ"
    for bad, word in [({"input": []}, "input"), ({}, "input"), ({"input": "x", "dimensions": 3}, "dimensions"), ({"input": [["x"]]}, "input"), ({"input": [10**6]}, "1000000")]:
        message = s.json("/v1/embeddings", bad, status=400)["error"]["message"]
        assert word in message, message


def more_than_the_queue(s):
    """A call with more texts than the server has places: embeddings come piece by piece, completions are told so."""
    texts = [f"Once upon a time {i}" for i in range(30)]
    all_of_them = s.json("/v1/embeddings", {"input": texts})["data"]
    assert [d["index"] for d in all_of_them] == list(range(30))
    for i in (0, 17, 29):
        assert all_of_them[i]["embedding"] == s.json("/v1/embeddings", {"input": texts[i]})["data"][0]["embedding"], i
    error = s.json("/v1/completions", {"prompt": texts, "max_tokens": 1}, status=400)["error"]
    assert error["param"] == "prompt" and "8 places" in error["message"], error


def errors(s, count):
    for path, body, status in [("/v1/completions", {"prompt": "x", "model": "other"}, 404), ("/v1/completions", {"prompt": "x", "max_tokens": 10**6}, 400),
                               ("/v1/complations", {}, 404), ("/health", {}, 405)]:
        assert "message" in s.json(path, body, status=status)["error"]
    assert s.json("/v1/messages", {"messages": []}, status=400)["type"] == "error"
    assert s.ask("/v1/completions", {"prompt": "x"}, headers={"Origin": "http://evil.example"})[0] == 403
    assert s.ask("/v1/completions", {"prompt": "x"}, headers={"Host": "evil.example"})[0] == 403
    draw = random.Random(1)
    seeds = ['{"prompt": "x", "max_tokens": 2}', '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}', '{"prompt": [1, 2], "logit_bias": {"1": 2}, "max_tokens": 1}',
             '{"prompt": "x", "max_tokens": 1, "guided_json": {"type": "object", "properties": {"a": {"pattern": "^a+$"}}}}', '{"prompt":"x","max_tokens":1,"guided_regex":"a(b|c)*[0-9]{2}"}']
    connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    for i in range(count):
        data = bytearray(draw.choice(seeds).encode())
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(data))
            kind = draw.random()
            if kind < 0.4:
                data[at] = draw.randrange(256)
            elif kind < 0.7:
                del data[at]
            else:
                data[at:at] = draw.choice([b"[", b"{", b'"', b"null", b"-1", b"1e999", b"\\", b"\xff", b"99999999999999999999", b"[[[["])
        path = draw.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/messages", "/v1/responses"])
        connection.request("POST", path, bytes(data))
        reply = connection.getresponse()
        text = reply.read()
        assert reply.status in (200, 400, 404, 422, 429, 501), (reply.status, path, bytes(data), text)
        if reply.status != 200:
            assert json.loads(text)["error"]["message"], text
    for junk in [b"GET\r\n\r\n", b"\x00\x01\x02\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"A" * 100000 + b"\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20000 + b"\r\n"]:
        with socket.create_connection(("127.0.0.1", s.port), timeout=10) as raw:
            try:
                raw.sendall(junk)
                raw.shutdown(socket.SHUT_WR)
                first = raw.recv(100)
            except (BrokenPipeError, ConnectionResetError):
                first = b""
            assert first == b"" or first.startswith(b"HTTP/1.1 4"), first
    assert s.json("/health")["status"] == "ok"


def free_again(s, what):
    for _ in range(400):
        now = s.stats()
        if now["running"] == 0 and now["waiting"] == 0 and now["kv_blocks_used"] == 0:
            return
        time.sleep(0.01)
    sys.exit(f"{what}: blocks are still held after the client has gone: {now}")


def send(s, body):
    raw = socket.create_connection(("127.0.0.1", s.port))
    text = json.dumps(body)
    raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    return raw


def cut(raw):
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    raw.close()


def leaving(s):
    """A client that goes frees what it held: mid-stream, without a stream, in its prompt, in the queue, by kill -9."""
    long = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
    raw = send(s, {**long, "stream": True})
    raw.recv(200)
    cut(raw)
    free_again(s, "mid-stream")
    for stream in (False, True):
        before = s.stats()["prompt_tokens"] + s.stats()["cached_tokens"]
        raw = send(s, {**long, "prompt": f"{stream} upon a time " * 300, "max_tokens": 2000, "stream": stream})
        until = time.time() + 60
        while s.stats()["prompt_tokens"] + s.stats()["cached_tokens"] == before:  # not what runs now: it may have ended when we look
            assert time.time() < until, "the prompt does not begin"
        cut(raw)
        free_again(s, "in its prompt")
    several = [send(s, {**long, "stream": i % 2 == 0}) for i in range(8)]  # four run, four wait
    until = time.time() + 60
    while (now := s.stats())["running"] + now["waiting"] < 8:
        assert time.time() < until, now
        time.sleep(0.005)
    for raw in reversed(several):
        cut(raw)
    free_again(s, "in the queue")
    client = subprocess.Popen([sys.executable, "-c", f"""
import http.client, json
c = http.client.HTTPConnection("127.0.0.1", {s.port})
c.request("POST", "/v1/completions", json.dumps({{**{long!r}, "stream": True}}))
r = c.getresponse()
while r.read(1):
    print(flush=True)
"""], stdout=subprocess.PIPE)
    client.stdout.readline()
    client.kill()
    client.wait()
    free_again(s, "kill -9")


def complaints(s):
    """What users of other servers complain about, as far as no other test has it."""
    for bad in ({"temperature": 999999}, {"top_p": -1}, {"repetition_penalty": 0}, {"min_p": 2}, {"n": 10**9}, {"stop": ["x"] * 1000}, {"logit_bias": {"1": 1e9}},
                {"logit_bias": {"999999": 1}}, {"prompt": []}, {"prompt": [-1]}, {"stop_token_ids": [10**6]}, {"max_tokens": -1}, {"temprature": 1}, {"logprobs": 10**6}, {"min_tokens": -3}):
        assert s.json("/v1/completions", {"prompt": "x", "max_tokens": 2, **bad}, status=400)["error"]["message"], bad
    # A prompt that was there before is found again; a conversation that goes on is not read from its beginning.
    text = "Once upon a time there was a little dog who lived in a small house by the sea. " * 3
    first = s.json("/v1/completions", {"prompt": text + "A", "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    again = s.json("/v1/completions", {"prompt": text + "A" + first["choices"][0]["text"] + " and", "max_tokens": 1, "temperature": 0})
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0.5 * first["usage"]["prompt_tokens"], again["usage"]
    # Each request has the whole context, however many run at once.
    assert s.json("/v1/models")["data"][0]["max_model_len"] == 8192
    # A body with a chat template's values that make no sense is refused, not ignored.
    assert s.json("/v1/chat/completions", {"messages": [{"role": "user"}], "max_tokens": 1}, status=400)["error"]["message"]
    assert s.json("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "max_tokens": 1}, status=400)["error"]["message"]
    # Large bodies are refused while they are sent, with an answer that arrives.
    status, text, _ = s.ask("/v1/completions", raw=b'{"prompt": "' + b"x" * (17 << 20) + b'"}')
    assert status == 413 and "larger" in json.loads(text)["error"]["message"], status


def slips(s):
    """A field that is almost one of a route's is refused by name on each of them; bad values are, by the name the client gave."""
    say = [{"role": "user", "content": "x"}]
    for path, body, word in [
            ("/v1/responses", {"input": "x", "temprature": 1}, "temprature"), ("/v1/responses", {"input": "x", "max_output_token": 3}, "max_output_token"),
            ("/v1/responses", {"input": "x", "max_output_tokens": "3"}, "max_output_tokens"), ("/v1/responses", {"input": 3}, "input"), ("/v1/responses", {"input": []}, "input"),
            ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}, "schema"), ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"if": {}}}}}, "text.format"), ("/v1/responses", {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
            ("/v1/responses", {"input": [{"type": "image"}]}, "image"), ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, "web_search"),
            ("/v1/messages", {"messages": say, "max_tokens": 3, "temprature": 1}, "temprature"), ("/v1/messages", {"messages": say}, "max_tokens"),
            ("/v1/messages", {"messages": say, "max_tokens": 3, "stop_sequences": [1]}, "stop_sequences"), ("/v1/messages", {"messages": [{"role": "tool", "content": "x"}], "max_tokens": 3}, "role"),
            ("/v1/messages", {"messages": say, "max_tokens": 3, "tool_choice": {"type": "tool", "name": "f"}}, "tools"), ("/v1/messages", {"messages": say, "max_tokens": 0}, "max_tokens"),
            ("/v1/embeddings", {"inputs": "x"}, "inputs"), ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format")]:
        message = s.json(path, body, status=400)["error"]["message"]
        assert word in message, (path, body, message)
    # What is no field of OpenAI's or Anthropic's has its meaning there, too.
    asked = {"top_k": 1, "ignore_eos": True, "min_tokens": 5}
    greedy = s.json("/v1/responses", {"input": "x", "max_output_tokens": 6, "temperature": 0, "ignore_eos": True})["output"][0]["content"][0]["text"]
    assert s.json("/v1/responses", {"input": "x", "max_output_tokens": 6, **asked})["output"][0]["content"][0]["text"] == greedy
    assert s.json("/v1/messages", {"messages": say, "max_tokens": 6, **asked})["content"][0]["text"] == greedy


def other_weights(model, folder):
    """The same model with its weights turned around."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    with open(folder + "/model.safetensors", "r+b") as f:
        begin = 8 + struct.unpack("<Q", f.read(8))[0]
        f.seek(begin)
        numbers = struct.unpack(f"<{(os.path.getsize(folder + '/model.safetensors') - begin) // 4}f", f.read())
        f.seek(begin)
        f.write(struct.pack(f"<{len(numbers)}f", *reversed(numbers)))


def new_weights(program, model):
    """The admin's key lets other weights in, also while others ask; what cannot be taken leaves everything as it was."""
    other, keys = model + "_other", {"Authorization": "Bearer boss"}
    other_weights(model, other)
    s = Server(program, model, env={"SINTER_ADMIN_KEY": "boss"})
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}

    def text():
        return s.json("/v1/completions", body)["choices"][0]["text"]

    before = text()
    assert s.ask("/reload_weights", {})[0] == 401 and s.ask("/reload_weights", {"folder": other})[0] == 401
    for bad, word in [({"folder": model + "_nowhere"}, "not there"), ({"folder": 3}, "folder"), ({"path": other}, "path"),
                      ({"folder": os.path.dirname(os.path.abspath(__file__)) + "/golden/models/mixtral"}, "another model")]:
        message = s.json("/reload_weights", bad, 400, keys)["error"]["message"]
        assert word in message, message
    assert text() == before, "a refusal changed the model"
    asking = [threading.Thread(target=lambda: s.json("/v1/completions", {**body, "max_tokens": 300})) for _ in range(4)]
    for thread in asking:
        thread.start()
    s.json("/reload_weights", {"folder": other}, 200, keys)
    after = text()
    assert after != before, "the old weights answer"
    for thread in asking:
        thread.join()
    fresh = Server(program, other)
    assert fresh.json("/v1/completions", body)["choices"][0]["text"] == after, "not the answer of a server that began with these weights"
    assert fresh.ask("/reload_weights", {}, headers=keys)[0] == 403, "without an admin key there are no admin routes"
    assert fresh.end() == 0
    s.json("/reload_weights", {}, 200, keys)  # the folder that is served
    assert text() == before
    assert s.end() == 0


def load(s, *options):
    """The program's own clients (threads of Python wait for each other): rates, median time to the end."""
    command = [s.program, "bench", "serve", f"http://127.0.0.1:{s.port}", "--prompt-tokens", "8", "--output-tokens", "24", "--json", *map(str, options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, "a request ended neither in a result nor in 429"
    seen = json.loads(done.stdout)
    assert seen["serve_rates"]["failed"] == 0 and seen["serve_rates"]["requests"] > 0, seen
    return seen["serve_rates"], next(row["p50_ms"] for row in seen["serve_latency"] if row["what"] == "to the end")


def overload(program, model, seconds, turns):
    """At capacity as many clients as places, each asking again when it is answered; then arrivals at twice the rate that came of
    it. Each request ends in a result or a 429 with Retry-After, and the memory stays flat. How much longer those wait that were let
    in is printed, not judged: with the tiny model of this test most of it is HTTP, on the cores that the clients run on as well."""
    s = Server(program, model, "--max-running", "4", "--max-waiting", "1")

    def memory():
        return int(open(f"/proc/{s.process.pid}/statm").read().split()[1]) * 4096

    ratios, answered, refused, before = [], 0, 0, 0
    for turn in range(turns):  # in turns, because other work on the machine comes and goes
        part = seconds / turns / 2
        rates, at_capacity = load(s, "--clients", 4, "--seconds", part)
        assert rates["refused"] == 0, "refused at capacity"
        rate = 2 * rates["requests_per_second"]
        rates, beyond = load(s, "--clients", 64, "--rate", rate, "--requests", max(20, int(rate * part)))
        answered, refused = answered + rates["requests"], refused + rates["refused"]
        ratios.append(beyond / at_capacity)
        if turn == turns // 3:
            before = memory()
    growth, ratio = memory() - before, sorted(ratios)[turns // 2]
    print(f"overload at twice the capacity, {seconds:g} s: {answered:.0f} answered, {refused:.0f} refused with 429; median latency {ratio:.2f} of that at capacity "
          f"(in turns: {', '.join(f'{r:.2f}' for r in ratios)}); memory {growth / 2**20:+.1f} MiB in the last two thirds")
    assert refused > 0, "nothing was refused at twice the capacity"
    assert growth < 32 << 20, "memory grew"
    assert s.end() == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program"), parser.add_argument("model"), parser.add_argument("template")
    parser.add_argument("--overload", type=float, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--malformed", type=int, default=300)
    args = parser.parse_args()
    s = Server(args.program, args.model, "--chat-template", args.template, "--max-running", "4", "--max-waiting", "4", "--memory-bandwidth", "50")
    for step in (completions, chat, reasoning, structured, embeddings, more_than_the_queue, complaints, slips, leaving):
        step(s)
    errors(s, args.malformed)
    text = s.ask("/metrics")[1].decode()
    for name in ("sinter:num_requests_running", "sinter:time_to_first_token_seconds_bucket", "sinter:generation_tokens_total", "sinter:kv_cache_usage_perc"):
        assert name in text, name
    read = {name: float(line.rsplit(" ", 1)[1]) for line in text.split("\n") for name in ("read_bytes_total", "read_bytes_per_second", "memory_bandwidth_usage_perc")
            if line.startswith("sinter:") and name + "{" in line}
    assert read["read_bytes_total"] > 1e6 and read["read_bytes_per_second"] > 0, read
    assert abs(read["memory_bandwidth_usage_perc"] - read["read_bytes_per_second"] / 50e9) < 1e-6, read
    status, text, reply = s.ask("/")
    assert status == 200 and b"page.js" in text and "default-src 'none'" in reply.headers["Content-Security-Policy"]
    # SIGTERM: what is under way ends, then the program does.
    kept = []
    asked = threading.Thread(target=lambda: kept.append(s.ask("/v1/completions", {"prompt": "x", "max_tokens": 100, "ignore_eos": True})))
    asked.start()
    while s.stats()["running"] == 0 and asked.is_alive():
        pass
    assert s.end() == 0, "".join(s.stderr)
    asked.join()
    assert kept[0][0] == 200 and json.loads(kept[0][1])["usage"]["completion_tokens"] == 100, "the drain cut a request"

    keyed = Server(args.program, args.model, "--access-log", "/dev/full", env={"SINTER_API_KEY": "secret", "SINTER_ADMIN_KEY": "boss"})
    for path in ("/v1/models", "/metrics", "/stats", "/v1/nothing", "/tokenizer_info"):
        assert keyed.ask(path)[0] == 401, path
    assert keyed.ask("/health")[0] == 200 and keyed.ask("/ready")[0] == 200
    assert keyed.ask("/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
    assert keyed.ask("/v1/models", headers={"x-api-key": "secret"})[0] == 200
    assert keyed.ask("/v1/models", headers={"Authorization": "Bearer secre"})[0] == 401
    assert keyed.ask("/reset_prefix_cache", {}, headers={"Authorization": "Bearer secret"})[0] == 401
    assert keyed.ask("/reset_prefix_cache", {}, headers={"Authorization": "Bearer boss"})[0] == 200
    refused = keyed.json("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, 400, {"Authorization": "Bearer secret"})
    assert "no chat template" in refused["error"]["message"]
    assert keyed.end() == 0

    new_weights(args.program, args.model)
    overload(args.program, args.model, args.overload, args.turns)

    # A log that nobody takes lines from loses them, and the server goes on.
    pipe = args.model + "/../log"
    if os.path.exists(pipe):
        os.remove(pipe)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    full = Server(args.program, args.model, "--access-log", pipe)
    connection = http.client.HTTPConnection("127.0.0.1", full.port, timeout=60)
    for _ in range(1000):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
    connection.close()
    assert len(os.read(reader, 1 << 20)) > 50000, "the log was not full"
    assert full.end() == 0
    os.close(reader)

    # A closed log does not stop it; what does not end within the drain's time is cancelled, and said so.
    deaf = Server(args.program, args.model, "--access-log", "-", "--drain-seconds", "0.3", "--max-running", "2", is_read=False)
    for _ in range(3):
        assert deaf.ask("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    raws = [send(deaf, {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "n": 16, "stream": stream}) for stream in (False, True)]
    while (now := deaf.stats())["running"] + now["waiting"] < 28:  # both have come, neither has ended
        time.sleep(0.005)
    assert deaf.end() == 0
    for raw in raws:
        text = b""
        while piece := raw.recv(65536):
            text += piece
        assert b"shuts down" in text or b"[DONE]" in text or b" 200 OK" in text, text[-300:]


main()
