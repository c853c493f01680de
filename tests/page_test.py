#!/usr/bin/env python3
"""The server's page in a real Chromium: chat, stop, regenerate, edit, settings, schema, token colours, charts, themes,
phone width, keys. Exit status 77 where there is no Chromium. Only Python's own library.

usage: page_test.py PROGRAM MODEL CHAT_TEMPLATE [--shots FOLDER]    (FOLDER gets screenshots to look at)
"""
import argparse
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request


class Browser:
    """Chromium's remote debugging over its WebSocket."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp()
        self.process = subprocess.Popen([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
                                         "--disable-background-networking", f"--user-data-dir={self.folder}", "about:blank"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = self.folder + "/DevToolsActivePort"
        for _ in range(600):
            if os.path.exists(port_file) and open(port_file).read().count("\n") >= 1:
                break
            time.sleep(0.1)
        port = int(open(port_file).readline())
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=60))
        path = next(p for p in pages if p["type"] == "page")["webSocketDebuggerUrl"].split(str(port), 1)[1]
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.held = b""
        while b"\r\n\r\n" not in self.held:
            self.held += self.socket.recv(4096)
        self.held = self.held.split(b"\r\n\r\n", 1)[1]
        self.number, self.problems = 0, []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def take(self, count):
        while len(self.held) < count:
            piece = self.socket.recv(65536)
            assert piece, "Chromium has gone"
            self.held += piece
        out, self.held = self.held[:count], self.held[count:]
        return out

    def receive(self):
        text = b""
        while True:
            head = self.take(2)
            length = head[1] & 127
            if length >= 126:
                length = struct.unpack(">H" if length == 126 else ">Q", self.take(2 if length == 126 else 8))[0]
            text += self.take(length)
            if head[0] & 128:
                return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        data, mask = json.dumps({"id": self.number, "method": method, "params": params}).encode(), os.urandom(4)
        size = bytes([128 | len(data)]) if len(data) < 126 else bytes([254]) + struct.pack(">H", len(data)) if len(data) < 65536 else bytes([255]) + struct.pack(">Q", len(data))
        self.socket.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                assert "error" not in message, (method, message)
                return message["result"]
            kind, about = message.get("method"), message.get("params", {})
            if kind == "Runtime.exceptionThrown":
                self.problems.append(about["exceptionDetails"].get("exception", {}).get("description") or about["exceptionDetails"]["text"])
            if kind == "Log.entryAdded" and about["entry"]["level"] == "error":
                self.problems.append(about["entry"]["text"] + " " + about["entry"].get("url", ""))

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=f"(async () => {{ {script} }})()", awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, condition, seconds=60):
        end = time.time() + seconds
        while not self.run(f"return !!({condition})"):
            assert time.time() < end, f"does not come true: {condition}; {self.problems}"
            time.sleep(0.05)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && document.getElementById('model')?.textContent")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, code=0, modifiers=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, modifiers=modifiers, **({"text": text} if text and kind == "keyDown" else {}))

    def enter(self):
        self.key("Enter", 13, text="\r")

    def hover(self, selector):
        x, y = self.run(f"const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2];")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def size(self, width, height, is_phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if is_phone else 1, mobile=is_phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def shot(self, folder, name):
        if folder:
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{name}.png", "wb") as f:
                f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


ASSISTANT = "[...document.querySelectorAll('.turn.assistant .text')]"


def ask(b, text):
    b.run("document.getElementById('input').focus()")
    count = b.run(f"return {ASSISTANT}.length")
    b.type(text)
    b.enter()
    b.until(f"{ASSISTANT}.length > {count} && document.getElementById('stop').hidden")


def is_wider_than_screen(b):
    return b.run("return document.documentElement.scrollWidth > innerWidth + 1")


def contrast(b, selector):
    """Of an element's text against the page behind it, by WCAG's formula."""
    return b.run("""
      const colour = c => c.match(/[\\d.]+/g).map(Number);
      const light = c => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
      let e = document.querySelector(%s), back = e;
      const front = light(colour(getComputedStyle(e).color));
      while (back && (colour(getComputedStyle(back).backgroundColor)[3] ?? 1) === 0) back = back.parentElement;
      const behind = light(colour(getComputedStyle(back || document.body).backgroundColor));
      return (Math.max(front, behind) + .05) / (Math.min(front, behind) + .05);""" % json.dumps(selector))


def chat_page(b, url, shots):
    b.size(1200, 800)
    b.open(url)
    b.shot(shots, "empty_light")
    ask(b, "Hello there")
    first = b.run(f"return {ASSISTANT}.at(-1).textContent")
    assert first and "Hello there" in b.run("return document.getElementById('list').textContent"), "the conversation has no title"
    # Another answer: the same turn, not one more.
    b.run("[...document.querySelectorAll('.turn.assistant button')].find(x => x.textContent === 'Regenerate').click()")
    b.until("document.getElementById('stop').hidden")
    assert b.run(f"return {ASSISTANT}.length") == 1 and not b.run("return document.querySelector('.error')?.textContent")
    ask(b, "And then?")
    assert b.run(f"return {ASSISTANT}.length") == 2
    # Editing the first line forgets what came after it.
    b.run("[...document.querySelectorAll('.turn.user button')].find(x => x.textContent === 'Edit').click()")
    b.until("document.activeElement.tagName === 'TEXTAREA' && document.activeElement.closest('.turn')")
    b.type(" my friend")
    b.enter()
    b.until(f"{ASSISTANT}.length === 1 && document.getElementById('stop').hidden")
    assert "Hello there my friend" in b.run("return document.querySelector('.turn.user .text').textContent")
    # Stop: Esc ends a long answer; what came stays.
    b.run("const f = document.getElementById('s-max_tokens'); f.value = 1500; f.onchange();")
    b.run("document.getElementById('input').focus()")
    b.type("A long one")
    b.enter()
    b.until(f"{ASSISTANT}.at(-1)?.textContent.length > 20 && !document.getElementById('stop').hidden")
    b.key("Escape", 27)
    b.until("document.getElementById('stop').hidden")
    assert b.run(f"return {ASSISTANT}.at(-1).textContent.length") > 20 and not b.run("return document.querySelector('.error')?.textContent")
    b.run("const f = document.getElementById('s-max_tokens'); f.value = 40; f.onchange();")


def settings(b, url, shots):
    b.run("document.getElementById('show-settings').click()")
    b.shot(shots, "settings")
    schema = json.dumps({"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"], "additionalProperties": False})
    b.run(f"const f = document.getElementById('s-schema'); f.value = {json.dumps(schema)}; f.onchange();")
    ask(b, "Is it so?")
    assert json.loads(b.run(f"return {ASSISTANT}.at(-1).textContent"))["answer"] in ("yes", "no")
    b.run("const f = document.getElementById('s-schema'); f.value = '{oops'; f.onchange();")
    ask(b, "And now?")
    assert "not JSON" in b.run("return [...document.querySelectorAll('.error')].at(-1).textContent")
    b.run("const f = document.getElementById('s-schema'); f.value = '{\"type\": \"object\", \"if\": {}}'; f.onchange();")
    ask(b, "And that?")
    assert "if" in b.run("return [...document.querySelectorAll('.error')].at(-1).textContent")
    b.problems = [p for p in b.problems if "400" not in p]  # the browser's own line about the refusal
    b.run("const f = document.getElementById('s-schema'); f.value = ''; f.onchange();")
    b.run("const f = document.getElementById('s-probs'); f.checked = true; f.onchange();")
    b.run("document.getElementById('show-settings').click()")
    ask(b, "Colours?")
    assert b.run("return document.querySelectorAll('.turn.assistant:last-child .token').length") > 5
    b.hover(".turn.assistant:last-child .token")
    b.until("!document.getElementById('tip').hidden")
    assert b.run("return document.querySelectorAll('#tip div').length") >= 5, "no alternatives"
    b.shot(shots, "tokens_light")
    b.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    b.run("document.getElementById('show-charts').click()")
    ask(b, "Charts?")
    b.until("document.querySelector('#c-kv polyline')?.getAttribute('points').split(' ').length > 1")
    b.shot(shots, "charts_light")
    b.scheme("dark")
    b.shot(shots, "charts_dark")
    b.run("document.getElementById('show-charts').click()")
    for scheme in ("light", "dark"):
        b.scheme(scheme)
        for selector in ("#title", ".turn.user .text", ".turn.assistant .text", ".who", "#hint", "#send", "#new", ".error"):
            assert contrast(b, selector) >= 4.5, f"{selector} is hard to read in {scheme}: {contrast(b, selector):.2f}"
    b.shot(shots, "talk_dark")
    # What was said is there after loading the page again; the theme's button wins over the system's scheme.
    turns = b.run("return document.querySelectorAll('.turn').length")
    b.scheme("light")
    b.run("document.getElementById('theme').click()")
    b.open(url)
    assert b.run("return document.querySelectorAll('.turn').length") == turns and b.run("return document.documentElement.dataset.theme") == "dark"
    b.run("document.getElementById('theme').click()")
    # Where the browser's room is full the newest conversation is kept all the same.
    b.run("localStorage.setItem('other', 'x'.repeat(4000000))")
    b.run("talks.push(...[...Array(40).keys()].map(i => ({ id: i, title: 'old', turns: [{ role: 'assistant', text: 'y'.repeat(50000), tokens: [] }] })))")
    ask(b, "Still there?")
    b.run("localStorage.removeItem('other')")
    b.open(url)
    said = b.run("return document.getElementById('talk').textContent")
    assert "Still there?" in said, said[-300:]
    b.run("talks = talks.filter(t => t.title !== 'old'); save(); show();")


def phone(b, shots):
    b.size(360, 740, is_phone=True)
    b.shot(shots, "phone_light")
    assert not is_wider_than_screen(b), "wider than a phone"
    for name in ("show-settings", "show-charts"):
        b.run(f"document.getElementById('{name}').click()")
        assert not is_wider_than_screen(b), name
        b.shot(shots, "phone_" + name)
        b.run(f"document.getElementById('{name}').click()")
    b.run("document.getElementById('menu').click()")
    b.until("document.getElementById('side').getBoundingClientRect().left >= -1")
    b.shot(shots, "phone_menu")
    b.key("Escape", 27)
    b.until("document.getElementById('side').getBoundingClientRect().right <= 1")
    b.run("document.getElementById('menu').click()")  # a phone has no such key: a touch beside the menu
    b.until("document.getElementById('side').getBoundingClientRect().left >= -1")
    for kind in ("mousePressed", "mouseReleased"):
        b.call("Input.dispatchMouseEvent", type=kind, x=340, y=400, button="left", clickCount=1)
    b.until("document.getElementById('side').getBoundingClientRect().right <= 1")
    small = b.run("return [...document.querySelectorAll('header button, #form button')].filter(e => e.offsetParent && e.getBoundingClientRect().height < 30).map(e => e.id)")
    assert not small, f"too small for a finger: {small}"
    b.size(1200, 800)


def keys(b):
    b.key("O", 79, modifiers=10)  # Ctrl+Shift
    b.until("document.getElementById('title').textContent === 'New conversation' && document.activeElement.id === 'input'")
    b.type("one")
    b.key("Enter", 13, modifiers=8, text="\r")
    assert b.run("return document.getElementById('input').value") == "one\n" and b.run("return document.querySelectorAll('.turn').length") == 0
    # Every control can be reached by Tab and shows that it has the focus.
    seen = set()
    for _ in range(40):
        b.key("Tab", 9)
        seen.add(b.run("return document.activeElement.id || document.activeElement.parentElement?.parentElement?.id"))
    assert {"new", "theme", "show-settings", "show-charts", "send", "list"} <= seen, seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program"), parser.add_argument("model"), parser.add_argument("template")
    parser.add_argument("--shots", default="")
    args = parser.parse_args()
    chromium = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
    if not chromium:
        print("no Chromium: left out")
        sys.exit(77)
    server = subprocess.Popen([args.program, "serve", args.model, "--port", "0", "--chat-template", args.template], stdout=subprocess.PIPE, text=True)
    url = server.stdout.readline().strip() + "/"
    b = Browser(chromium)
    try:
        chat_page(b, url, args.shots)
        settings(b, url, args.shots)
        phone(b, args.shots)
        keys(b)
        assert not b.problems, b.problems
        outside = b.run("return performance.getEntriesByType('resource').map(r => r.name).filter(n => !n.startsWith(location.origin))")
        assert not outside, outside
        made = b.call("Runtime.evaluate", expression="try { eval('1') } catch { 'blocked' }", allowUnsafeEvalBlockedByCSP=False, returnByValue=True)
        assert made["result"]["value"] == "blocked", "the Content-Security-Policy lets eval run"
    finally:
        b.end()
        server.terminate()
    assert server.wait(timeout=60) == 0
    print("page: chat, settings, phone, keys")


main()
