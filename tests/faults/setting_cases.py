"""Sizes that no machine has."""

from campaign import main

SIZES = {
    "group": main({"rollout.group_size": "10000000000"}, "rollout.group_size", "out of range"),
    "vocabulary": main({"model.vocab_size": "100000000000"}, "model.vocab_size", "iB"),
    "samples of a set": main({"evaluation.sets.a.path": "{here}/a.jsonl",
                              "evaluation.sets.a.samples": "100000"}, "evaluation.sets.a.samples"),
    "verifiers": main({"task.data.path": "{here}/a.jsonl", "task.verifier_workers": "100000"},
                      "task.verifier_workers", kind="data"),
}
