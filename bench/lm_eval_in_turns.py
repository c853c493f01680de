#!/usr/bin/env python3
"""HellaSwag by `sinter eval` and by lm-evaluation-harness (transformers, float32) in turns, on the same cores.

    taskset -c 0,1 python3 bench/lm_eval_in_turns.py build/sinter MODEL DATA [--questions 1000] [--rounds 3]

MODEL is a Hugging Face folder; DATA holds hellaswag/train.jsonl and hellaswag/validation.jsonl, as `sinter eval --data`
wants it. The peer's time is that of simple_evaluate with the model already open; ours is the whole process. Printed for
each round: seconds and processor seconds of both, and their ratios; at the end the medians, and whether accuracies are
equal. Of --batch-sizes the peer's fastest counts. Needs lm_eval, torch and transformers.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", LMEVAL_LOG_LEVEL="ERROR")


class Peer:
    """lm-evaluation-harness with the model open; its own task file reads the local documents."""

    def __init__(self, model, data, threads):
        import torch
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        make_tokenizer = lambda **special: PreTrainedTokenizerFast(  # noqa: E731
            tokenizer_file=f"{model}/tokenizer.json", clean_up_tokenization_spaces=False, **special)
        text_of = make_tokenizer().convert_ids_to_tokens
        config = self.model.config
        tokenizer = make_tokenizer(bos_token=text_of(config.bos_token_id), eos_token=text_of(config.eos_token_id))
        self.tokenizer, self.make = tokenizer, HFLM
        self.tasks = TaskManager()
        files = {split: os.path.abspath(f"{data}/hellaswag/{split}.jsonl") for split in ("train", "validation")}
        self.overrides = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}

    def run(self, questions, batch_size):
        from lm_eval.evaluator import simple_evaluate

        tokenizer = self.tokenizer
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        lm = self.make(pretrained=self.model, tokenizer=tokenizer, batch_size=batch_size)
        task = self.tasks._factory.build(self.tasks._index["hellaswag"], overrides=self.overrides, registry=self.tasks._index)
        wall, processor = time.perf_counter(), time.process_time()
        result = simple_evaluate(model=lm, tasks=[task], limit=questions, bootstrap_iters=0)
        return time.perf_counter() - wall, time.process_time() - processor, result["results"]["hellaswag"]


def run_sinter(program, model, data, questions):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter()
    command = [program, "eval", "hellaswag", model, "--data", data, "--limit", str(questions), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, processor, report["results"]["hellaswag"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", default="1,16", help="of the peer, comma between them")
    args = parser.parse_args()
    peer = Peer(args.model, args.data, len(os.sched_getaffinity(0)))
    run_sinter(args.program, args.model, args.data, 8)  # files into memory
    peer.run(8, 1)
    walls, processors, same = [], [], True
    for turn in range(args.rounds):
        wall, processor, ours = run_sinter(args.program, args.model, args.data, args.questions)
        runs = {int(b): peer.run(args.questions, int(b)) for b in args.batch_sizes.split(",")}
        best = min(runs, key=lambda b: runs[b][0])
        peer_wall, peer_processor, theirs = runs[best]
        walls.append(peer_wall / wall)
        processors.append(peer_processor / processor)
        same = same and all(abs(ours[key] - theirs[key]) < 1e-9 for key in ("acc,none", "acc_norm,none"))
        print(f"round {turn + 1}: sinter {wall:.2f} s ({processor:.2f} s of processors), lm-eval {peer_wall:.2f} s "
              f"({peer_processor:.2f} s) at batch size {best}: {walls[-1]:.1f} x ({processors[-1]:.1f} x)", flush=True)
        if turn == 0:
            print("  all batch sizes: " + ", ".join(f"{b}: {run[0]:.2f} s ({run[1]:.2f} s)" for b, run in runs.items()))
    print(f"median of {args.rounds} rounds over {args.questions} questions: {statistics.median(walls):.1f} x faster, "
          f"{statistics.median(processors):.1f} x less processor time; accuracies are {'equal' if same else 'NOT equal'}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
