#!/usr/bin/env python3
"""`sinter chat` on a pseudo-terminal: editing, history, Ctrl-C, commands.

usage: chat_test.py PROGRAM MODEL SCRATCH
"""
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

program, model, scratch = sys.argv[1:4]


class Chat:
    def __init__(self, *options):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "XDG_STATE_HOME": scratch + "/state"}
            os.execve(program, [program, "chat", model, "--ignore-eos", "--temperature", "0", *options], environment)
        self.seen = ""

    def read(self, seconds=0.1):
        if select.select([self.terminal], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

    def until(self, words, seconds=60):
        end = time.time() + seconds
        while words not in self.seen:
            assert self.read() and time.time() < end, f"'{words}' does not come:\n{self.seen}"
        before, self.seen = self.seen.split(words, 1)
        return before

    def type(self, text):
        os.write(self.terminal, text.encode())

    def end(self):
        end = time.time() + 60
        while self.read():
            assert time.time() < end, self.seen
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def main():
    has_editing = b"libedit" in subprocess.run(["ldd", program], capture_output=True).stdout
    c = Chat("--max-tokens", "8")
    c.until("> ")
    c.type("/help\r")
    c.until("/regen")
    c.until("> ")
    c.type("/resett\r")
    c.until("there is no /resett; did you mean 'reset'")
    c.until("/help lists")
    c.type("/regen\r")
    c.until("no answer yet")
    c.type("Once upon\r")
    c.until("Once upon")
    c.until("> ")
    c.type("/system Be short.\r/system\r")
    c.until("Be short.")
    c.until("Be short.")
    c.type(f"/save {scratch}/talk.jsonl\r")
    c.until("the conversation is in")
    c.type("/regen\r")
    c.until("Once upon")
    c.type("/exit\r")
    assert c.end() == 0
    saved = json.loads(open(scratch + "/talk.jsonl").read())
    assert saved["text"].startswith("Be short.Once upon") and len(saved["text"]) > len("Be short.Once upon"), saved

    # Ctrl-C ends the answer, then clears a line; what is typed meanwhile is not mixed into the answer.
    c = Chat("--max-tokens", "100000")
    c.until("> ")
    c.type("A dog")
    c.until("dog")
    c.type("\r")
    time.sleep(1)
    c.type("qqqqq")
    time.sleep(0.5)
    c.read()
    c.type("\x03")
    answer = c.until("[stopped]")
    assert "qqqqq" not in answer, answer
    c.until("> ")
    for pause in [0] * 10 + [0.05] * 3:  # at once Ctrl-C may come before the line's reading has begun
        c.type("half a line")
        time.sleep(pause)
        c.type("\x03")
        c.until("> ")
    if has_editing:
        c.type("héé…")
        c.until("héé…")
        c.type("\x03")
        c.until("> ")
    if has_editing:
        c.type("/syste\x1b[D\x1b[D\x1b[Dx\x1b[3~\x15/exix\x7ft\r")  # arrows, delete, erase the line, backspace
    else:
        c.type("/exit\r")
    assert c.end() == 0
    if has_editing:  # the last line of the first conversation but one comes back by the arrow
        c = Chat("--max-tokens", "2")
        c.until("> ")
        c.type("\x1b[A\r")
        assert c.end() == 0, "history does not bring /exit back"
        assert (os.stat(scratch + "/state/sinter/chat_history").st_mode & 0o77) == 0, "others can read the history"

    # Without a terminal: lines from a pipe, Ctrl-C ends the program.
    piped = subprocess.run([program, "chat", model, "--max-tokens", "4", "--ignore-eos"], input="Hello\n/nothing\n//slash\n/exit\nmore\n", capture_output=True, text=True, timeout=120)
    assert piped.returncode == 0 and "Hello" in piped.stdout and "/slash" in piped.stdout and "more" not in piped.stdout, piped
    assert "there is no /nothing" in piped.stderr, piped.stderr
    job = subprocess.Popen([program, "chat", model, "--max-tokens", "1000000", "--ignore-eos"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    job.stdin.write(b"Hello\n")
    job.stdin.flush()
    job.stdout.read(20)
    job.send_signal(signal.SIGINT)
    assert job.wait(timeout=60) == -signal.SIGINT


main()
