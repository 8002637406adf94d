"""From the text of a problem to prompt ids, as `task.prompt` says."""

import json
from collections.abc import Callable

from jaxrl_llm.config import PromptConfig
from jaxrl_llm.fields import ConfigError, refuse_unread
from jaxrl_llm.tasks.encoding import encode

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
    "strftime_now",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
})

TAG_TOKENS = 16  # more than a thinking tag and the white space after it have


# From a problem's text, and the problem's messages before it as (role, content), to prompt ids.
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
      template or with one that leaves out a text, or a value that the style does not read.
  """
  _check(cfg)
  examples = _examples(cfg.examples) if cfg.examples else []
  if cfg.style == "chat":
    return _chat(cfg, tokenizer, examples)
  start = _start_ids(tokenizer)
  template = cfg.template if cfg.style == "completion" else "{problem}"
  # Not str.format: LaTeX is full of braces.
  worked_examples = [template.replace("{problem}", problem) + answer
                     for problem, answer in examples]
  try:
    encode(tokenizer, "\n\n".join([*worked_examples, template.replace("{problem}", "")]))
  except ValueError as error:
    raise ConfigError(
        f"task.prompt.template = {cfg.template!r}: {error}; a task's own tokenizer knows only its "
        f"alphabet. Fix: task.prompt.style=plain{_without(cfg, 'template', 'examples')}, or a "
        "pretrained checkpoint.") from error

  def render(problem: str, context: Context = ()) -> list[int]:
    contents = [content for _, content in context if content]
    return start + encode(tokenizer, "\n\n".join(
        [*worked_examples, *contents, template.replace("{problem}", problem)]))

  return render


def _examples(path: str) -> list[tuple[str, str]]:
  """Returns (problem, completion) of the worked examples in a file.

  Raises:
    ConfigError: a row without both, with its place.
  """
  from jaxrl_llm.tasks.readers import read_rows
  from jaxrl_llm.tasks.rows import RowError, check_text
  out = []
  for place, row in read_rows("task.prompt.examples", path, "train"):
    if isinstance(row, ConfigError):
      raise row
    texts = [row.get(name) for name in ("problem", "completion")]
    if not all(isinstance(text, str) and text for text in texts):
      raise ConfigError(f"{place}: columns present: {', '.join(map(str, row))}; texts in 'problem' "
                        "and 'completion' were expected. Fix: the file of task.prompt.examples.")
    try:
      for name, text in zip(("problem", "completion"), texts, strict=True):
        check_text(f"column {name!r}", text)
    except RowError as error:
      raise ConfigError(f"{place}: {error}. Fix: the file of task.prompt.examples.") from error
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
        f"task.prompt.style=completion{_without(cfg, 'system', 'suffix', 'arguments', 'date')}.")
  from jaxrl_llm.tasks import chat_templates
  arguments = template_arguments(cfg.arguments)
  # Jinja ignores a variable that no template reads, so a misspelt switch would do nothing.
  source = chat_templates.source(tokenizer)
  unread = sorted(name for name in arguments if name not in source)
  if unread:
    raise ConfigError(
        f"task.prompt.arguments = {cfg.arguments!r}: the tokenizer's chat template does not read "
        f"{unread[0]!r}. Fix: a variable of that template, or leave it out.")
  if cfg.date != PromptConfig.date and chat_templates.CLOCK not in source:
    raise ConfigError(f"task.prompt.date = {cfg.date!r}: the tokenizer's chat template reads no "
                      "clock. Fix: leave it out.")
  chat_templates.check(tokenizer, cfg.system, arguments, cfg.date)
  worked_examples = [message for problem, answer in examples
                     for message in (("user", problem + cfg.suffix), ("assistant", answer))]

  def render(problem: str, context: Context = ()) -> list[int]:
    # A problem's own system message comes first, as templates demand.
    system_messages = [message for message in context if message[0] == "system"]
    if cfg.system and any(content for _, content in system_messages):
      raise ConfigError(
          f"task.prompt.system = {cfg.system[:40]!r}: the problem {problem[:40]!r} has a system "
          "message of its own. Fix: an empty task.prompt.system.")
    system = [("system", cfg.system)] if cfg.system else system_messages
    dialogue = [message for message in context if message[0] != "system"]
    turns = [*system, *worked_examples, *dialogue, ("user", problem + cfg.suffix)]
    return chat_templates.render(tokenizer, turns, arguments, cfg.date)

  return render


def _without(cfg: PromptConfig, *names: str) -> str:
  """Returns the words that name the keys to be left out, among the keys that are set."""
  keys = [f"task.prompt.{name}" for name in names
          if getattr(cfg, name) != getattr(PromptConfig, name)]
  return f" without {' and '.join(keys)}" if keys else ""


def template_arguments(text: str) -> dict:
  """Parses the JSON of the keyword arguments for the chat template.

  Raises:
    ConfigError: not a JSON object, or a name that this file sets itself.
  """
  fix = 'Fix: a JSON object such as {"enable_thinking": false}.'
  try:
    arguments = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ConfigError(
        f"task.prompt.arguments = {text!r}: malformed JSON: {error}. {fix}") from error
  if not isinstance(arguments, dict):
    raise ConfigError(
        f"task.prompt.arguments = {text!r}: {type(arguments).__name__} instead of an object. {fix}")
  if conflicts := sorted(RESERVED & set(arguments)):
    raise ConfigError(f"task.prompt.arguments = {text!r}: {conflicts[0]!r} is set by the task. "
                      "Fix: leave it out; variables of the template only.")
  return arguments
