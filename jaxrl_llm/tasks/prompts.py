"""From the text of a problem to prompt ids, as `task.prompt` says."""

import json
from collections.abc import Callable

from jinja2 import TemplateError

from jaxrl_llm.config import PromptConfig
from jaxrl_llm.fields import ConfigError, refuse_unread
from jaxrl_llm.tasks.readers import read_rows
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


# From a problem's text, and messages of its own before it as (role, content), to prompt ids.
Context = tuple[tuple[str, str], ...]
Prompter = Callable[..., list[int]]


def make_prompter(cfg: PromptConfig, tokenizer) -> Prompter:
  """Returns the function from a problem's text and its context to prompt ids.

    plain       the text
    completion  `template` with {problem} replaced by the text
    chat        the tokenizer's chat template over [system], examples, context, user, up to where
                the assistant begins

  If the tokenizer itself puts a token before every text, plain and completion start with it. The
  chat template's ids are used as they are; its text is never tokenised a second time. Without a
  chat template, examples and a context are texts before the problem, with an empty line between.

  Raises:
    ConfigError: malformed `arguments`, `template` or `examples`, a tokenizer without a chat
      template, or a value that the style does not read.
  """
  _check(cfg)
  examples = _examples(cfg.examples) if cfg.examples else []
  if cfg.style == "chat":
    return _chat(cfg, tokenizer, examples)
  start = _start_ids(tokenizer)
  template = cfg.template if cfg.style == "completion" else "{problem}"
  # Not str.format: LaTeX is full of braces.
  shown = [template.replace("{problem}", problem) + answer for problem, answer in examples]
  try:
    encode(tokenizer, "\n\n".join([*shown, template.replace("{problem}", "")]))
  except ValueError as error:
    raise ConfigError(
        f"task.prompt.template = {cfg.template!r}: {error}; a task's own tokenizer knows only its "
        "alphabet. Fix: task.prompt.style=plain, or a pretrained checkpoint.") from error

  def render(problem: str, context: Context = ()) -> list[int]:
    before = [content for _, content in context]
    return start + encode(tokenizer, "\n\n".join(
        [*shown, *before, template.replace("{problem}", problem)]))

  return render


def _examples(path: str) -> list[tuple[str, str]]:
  """Returns (problem, completion) of the worked examples in a file.

  Raises:
    ConfigError: a row without both, with its place.
  """
  out = []
  for place, row in read_rows("task.prompt.examples", path, "train"):
    if isinstance(row, ConfigError):
      raise row
    texts = [row.get(name) for name in ("problem", "completion")]
    if not all(isinstance(text, str) and text for text in texts):
      raise ConfigError(f"{place}: columns present: {', '.join(map(str, row))}; texts in 'problem' "
                        "and 'completion' were expected. Fix: the file of task.prompt.examples.")
    out.append(tuple(texts))
  return out


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


def _chat(cfg: PromptConfig, tokenizer, examples: list[tuple[str, str]]) -> Prompter:
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
  system = [("system", cfg.system)] if cfg.system else []
  shown = [message for problem, answer in examples
           for message in (("user", problem + cfg.suffix), ("assistant", answer))]

  def render(problem: str, context: Context = ()) -> list[int]:
    if cfg.system and any(role == "system" for role, _ in context):
      raise ConfigError(
          f"task.prompt.system = {cfg.system[:40]!r}: the problem {problem[:40]!r} has a system "
          "message of its own. Fix: an empty task.prompt.system.")
    # A problem's own system message comes first, as templates demand.
    own = [message for message in context if message[0] == "system"]
    rest = [message for message in context if message[0] != "system"]
    turns = [*system, *own, *shown, *rest, ("user", problem + cfg.suffix)]
    messages = [{"role": role, "content": content} for role, content in turns]
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
