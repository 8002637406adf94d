"""The full config -> the parts of a run: task, sampler, learner, scores, warm start."""
