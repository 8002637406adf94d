"""From a completion and the right answer to a reward.

  verify("numeric", "so it is 1,024 cm", "1024")        -> Reward(1.0, True)
  verify("math", r"so \\boxed{\\frac{1}{2}}", "0.5")      -> Reward(1.0, True)

`grading.judge` describes the kinds. Tasks check problems of reasoning-gym.
"""

from jaxrl_llm.grading.grading import KINDS, Verdict
from jaxrl_llm.grading.verifier_pool import close_all, grade_many, require_math, verify_many
from jaxrl_llm.types import Reward

__all__ = ["KINDS", "Verdict", "close_all", "grade_many", "require_math", "verify", "verify_many"]


def verify(kind: str, completion: str, answer: str, *, timeout: float = 10.0) -> Reward:
  """Returns the reward of one completion, 1 or 0; see `verify_many`, which is faster for many."""
  return verify_many(kind, [completion], [answer], workers=1, timeout=timeout)[0]
