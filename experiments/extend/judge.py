"""An asynchronous reward: a judge over HTTP, with concurrent requests.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_judge \
    --config.plugins=experiments/extend/judge.py --config.reward.name=task,judge \
    --config.reward.url=http://127.0.0.1:8000 --config.reward.timeout=2 --config.reward.retries=0

A call that is late or fails is repeated (`reward.retries`); then its row is unscored: counted in
`reward/unscored` and kept out of the update, never a reward of 0.
"""

from jaxrl_llm import register
from jaxrl_llm.tasks import reward_calls


@register.reward("judge", url="http://127.0.0.1:8000", weight=0.5)
async def judge(problem, completion, cfg):
  """Asks for {"score": x} of a prompt and a completion."""
  question = {"prompt": problem.prompt, "completion": completion}
  answer = await reward_calls.asked(cfg.url, question, cfg.timeout)
  return {"judge": (float(answer["score"]), cfg.weight)}
