"""Keys and values on the command line that tests/runs/test_bad_input.py does not have, and sizes
that no machine has.
"""

from campaign import SMALL, Case, main

WARM = {"warm_start.steps": "2"}
LORA = {"parameters.train": "lora"}

KEYS = {
    "float in words": main({"optimizer.learning_rate": "1e-3x"}, "optimizer.learning_rate",
                           "1e-3x"),
    "exponent of 400": main({"optimizer.learning_rate": "1e400"}, "optimizer.learning_rate"),
    "5,000 digits": main({"seed": "1" * 5000}, "seed"),
    "code for a number": main({"seed": "__import__('os').getpid()"}, "seed"),
    "profile beyond the run": main({"profile": "(99,)"}, "profile", "99"),
    "lone surrogate": main({"estimator.name": "\udcff"}, "estimator.name"),
    "name of 10,000 letters": main({"estimator.name": "x" * 10_000}, "estimator.name"),
    "value for a section": main({"rollout": "5"}, "config.rollout=5"),
    "key below a leaf": main({"seed.x": "5"}, "seed"),
    "key of 2,000 letters": main({"a" * 2000: "5"}, "unknown key"),
    "private key": main({"__class__": "5"}, "__class__"),
    "key that is a method": main({"update": "5"}, "update"),
    "the same key twice, one wrong": Case(
        (f"--config={SMALL}", "--workdir={here}/new", "--config.seed=1", "--config.seed=x"),
        ("seed = 'x'",)),
    "rule of two parts": main({"correction.reject": "(('token_k1', 0.5),)"}, "correction.reject"),
    "pattern that is no expression": main(
        LORA | {"parameters.lora_targets": "('attention/(',)"}, "parameters.lora_targets"),
    "row of the head beyond it": main(LORA | {"parameters.head_rows": "(10000,)"},
                                      "parameters.head_rows"),
    "best by no metric": main({"checkpoint.best": "eval/acuracy"}, "checkpoint.best",
                              "eval/acuracy"),
    "writer that is not installed": main({"writer.name": "wandb"}, "writer.name", "wandb"),
    "term of no name": main({"term.name": "kl,,"}, "term.name"),
    "set without a path": main({"evaluation.sets.a.samples": "2"}, "evaluation.sets.a.path"),
    "teachers of one name": main({"teacher.pretrained": "a={here}/x,a={here}/y"},
                                 "teacher.pretrained"),
    "stop string without slots": main({"rollout.stop_strings": "('x',)"}, "rollout.stop_strings"),
    "kernel of a TPU": main({"model.attention": "splash"}, "model.attention"),
    "optimizer that is a module": main({"optimizer.name": "contrib"}, "optimizer.name"),
    "warm start of a file that is not there": main(
        WARM | {"warm_start.path": "{here}/none.jsonl"}, "warm_start.path", "none.jsonl"),
    "template of code": main({"task.prompt.style": "completion",
                              "task.prompt.template": "{problem.__class__}"},
                             "task.prompt.template"),
    "examples that are not there": main({"task.prompt.examples": "{here}/none.jsonl"},
                                        "task.prompt.examples"),
}
SIZES = {
    "prompt": main({"rollout.max_prompt_tokens": "10000000000"}, "out of memory"),
    "problems": main({"task.name": "tool_arithmetic", "task.heldout_problems": "1000000000000"},
                     "task.heldout_problems"),
    "experts": main({"model.num_experts": "1000000000", "model.expert_width": "64"},
                    "model.num_experts"),
    "layers of small width": main(
        {"model.num_layers": "20000000", "model.width": "2", "model.head_dim": "2",
         "model.mlp_width": "1"}, "model.num_layers"),
    "terms": main({"task.num_terms": "1000000"}, "task.num_terms = 1000000"),
    "verifiers": main({"task.data.path": "{here}/a.jsonl", "task.verifier_workers": "100000"},
                      "task.verifier_workers", kind="data"),
}
