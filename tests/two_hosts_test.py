#!/usr/bin/env python3
"""Two hosts, each a network namespace with a name of its own, train over TCP; when the link between them is cut the run ends
with an error, and it goes on when the link is there again.

Usage: two_hosts_test.py SINTER      (as root with ip and unshare; exit 77: this machine does not allow namespaces)"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

RECIPE = """
[model]
family = "llama"
hidden = 32
layers = 3
heads = 4
ffn = 64
vocab_size = 300
[data]
sources = "text.txt"
tokenizer = "tok"
sequence_length = 32
[train]
steps = {steps}
micro_batch = 2
batch_tokens = 256
threads = 1
[schedule]
kind = "constant"
[parallel]
zero = 1
timeout = 8
[checkpoint]
dir = "run"
every = 10
"""
NET = "10.213.%d" % (os.getpid() % 250)
NAMES = ["sinter-a-%d" % os.getpid(), "sinter-b-%d" % os.getpid()]
LINKS = ["sa%d" % os.getpid(), "sb%d" % os.getpid()]
LIMIT_SECONDS = 60


def ask(*command, check=True):
    return subprocess.run(command, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def make_hosts():
    for name in NAMES:
        ask("ip", "netns", "add", name)
    ask("ip", "link", "add", LINKS[0], "netns", NAMES[0], "type", "veth", "peer", "name", LINKS[1], "netns", NAMES[1])
    for i, (name, link) in enumerate(zip(NAMES, LINKS)):
        ask("ip", "-n", name, "addr", "add", "%s.%d/24" % (NET, i + 1), "dev", link)
        ask("ip", "-n", name, "link", "set", link, "up")
        ask("ip", "-n", name, "link", "set", "lo", "up")


def end_hosts():
    for name in NAMES:
        for pid in ask("ip", "netns", "pids", name, check=False).split():
            if pid.isdigit():
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    pass
        ask("ip", "netns", "del", name, check=False)


def write_inputs(folder, sinter):
    lines = ["the cat sat on the mat number %d and then it was %s" % (i, "happy sad red big".split()[i % 4])
             for i in range(600)]
    with open(os.path.join(folder, "text.txt"), "w") as out:
        out.write("<|endoftext|>".join(lines))
    subprocess.run([sinter, "tokenizer", "train", "text.txt", "--out", "tok", "--vocab-size", "300"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # In the place of ssh: AGENT [options] HOST COMMAND...
    agent = os.path.join(folder, "agent.sh")
    with open(agent, "w") as out:
        out.write("#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nshift\n"
                  "exec ip netns exec %s unshare --uts sh -c 'hostname hostb; exec sh -c \"$0\"' \"$*\"\n" % NAMES[1])
    os.chmod(agent, 0o755)


def start(folder, sinter, steps):
    with open(os.path.join(folder, "run.toml"), "w") as out:
        out.write(RECIPE.format(steps=steps))
    command = ["mpirun", "--host", "%s.1:1,%s.2:1" % (NET, NET), "-n", "2", "--mca", "plm_rsh_agent", folder + "/agent.sh",
               "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", NET + ".0/24", "--mca", "oob_tcp_if_include",
               NET + ".0/24", "--mca", "oob_tcp_keepalive_time", "5", "--mca", "oob_tcp_keepalive_intvl", "2", "--mca",
               "oob_tcp_keepalive_probes", "3", "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none", "-wdir", folder, "-x",
               "SINTER_THREADS", sinter, "train", "-q", "run.toml"]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    inside = ["ip", "netns", "exec", NAMES[0], "unshare", "--uts", "sh", "-c", 'hostname hosta; exec "$0" "$@"'] + command
    return subprocess.Popen(inside, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=dict(os.environ, SINTER_THREADS="1"))


def steps_of(folder):
    try:
        with open(os.path.join(folder, "run", "metrics.jsonl")) as f:
            return [json.loads(line)["step"] for line in f if line.endswith("\n")]
    except OSError:
        return []


def run(folder, sinter):
    process = start(folder, sinter, 100000)
    begin = time.time()
    while len(steps_of(folder)) < 25:
        if process.poll() is not None or time.time() - begin > 120:
            process.kill()
            sys.exit("the run did not come to its 25th step:\n" + process.communicate()[0])
        time.sleep(0.1)
    ask("ip", "-n", NAMES[0], "link", "set", LINKS[0], "down")
    begin = time.time()
    try:
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        pids = [pid for name in NAMES for pid in ask("ip", "netns", "pids", name, check=False).split()]
        left = ask("ps", "-o", "pid,etime,args", "-p", ",".join(pids), check=False)
        process.kill()
        end_hosts()
        sys.exit("%d s after the link was cut the run had not ended:\n%s\n%s" %
                 (LIMIT_SECONDS, left, process.communicate()[0]))
    seconds = time.time() - begin
    if process.returncode == 0:
        sys.exit("the run ended well without its link:\n" + out)
    if "rank" not in out and "host" not in out:
        sys.exit("no message says what is gone:\n" + out)
    for pid in ask("ip", "netns", "pids", NAMES[1], check=False).split():  # the daemon of the host that is cut off
        ask("kill", "-9", pid, check=False)
    ask("ip", "-n", NAMES[0], "link", "set", LINKS[0], "up")
    reached = json.load(open(os.path.join(folder, "run", "latest", "state", "index.json")))["step"]
    process = start(folder, sinter, reached + 10)
    out, _ = process.communicate(timeout=180)
    steps = steps_of(folder)
    if process.returncode != 0 or steps != list(range(1, reached + 11)):
        sys.exit("with the link again the run did not go on to step %d: %s\n%s" % (reached + 10, steps[-3:], out))
    print("link cut: ended after %.1f s with an error; went on from step %d" % (seconds, reached))


def main():
    sinter = os.path.abspath(sys.argv[1])
    can = os.geteuid() == 0 and shutil.which("ip") and shutil.which("unshare") and shutil.which("mpirun")
    if not can or "x" in ask("ip", "netns", "add", NAMES[0] + "x", check=False):
        print("needs root and network namespaces")
        sys.exit(77)
    ask("ip", "netns", "del", NAMES[0] + "x")
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(folder, sinter)
        try:
            make_hosts()
            run(folder, sinter)
        finally:
            end_hosts()


main()
