"""The meaning of each metric, and its unit.

  python -m jaxrl_llm.reporting.glossary
  python -m jaxrl_llm.reporting.glossary rollout/

A `*` in a name is a number or a part that the meaning explains. Your own estimator may log its own
metrics: name them estimator/*, or say what they are by `register.metrics`.
"""

import fnmatch
import sys
from typing import NamedTuple

from jaxrl_llm.reporting.tables import markdown_table

RATIO = 'objective/mismatch.md, "Metrics of the ratio"'


class Entry(NamedTuple):
  """A metric: its name, or a pattern of names; the unit of its values, "1" for a plain number; and
  its meaning.
  """

  name: str
  unit: str
  meaning: str


def entries_of(text: str) -> tuple[Entry, ...]:
  """Returns the entries of lines `name | unit | meaning`."""
  rows = (line.split("|") for line in text.strip().splitlines())
  return tuple(Entry(*(cell.strip() for cell in row)) for row in rows)


EVALUATIONS = entries_of("""
eval/accuracy  | share  | correct greedy completions of held-out problems; unscored ones are wrong
eval/accuracy_scored | share | the same, of those with a verdict
eval/reward*   | 1      | the reward, mean over kept greedy completions; @n: over n samples
eval/length    | tokens | mean length of the greedy completions
eval/truncated | share  | greedy completions that the length limit ended
eval/unscored  | share  | greedy completions without a verdict
eval/costly    | share  | greedy completions that are wrong because checking would take without end
eval/unreadable | share | greedy completions that are wrong because the reward raises on them
eval/component/* | 1    | a component of the rewards by its name, mean over kept greedy completions
eval/avg@*_scored  | share | as eval/avg@*, of the samples with a verdict
eval/pass@*_scored | share | as eval/pass@*, of the problems with a verdict
eval/avg@*     | share  | correct ones of evaluation.samples sampled completions, mean over problems
eval/pass@*    | share  | problems with at least one correct one of these samples
eval/*too_long | problems | held-out ones that were left out, being above rollout.max_prompt_tokens
eval/*/*       | as without | the same of the problems of evaluation.sets.<name>, by its name
""")

ROLLOUTS = entries_of("""
reward/mean          | 1     | the verifier's reward, mean over kept rows
reward/correct       | share | correct rows, of the kept ones
reward/unscored      | share | rows without a verdict, which are left out of the gradient
reward/costly        | share | rows that are wrong because checking them would take without end
reward/unreadable    | share | rows that are wrong because the reward raises on them alone
reward/solve_all     | share | groups whose rows are all correct: they teach nothing
reward/solve_none    | share | groups without a correct row: they teach nothing
reward/component/*   | 1     | a component of the rewards by its name, mean over kept rows
reward/shaped        | 1     | the reward that the update reads, after shaping and permutation
reward/kept          | share | rows that the update reads
rollout/length       | tokens | mean length of the completions, tool output included
rollout/truncated    | share | completions that the length limit ended
rollout/tokens       | tokens | completion tokens of the rows that the update gets
rollout/wasted_steps | share | row slots of the decode steps whose row had ended, without refilling
rollout/staleness    | optimizer steps | staleness of the sampling policy, mean over tokens
rollout/wasted_slots | share | row slots of the engine's decode steps that decoded nothing useful
rollout/chunks       | 1     | chunks of decode steps that the engine ran
rollout/cache_read   | 1     | bytes of the cache that were read, divided by those that were needed
rollout/turns        | 1     | turns of the policy, mean over rows
rollout/void         | share | rows that a failure of the tool made void
in_flight/versions     | 1   | policies that sampled a completion, mean over completions
in_flight/versions_max | 1   | policies of the completion with most of them
in_flight/age/from_*   | optimizer steps | staleness of the tokens from number * to twice *
in_flight/unfinished_tokens | tokens | tokens of the completions that continue in the next iteration
in_flight/fed_again    | share | row slots of decode steps that fed tokens of earlier policies again
replay/age             | iterations | age of the batch's completions, mean
replay/age_max         | iterations | age of the batch's oldest completion
replay/new             | share | completions of the batch that this iteration sampled
replay/age/from_*      | share | completions of the batch whose age is from * to twice *, iterations
replay/uses            | 1     | batches that a completion of the batch was in, with this one, mean
replay/sampled_reward  | 1     | reward of all completions that the iteration sampled, mean
replay/sampled_tokens  | tokens | completion tokens that the iteration sampled
server/failed_groups | 1     | groups with a row of which the server's answer was unusable
server/redrawn_batches | 1   | batches that were dropped because the server's weights had changed
tool/calls           | 1     | ended turns that the tool's environment answered, last ones too
tool/tokens          | tokens | tokens that the tool wrote
dynamic_sampling/draws       | 1     | batches sampled until enough groups had differing rewards
dynamic_sampling/kept_groups | share | sampled groups whose rewards differ
dynamic_sampling/tokens      | tokens | completion tokens sampled, those of dropped groups included
""")

UPDATES = entries_of(f"""
step                 | optimizer steps | updates so far
loss/total           | 1     | the loss with all its terms, mean over the iteration's updates
optimizer/grad_norm  | 1     | norm of the gradient before clipping, mean over the updates
ess/share            | share | effective sample size of the sequences' weights, over their number
ess/factor           | 1     | what transform.name=ess scales the update by
entropy_share/kept   | share | tokens that transform.name=entropy_share leaves their gradient
policy/entropy       | nats  | entropy of the policy, mean over tokens
advantage/mean       | 1     | advantage, mean over tokens
advantage/square     | 1     | its square, mean over tokens
advantage/too_few    | share | rows of groups with fewer rows than advantage.k: no advantage
clip/high            | share | tokens whose ratio is above the estimator's bound
clip/low             | share | tokens whose ratio is below the estimator's bound
clip/dual            | share | tokens with a negative advantage whose ratio is above the dual bound
clip/dropped         | share | tokens without gradient
log_ratio/p*         | nats  | quantile of the log-ratio to the anchor over tokens, p05 to p95
log_ratio/range/*    | nats  | smallest (min) and largest (max) log-ratio to the anchor
ratio/mean           | 1     | ratio to the anchor, mean over tokens: {RATIO}
ratio/square         | 1     | its square; mean^2 over square is the effective share of the samples
ratio/ess            | share | effective sample size of the ratios of completions, by their number
kl/current_anchor    | nats  | per token, from the anchor to the current policy: drift of updating
kl/anchor_behavior   | nats  | per token, from the sampler to the anchor: numerics, staleness
kl/current_behavior  | nats  | per token, from the sampler to the current policy: both
kl/reference         | nats  | per token, to the policy at the start, by the estimate kl.name
correction/weight         | 1     | weight of the correction, mean over tokens
correction/weight_squared | 1     | its square, mean over tokens
correction/truncated      | share | tokens whose weight left its bounds
correction/rejected       | share | tokens that a rejection rule dropped
correction/rejected_rows  | share | rows without a token of positive weight
vocabulary/kept_mass      | share | probability of the pruned vocabulary, mean over tokens
vocabulary/out_of_set     | share | sampled tokens outside the trainer's pruned vocabulary
critic/loss          | 1     | squared error of the values, halved, mean over tokens
critic/value         | 1     | predicted value, mean over tokens
critic/return        | 1     | return that the values should predict, mean over tokens
distill/divergence   | nats  | divergence from the teacher per token, by term.divergence
moe/load/bucket_*    | share | tokens that this expert serves, over all layers; even: k / experts
moe/replaced         | share | experts that routing replay put in place of the trainer's own choice
estimator/*          | as its author says | a metric of an estimator of your own
""")

# Trainer against sampler with the same parameters.
MISMATCH = entries_of(f"""
mismatch/absolute    | nats  | difference of a token's log-probs, absolute, mean: {RATIO}
mismatch/k1          | nats  | per token, estimate of KL(sampler, trainer): mean log-ratio
mismatch/k3          | nats  | the same by k3, which is never negative
mismatch/outside     | share | tokens whose probabilities have a ratio outside 0.9 to 1.1
mismatch/row         | nats  | absolute difference of the log-probs of whole rows, mean over rows
mismatch/range/*     | nats  | smallest (min) and largest (max) difference of a token's log-prob
mismatch/*/by_probability/bucket_* | as without | of tokens up to probability 0.01, 0.1, 0.5, 0.9, 1
""")

TIMES = entries_of("""
time/elapsed           | seconds | from the run's start to these metrics, over all its processes
time/iteration         | seconds | wall time from the metrics of the iteration before to these
time/rollout           | seconds | until the rows were sampled; with dynamic sampling also verified
time/verify            | seconds | verification of the rows
time/waited            | seconds | for rows that were sampled ahead, verification included
time/hand_over         | seconds | until the server had the weights
time/server_away       | seconds | in which the server did not answer
time/tools             | seconds | of tool calls, summed over calls that ran at once
time/tokens_per_second | tokens/s | sampled, by the time of rollout, verification and update
time/peak_memory       | GiB     | largest use of a device so far or, on CPU, of the process
time/share/rollout     | share   | of time/iteration: the host waited for rows
time/share/verify      | share   | of time/iteration: verification
time/share/update      | share   | of time/iteration: scores and updates
time/share/evaluation  | share   | of time/iteration: held-out evaluation
time/share/checkpoint  | share   | of time/iteration: checkpoints, also the best one's
time/share/report      | share   | of time/iteration: the report
time/share/other       | share   | of time/iteration: writing of metrics and completions
""")

GLOSSARY = (*EVALUATIONS, *ROLLOUTS, *UPDATES, *MISMATCH, *TIMES)


_OF_PLUGINS: dict[str, Entry] = {}  # by name


def register(text: str) -> None:
  """Enters the meanings of a plugin's metrics: lines `name | unit | meaning`, as `Entry`.

  Raises:
    ValueError: a line of another form, or a name that has another meaning already.
  """
  for line in text.strip().splitlines():
    if line.count("|") != 2:
      raise ValueError(f"metric {line.strip()!r}: `name | unit | meaning` was expected")
  for metric in entries_of(text):
    if any(other.name == metric.name and other != metric for other in all_entries()):
      raise ValueError(f"metric {metric.name!r} has a meaning already. Fix: another name")
    _OF_PLUGINS[metric.name] = metric


def all_entries() -> tuple[Entry, ...]:
  """Returns the entries of loaded plugins and of the package."""
  return (*_OF_PLUGINS.values(), *GLOSSARY)


def entry(name: str) -> Entry | None:
  """Returns the entry of a metric, or None if there is none."""
  return next((metric for metric in all_entries() if fnmatch.fnmatchcase(name, metric.name)), None)


def table(prefix: str = "") -> str:
  """Returns the entries whose names begin with `prefix` as a table in Markdown.

  Raises:
    ValueError: there are none; the message lists the first parts of all names.
  """
  entries = [metric for metric in all_entries() if metric.name.startswith(prefix)]
  if not entries:
    first = sorted({metric.name.split("/")[0] for metric in all_entries()})
    raise ValueError(f"no metric begins with {prefix!r}. Fix: one of {', '.join(first)}.")
  return markdown_table(("metric", "unit", "meaning"), entries)


def main(arguments: list[str]) -> None:
  """Prints the table; the first argument, if any, is a prefix."""
  try:
    print(table(*arguments[:1]), end="")
  except ValueError as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main(sys.argv[1:])
