#!/usr/bin/env python3
"""lm-evaluation-harness asks the server (`local-completions`) and gets the numbers of `sinter eval`. Exit status 77 where
it is not installed.

usage: lm_eval_test.py PROGRAM SCRATCH
"""
import importlib.util
import json
import os
import random
import subprocess
import sys

program, scratch = sys.argv[1:3]
if not all(importlib.util.find_spec(name) for name in ("lm_eval", "transformers", "aiohttp", "tenacity")):
    print("lm-evaluation-harness is not installed: left out")
    sys.exit(77)
model = os.path.dirname(os.path.abspath(__file__)) + "/golden/eval/models/tiny-gpt2"
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HOME=scratch + "/hf")
os.makedirs(scratch, exist_ok=True)
os.chdir(scratch)

draw = random.Random(3)
words = "the a dog cat sky sea blue red old new runs sleeps sees under over little house tree and then".split()
with open("mine.jsonl", "w") as f:
    for _ in range(60):
        question = " ".join(draw.choices(words, k=draw.randint(3, 12)))
        options = [" ".join(draw.choices(words, k=draw.randint(1, 5))) for _ in range(4)]
        f.write(json.dumps({"question": question, "options": options, "right": draw.randrange(4)}) + "\n")
with open("mine.toml", "w") as f:
    f.write('task = "mine"\nkind = "multiple_choice"\ncontext = "{{question}}"\nchoices = "{{options}}"\ntarget = "right"\n'
            'metrics = ["acc", "acc_norm"]\n[data]\ntest = "mine.jsonl"\n')
os.makedirs("tasks", exist_ok=True)
with open("tasks/mine.yaml", "w") as f:
    f.write("task: mine\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: mine.jsonl\ntest_split: test\noutput_type: multiple_choice\n"
            'doc_to_text: "{{question}}"\ndoc_to_choice: "{{options}}"\ndoc_to_target: right\nmetric_list:\n'
            + "".join(f"  - metric: {m}\n    aggregation: mean\n    higher_is_better: true\n" for m in ("acc", "acc_norm")))

own = json.loads(subprocess.run([program, "eval", "mine.toml", model, "--json"], capture_output=True, text=True, check=True).stdout)["results"]["mine"]
server = subprocess.Popen([program, "serve", model, "--port", "0"], stdout=subprocess.PIPE, text=True)
try:
    address = server.stdout.readline().strip()
    import lm_eval
    from lm_eval.tasks import TaskManager

    result = lm_eval.simple_evaluate(
        model="local-completions", tasks=["mine"], task_manager=TaskManager(include_path="tasks", include_defaults=False), bootstrap_iters=0,
        model_args={"model": os.path.basename(model), "base_url": address + "/v1/completions", "tokenizer": model, "num_concurrent": 4, "max_retries": 1})
finally:
    server.terminate()
theirs = result["results"]["mine"]
for key in ("acc,none", "acc_norm,none"):
    assert abs(own[key] - theirs[key]) < 1e-9, (key, own[key], theirs[key])
print(f"lm-evaluation-harness through the server and `sinter eval`: acc {own['acc,none']:.4f}, acc_norm {own['acc_norm,none']:.4f}")
