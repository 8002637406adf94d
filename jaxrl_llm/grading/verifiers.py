"""From a completion and the right answer to a reward.

  verify("numeric", "so it is 1,024 cm", "1024")        -> Reward(1.0, True)
  verify("math", r"so \\boxed{\\frac{1}{2}}", "0.5")      -> Reward(1.0, True)

`grading.judge` describes the kinds. Countdown and reasoning-gym problems are checked by their
tasks. `verify_many` is faster for many answers, because it spreads algebra over processes.
"""

from jaxrl_llm.grading.grading import KINDS, Verdict
from jaxrl_llm.grading.verifier_pool import close_all, grade_many, require_math, verify_many
from jaxrl_llm.types import Reward

__all__ = ["KINDS", "Verdict", "close_all", "grade_many", "require_math", "verify", "verify_many"]


def verify(kind: str, completion: str, answer: str, *, timeout: float = 10.0) -> Reward:
  """Returns the reward of one completion: 1 or 0.

  A row without a verdict has an `unscored_reason` ("crash: ...", "no answer").

  Args:
    kind: exact, numeric, math or choice.
    completion: the policy's text.
    answer: the right answer.
    timeout: seconds of processor time, for `math`; an answer that needs more is wrong.

  Raises:
    ConfigError: kind `math` without the package math-verify.
    ValueError: unknown kind.
  """
  return verify_many(kind, [completion], [answer], workers=1, timeout=timeout)[0]
