#!/usr/bin/env python3
"""A real Slurm on loopback: the job script of `sinter plan search --slurm` trains, is preempted, requeued, and resumes by itself.

Usage: slurm_test.py SINTER      (as root, with the packages slurm-wlm and munge; exit 77: they are not there)
Controller, node daemon and munge run from a temporary folder with ports, keys and a configuration of their own, and are
ended with it. Of the script only what names GPUs and cores is changed for this machine."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CONFIGURATION = """
ClusterName=sintertest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
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
[checkpoint]
dir = "run"
every = 1000000
"""


def ask(*command, check=True):
    return subprocess.run(command, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def wait_for(what, condition, seconds=120):
    end = time.time() + seconds
    while not condition():
        if time.time() > end:
            raise SystemExit("waited %d s for %s" % (seconds, what))
        time.sleep(0.2)


class Slurm:
    """The three daemons, ended with the object."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("munge", "state", "spool"):
            os.mkdir(os.path.join(folder, name))
        os.chmod(folder, 0o711)
        os.chmod(os.path.join(folder, "munge"), 0o755)
        key = os.path.join(folder, "munge", "key")
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o400), "wb") as out:
            out.write(os.urandom(64))
        port = 20000 + os.getpid() % 20000
        host = ask("hostname", "-s").strip()
        configuration = os.path.join(folder, "slurm.conf")
        with open(configuration, "w") as out:
            out.write(CONFIGURATION.format(dir=folder, host=host, port=port, node_port=port + 1, cpus=os.cpu_count()))
        os.environ["SLURM_CONF"] = configuration
        munge = os.path.join(folder, "munge")
        daemons = [["munged", "--foreground", "--force", "--num-threads=2"] +
                   ["--%s-file=%s/%s" % (name, munge, name) for name in ("key", "log", "pid", "seed")] +
                   ["--socket=%s/socket" % munge], ["slurmctld", "-D"], ["slurmd", "-D"]]
        self.daemons = []
        for daemon in daemons:
            self.daemons.append(subprocess.Popen(daemon, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(1)
        wait_for("the node", lambda: "idle" in ask("sinfo", "-h", "-o", "%t", check=False), 60)

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()


def write_inputs(folder, sinter):
    lines = ["the cat sat on the mat number %d and then it was %s" % (i, "happy sad red big".split()[i % 4])
             for i in range(600)]
    with open(os.path.join(folder, "text.txt"), "w") as out:
        out.write("<|endoftext|>".join(lines))
    subprocess.run([sinter, "tokenizer", "train", "text.txt", "--out", "tok", "--vocab-size", "300"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write_job(folder, sinter):
    """The planner's script for two devices, without what this machine has not."""
    job = os.path.join(folder, "job.sh")
    ask(sinter, "plan", "search", "gpt2", "--gpus", "2xH100", "--recipe", os.path.join(folder, "unused.toml"), "--slurm", job,
        "--hours", "1", "--job", "test")
    with open(job) as f:
        text = f.read()
    text = re.sub(r"#SBATCH --gpus-per-node=.*\n", "", text)
    text = re.sub(r"#SBATCH --cpus-per-task=.*", "#SBATCH --overcommit", text)
    text = re.sub(r"--cpu-bind=\w+", "--overcommit", text)
    text = re.sub(r"(?m)^recipe=.*", "recipe=run.toml\nexport PMIX_MCA_gds=hash OMPI_MCA_btl=self,tcp "
                  "OMPI_MCA_mpi_yield_when_idle=1 SINTER_THREADS=1 PATH=%s:$PATH" % os.path.dirname(sinter), text)
    with open(job, "w") as out:
        out.write(text)


def steps_of(folder):
    try:
        with open(os.path.join(folder, "run", "metrics.jsonl")) as f:
            return [json.loads(line)["step"] for line in f if line.endswith("\n")]
    except OSError:
        return []


def state_of(job):
    return ask("squeue", "-h", "-j", job, "-o", "%T", check=False).strip()


def log_of(folder):
    return "".join(open(os.path.join(folder, name)).read() for name in os.listdir(folder) if name.endswith(".log"))


def run_job(folder, sinter):
    with open(os.path.join(folder, "run.toml"), "w") as out:
        out.write(RECIPE.format(steps=100000))
    write_job(folder, sinter)
    os.chdir(folder)
    job = ask("sbatch", "--parsable", "job.sh").strip()
    wait_for("the first steps", lambda: len(steps_of(folder)) > 20 or state_of(job) == "")
    if not steps_of(folder):
        raise SystemExit("the job ended without a step:\n" + log_of(folder))
    ask("scontrol", "requeue", job)  # as a preemption does: SIGTERM, and the job is queued again
    wait_for("its checkpoint", lambda: os.path.exists("run/latest/state/index.json"))
    saved = json.load(open("run/latest/state/index.json"))["step"]
    wait_for("the queue to take it back", lambda: state_of(job) == "PENDING")
    ask("scontrol", "update", "jobid=" + job, "starttime=now")
    wait_for("steps after the checkpoint", lambda: max(steps_of(folder)) > saved + 20, 300)
    if "resumed from" not in log_of(folder):
        raise SystemExit("the log does not tell of a resumption:\n" + log_of(folder))
    steps = steps_of(folder)
    ask("scancel", job)
    wait_for("the end of the job", lambda: state_of(job) == "", 90)
    if steps != list(range(1, len(steps) + 1)):
        raise SystemExit("steps are missing or told twice: %s" % steps[:100])
    print("job %s: preempted and saved after step %d, resumed by itself, at step %d" % (job, saved, steps[-1]))


def main():
    sinter = os.path.abspath(sys.argv[1])
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("slurmctld", "slurmd", "munged", "sbatch")):
        print("needs root and the packages slurm-wlm and munge")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        work = os.path.join(folder, "work")
        os.mkdir(work)
        write_inputs(work, sinter)
        slurm = Slurm(folder)
        try:
            run_job(work, sinter)
        except SystemExit:
            for name in ("slurmctld.log", "slurmd.log"):
                print(open(os.path.join(folder, name)).read()[-3000:], file=sys.stderr)
            print(log_of(work), file=sys.stderr)
            raise
        finally:
            slurm.end()


main()
