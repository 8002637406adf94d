"""The products of jaxrl_llm/tasks/tool_arithmetic.py with Python instead of a calculator.

  prompt      123*456
  guessed     =56088
  called      [print(123*456)]56088;=56088      "56088;" is what the program prints
"""

import dataclasses

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.tool_arithmetic import ALPHABET, ToolArithmetic, ToolArithmeticKeys
from jaxrl_llm.types import Problem


@register.task("python_arithmetic", ToolArithmeticKeys)
class PythonArithmetic(ToolArithmetic):
  """Asks for the product of two numbers; the text in brackets is a program."""

  tool = "python"

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(ALPHABET + "print()")

  def longest_demonstration(self) -> int:
    return super().longest_demonstration() + len("print()") * bool(self.cfg.worked_share)

  def generate(self, rng: np.random.Generator) -> Problem:
    problem = super().generate(rng)
    call = f"[print({problem.id})]"
    return dataclasses.replace(problem, demonstration=problem.demonstration.replace(
        f"[{problem.id}]", call))
