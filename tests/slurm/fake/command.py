"""A fake Slurm command: writes its call down and answers what `FakeSlurm.answers` told it."""

import json
import os
import sys
import time

FOLDER = os.environ["FAKE_SLURM"]
command = os.path.basename(sys.argv[0])
call = {"command": command, "argv": sys.argv[1:], "environment": dict(os.environ)}
with open(f"{FOLDER}/calls.jsonl", "a") as calls:
    calls.write(json.dumps(call) + "\n")


def holds(rule):
    left = iter([command, *sys.argv[1:]])
    return all(any(word == other for other in left) for word in rule["words"])


try:
    with open(f"{FOLDER}/answers.json") as answers:
        rules = json.load(answers)
except FileNotFoundError:
    rules = []
answer = next((rule for rule in rules if holds(rule)), None)
if answer is None:
    sys.exit(f"{command}: error: the fake has no answer to {sys.argv[1:]}")
time.sleep(answer["seconds"])
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["code"])
