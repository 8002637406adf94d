"""`grade_many` under the name that it had when verifiers were a module of tasks."""

from jaxrl_llm.grading.verifiers import grade_many

__all__ = ["grade_many"]
