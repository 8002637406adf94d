"""From the text of a problem to prompt ids, as `task.prompt` says."""

import json
from collections.abc import Callable

from jinja2 import TemplateError

from jaxrl_llm.config import PromptConfig
from jaxrl_llm.fields import ConfigError, refuse_unread
from jaxrl_llm.tasks.tokenizer import encode

# Arguments of apply_chat_template that this file sets, or that would change what it returns.
RESERVED = frozenset({
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
})

TAG_TOKENS = 16  # more than a thinking tag and the white space behind it have


def make_prompter(cfg: PromptConfig, tokenizer) -> Callable[[str], list[int]]:
  """Returns the function from a problem's text to prompt ids.

    plain       the text
    completion  `template` with {problem} replaced by the text
    chat        the tokenizer's chat template over [system], user, up to where the assistant begins

  If the tokenizer itself puts a token before every text, plain and completion start with it. The
  chat template's ids are used as they are; its text is never tokenised a second time.

  Raises:
    ConfigError: malformed `arguments` or `template`, a tokenizer without a chat template, or a
      value that the style does not read.
  """
  _check(cfg)
  if cfg.style == "chat":
    return _chat(cfg, tokenizer)
  start = _start_ids(tokenizer)
  template = cfg.template if cfg.style == "completion" else "{problem}"
  try:
    encode(tokenizer, template.replace("{problem}", ""))
  except ValueError as error:
    raise ConfigError(
        f"task.prompt.template = {cfg.template!r}: {error}; a task's own tokenizer knows only its "
        "alphabet. Fix: task.prompt.style=plain, or a pretrained checkpoint.") from error

  def render(problem: str) -> list[int]:
    # Not str.format: LaTeX is full of braces.
    return start + encode(tokenizer, template.replace("{problem}", problem))

  return render


def opens_thought(tokenizer, prompt: list[int]) -> bool:
  """Returns whether a prompt ends in an opening thinking tag, so that the policy's text is thought.

  The templates of R1 and of Qwen3's thinking models do.
  """
  end = tokenizer.decode(prompt[-TAG_TOKENS:], skip_special_tokens=False)
  return end.rstrip().endswith("<think>")


def _check(cfg: PromptConfig) -> None:
  refuse_unread(cfg, "task.prompt.")
  if cfg.style == "completion" and "{problem}" not in cfg.template:
    raise ConfigError(
        f"task.prompt.template = {cfg.template!r}: no {{problem}} in it, so every prompt would be "
        "the same. Fix: write {problem} where the question belongs.")


def _start_ids(tokenizer) -> list[int]:
  """Returns the sequence-start token, if the tokenizer puts one before a text."""
  start = tokenizer.bos_token_id
  put_first = tokenizer.encode("", add_special_tokens=True)[:1]
  return [start] if start is not None and start in put_first else []


def _chat(cfg: PromptConfig, tokenizer) -> Callable[[str], list[int]]:
  if not getattr(tokenizer, "chat_template", None):
    raise ConfigError(
        "task.prompt.style = 'chat': the tokenizer has no chat template. Fix: an instruction-tuned "
        "checkpoint (chat_template.jinja or chat_template in tokenizer_config.json), or "
        "task.prompt.style=completion.")
  arguments = template_arguments(cfg.arguments)
  # Jinja ignores a variable that no template reads, so a misspelt switch would do nothing.
  source = tokenizer.get_chat_template()
  unread = sorted(name for name in arguments if name not in source)
  if unread:
    raise ConfigError(
        f"task.prompt.arguments = {cfg.arguments!r}: the tokenizer's chat template does not read "
        f"{unread[0]!r}. Fix: a variable of that template, or leave it out.")
  system = [{"role": "system", "content": cfg.system}] if cfg.system else []

  def render(problem: str) -> list[int]:
    messages = [*system, {"role": "user", "content": problem + cfg.suffix}]
    try:
      return list(tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True,
                                                return_dict=False, **arguments))
    except TemplateError as error:
      raise ConfigError(
          f"task.prompt.style = 'chat': the tokenizer's chat template refuses the messages "
          f"{[m['role'] for m in messages]} with arguments {cfg.arguments}: {error}. "
          "Fix: task.prompt.system or task.prompt.arguments.") from error

  return render


def template_arguments(text: str) -> dict:
  """Parses the JSON of the keyword arguments for the chat template.

  Raises:
    ConfigError: not a JSON object, or a name that this file sets itself.
  """
  fix = 'Fix: a JSON object such as {"enable_thinking": false}.'
  try:
    arguments = json.loads(text)
  except ValueError as error:
    raise ConfigError(
        f"task.prompt.arguments = {text!r}: malformed JSON: {error}. {fix}") from error
  if not isinstance(arguments, dict):
    raise ConfigError(
        f"task.prompt.arguments = {text!r}: {type(arguments).__name__} instead of an object. {fix}")
  if taken := sorted(RESERVED & set(arguments)):
    raise ConfigError(f"task.prompt.arguments = {text!r}: {taken[0]!r} is set by the task. "
                      "Fix: leave it out; variables of the template only.")
  return arguments
