"""Prompt ids: golden chat ids, the thinking switch, and values that would be ignored."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from jaxrl_llm.config import ConfigError, DataConfig, PromptConfig, TaskConfig
from jaxrl_llm.grading.verifiers import verify
from jaxrl_llm.tasks import make_task, tokenizer
from jaxrl_llm.tasks.prompts import make_prompter

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def chat_tokenizer(template=CHATML, **special):
  letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
  backend = Tokenizer(models.BPE(letters, merges=[]))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(SPECIAL)
  out = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", **special)
  out.chat_template = template
  return out


TOKENIZER = chat_tokenizer()
START, END = 257, 258


def ids(text):
  letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
  return [letters[{" ": "Ġ", "\n": "Ċ"}.get(c, c)] for c in text]


def test_golden_chat_ids():
  prompt = make_prompter(PromptConfig(style="chat", system="Be brief.", suffix=" Box it."),
                         TOKENIZER)
  assert prompt("2+2?") == [
      START, *ids("system\nBe brief."), END, *ids("\n"), START, *ids("user\n2+2? Box it."), END,
      *ids("\n"), START, *ids("assistant\n")
  ]


def test_no_system_turn_unless_asked_for():
  assert make_prompter(PromptConfig(style="chat"), TOKENIZER)("x")[:6] == [START, *ids("user\n")]


@pytest.mark.parametrize("arguments,end",
                         [("{}", ""), ('{"enable_thinking": true}', ""),
                          ('{"enable_thinking": false}', "<think>\n\n</think>\n\n")])
def test_the_thinking_switch(arguments, end):
  prompt = make_prompter(PromptConfig(style="chat", arguments=arguments), TOKENIZER)("x")
  expected = [START, *ids("assistant\n" + end)]
  assert prompt[-len(expected):] == expected


def test_plain_and_completion():
  assert make_prompter(PromptConfig(), TOKENIZER)("2+2?") == ids("2+2?")
  braces = PromptConfig(style="completion", template="{x} {problem}=")
  assert make_prompter(braces, TOKENIZER)(r"\frac{1}{2}") == ids(r"{x} \frac{1}{2}=")
  with pytest.raises(ConfigError, match=r"no {problem} in it"):
    make_prompter(PromptConfig(style="completion", template="Q"), TOKENIZER)
  with pytest.raises(ConfigError, match=r"task.prompt.template = .* its alphabet"):
    make_prompter(PromptConfig(style="completion", template="Q: {problem}"),
                  tokenizer.character_tokenizer("12+"))


def test_a_start_token_is_put_first_where_the_tokenizer_puts_one():
  from tokenizers import processors

  starting = chat_tokenizer(bos_token="<|endoftext|>")
  assert make_prompter(PromptConfig(), starting)("x") == ids("x")
  starting.backend_tokenizer.post_processor = processors.TemplateProcessing(
      single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)])
  assert make_prompter(PromptConfig(), starting)("x") == [256, *ids("x")]


@pytest.fixture
def checkpoint(tmp_path):
  TOKENIZER.save_pretrained(tmp_path)
  return tmp_path


def test_a_loaded_tokenizer_renders_the_same_ids_and_pads_with_its_end(checkpoint):
  loaded = tokenizer.load_tokenizer(checkpoint)
  cfg = PromptConfig(style="chat", system="s")
  assert make_prompter(cfg, loaded)("2+2?") == make_prompter(cfg, TOKENIZER)("2+2?")
  assert loaded.pad_token_id == loaded.eos_token_id == END


@pytest.mark.parametrize("named,expected", [(None, (END,)), (256, (END, 256)),
                                            ([END, 256], (END, 256))])
def test_stop_ids(checkpoint, named, expected):
  if named is not None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
  loaded = tokenizer.load_tokenizer(checkpoint)
  assert tokenizer.stop_ids(loaded, checkpoint) == tokenizer.stop_ids(loaded) == expected
  assert make_task(TaskConfig(), 0, 2, tokenizer=loaded).stop_ids == expected


def test_bad_checkpoints(tmp_path):
  with pytest.raises(ConfigError, match=r"no such folder"):
    tokenizer.load_tokenizer(tmp_path / "none")
  with pytest.raises(ConfigError, match=r"no tokenizer in this folder"):
    tokenizer.load_tokenizer(tmp_path)
  (tmp_path / "tokenizer.json").write_text("{")
  with pytest.raises(ConfigError, match=r"cannot be read"):
    tokenizer.load_tokenizer(tmp_path)
  endless = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)
  endless.save_pretrained(tmp_path)
  with pytest.raises(ConfigError, match=r"no end of sequence"):
    tokenizer.load_tokenizer(tmp_path)


def test_byte_tokenizer_keeps_every_text(tmp_path):
  byte_level = tokenizer.byte_tokenizer()
  text = "né → 7\n\t  {x}"
  assert len(byte_level) == 258 and byte_level.decode(tokenizer.encode(byte_level, text)) == text
  assert len(tokenizer.encode(byte_level, text)) == len(text.encode())
  byte_level.save_pretrained(tmp_path)
  assert AutoTokenizer.from_pretrained(tmp_path).encode(
      text, add_special_tokens=False) == tokenizer.encode(byte_level, text)


def test_sub_word_tokenizers_need_not_give_the_text_back():
  backend = Tokenizer(models.BPE({"a": 0, "b": 1}, merges=[]))
  lossy = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="b")
  assert tokenizer.encode(lossy, "a!b") == [0, 1]


THINKING = CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")


@pytest.mark.parametrize("template, prompt, correct", [
    (CHATML, PromptConfig("chat"), True),
    (THINKING, PromptConfig("chat"), False),
    (None, PromptConfig("completion", template="{problem}\nAssistant: <think>\n"), False),
    (None, PromptConfig("completion", template="First <think> </think>.\n{problem}"), True),
    (None, PromptConfig("completion", template="Write <think> first.\n{problem}"), True),
])
def test_a_completion_cut_off_in_a_thought_of_the_prompt_is_wrong(tmp_path, template, prompt,
                                                                 correct):
  """A verifier that sees only the completion would take the box for the answer."""
  path = tmp_path / "problems.jsonl"
  path.write_text("".join(json.dumps({"problem": f"{i} times 7?", "answer": str(7 * i)}) + "\n"
                          for i in range(6, 8)))
  cfg = TaskConfig("dataset", prompt=prompt, heldout_problems=1,
                   data=DataConfig(path=str(path), verifier="numeric"))
  task = make_task(cfg, 0, 1, tokenizer=chat_tokenizer(template))
  problem, cut_off = task.batch(0)[0], r"It might be \boxed{42}, but"
  assert task.reward(problem, cut_off).correct == correct
  assert task.rewards([problem], [cut_off])[0].correct == correct
  assert task.reward(problem, cut_off + r" no.</think>It is \boxed{42}.").correct
  # The completion alone does not say it:
  assert verify("numeric", cut_off, problem.answer).correct


def test_examples_and_a_problem_s_own_system_message(tmp_path):
  """They are earlier turns in a chat, and texts before the problem without one."""
  path = tmp_path / "examples.jsonl"
  path.write_text(json.dumps({"problem": "1+1?", "completion": "2"}) + "\n")
  chat = make_prompter(PromptConfig("chat", examples=str(path)), TOKENIZER)
  turn = [("system", "Own."), ("user", "1+1?"), ("assistant", "2"), ("user", "2+2?")]
  expected = [token for role, text in turn
              for token in (START, *ids(f"{role}\n{text}"), END, *ids("\n"))]
  assert chat("2+2?", (("system", "Own."),)) == [*expected, START, *ids("assistant\n")]
  written = PromptConfig("completion", template="Q: {problem} A:", examples=str(path))
  assert make_prompter(written, TOKENIZER)("2+2?", (("system", "Own."),)) == ids(
      "Q: 1+1? A:2\n\nOwn.\n\nQ: 2+2? A:")
