"""Config files that break, or that return something that is no config."""

from campaign import Case

HEAD = "from jaxrl_llm.config import base_config\n\n\ndef get_config(*arguments):\n"
BASE = HEAD + "  config = base_config()\n"
END = "\n  return config\n"


def file(source: str | bytes, *texts: str, path: str = "mine.py", **fields) -> Case:
  """Returns a case of main.py with this config file."""
  return Case(("--config={here}/mine.py", "--workdir={here}/new"), texts, files={path: source},
              **fields)


def value(code: str, *texts: str, **fields) -> Case:
  """Returns a case of a config to which a line of code does something."""
  return file(BASE + f"  {code}" + END, *texts, **fields)


CASES = {
    "empty": file("", "mine.py"),
    "without get_config": file("config = 3\n", "mine.py"),
    "get_config that is no function": file("get_config = 3\n", "mine.py"),
    "folder": file("x", "mine.py", path="mine.py/x"),
    "a text": file(HEAD + "  return 'config'\n", "mine.py"),
    "a number": file(HEAD + "  return 3\n", "mine.py"),
    "a list": file(HEAD + "  return [1]\n", "mine.py"),
    "a dict": file(HEAD + "  return {'seed': 'x'}\n", "seed = 'x'"),
    "a generator": file(HEAD + "  yield base_config()\n", "mine.py"),
    "a module": file(HEAD + "  import os\n  return os\n", "mine.py"),
    "the function itself": file(HEAD + "  return get_config\n", "mine.py"),
    "recursion without end": file(HEAD + "  return get_config()\n", "mine.py", "RecursionError"),
    "assertion without a text": file(HEAD + "  assert False\n", "mine.py", "AssertionError"),
    "error of many lines": file(HEAD + "  raise ValueError('a\\nb\\n' * 1000)\n", "mine.py",
                                "ValueError"),
    "error that cannot be printed": file(
        "class Odd(Exception):\n  def __str__(self):\n    raise ValueError('no')\n" + HEAD
        + "  raise Odd\n", "mine.py"),
    "error of its own base": file("class Odd(BaseException):\n  pass\n" + HEAD + "  raise Odd\n",
                                  "mine.py", "Odd"),
    "stop of an iteration": file(HEAD + "  raise StopIteration\n", "mine.py", "StopIteration"),
    "no memory": file(HEAD + "  raise MemoryError\n", "mine.py", "MemoryError"),
    "exit with a text": file(HEAD + "  raise SystemExit('bye')\n", "mine.py", "bye"),
    "exit at the import": file("raise SystemExit(0)\n", "mine.py"),
    "not UTF-8": file(b"x = '\xff\xfe'\n", "mine.py"),
    "tabs and spaces": file("def get_config():\n\tif 1:\n        return 2\n", "mine.py"),
    "circular import": file("import mine\n" + HEAD + "  return mine.config\n", "mine.py"),
    "own module beside it that fails": file(
        "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport helper_of_faults\n",
        "mine.py"),
    "array for a number": value("config.seed = __import__('numpy').arange(3)", "seed"),
    "array of JAX for a number": value("config.seed = __import__('jax').numpy.ones(2)", "seed"),
    "function for a number": value("config.seed = lambda: 3", "seed"),
    "function for a name": value("config.estimator.name = print", "estimator.name"),
    "integer of 5,000 digits": value("config.rollout.prompts = 10**5000", "rollout.prompts"),
    "class for a section": value("config.rollout = dict", "mine.py", "dict"),
    "set for a tuple": value("config.profile = {1, 2}", "profile"),
    "bytes for a name": value("config.estimator.name = b'ppo'", "estimator.name"),
    "bytes for a path": value("config.pretrained = b'dir'", "pretrained"),
    "complex number": value("config.optimizer.learning_rate = 1j", "optimizer.learning_rate"),
    "decimal number": value("config.optimizer.learning_rate = __import__('decimal').Decimal('1')",
                            "optimizer.learning_rate"),
    "float that is not a number": value("config.optimizer.learning_rate = float('nan')",
                                        "optimizer.learning_rate = nan"),
    "tuple of tuples": value("config.profile = ((1, 2),)", "profile"),
    "text with a null byte": value("config.pretrained = 'a\\0b'", "pretrained"),
    "surrogate in a path": value("config.pretrained = '\\ud800'", "pretrained"),
    "section in a leaf": value("config.seed = {'a': 1}", "seed"),
    "removed section": value("del config.rollout.prompts; config.rollout.prompt = 3",
                             "rollout.prompt"),
    "deleted section": value("del config.estimator; config.estimater = {}", "estimater"),
    "method that is no text": value("config.estimator.name = ('ppo',)", "estimator.name"),
    "sets of a list": value("config.evaluation.sets = ['a.jsonl']", "mine.py: line 6"),
    "set whose name is a number": value("config.evaluation.sets = {3: {'path': 'x'}}",
                                        "mine.py: line 6"),
    "set whose name is a path": value("config.evaluation.sets = {'a/b': {'path': 'x'}}", "a/b"),
    "plugins of a text that is a list": value("config.plugins = '[a.py]'", "plugins"),
    "plugin that is a folder": value("config.plugins = ('tests',)", "plugins", "tests"),
    "itself in itself": value("config.rollout = config", "rollout"),
    "placeholder": value("from ml_collections import config_dict; "
                         "config.iterations = config_dict.placeholder(int)", "iterations"),
    "reference that goes in circles": value(
        "config.seed = config.get_ref('iterations'); config.iterations = config.get_ref('seed')",
        "mine.py"),
    "frozen and wrong": file(
        "from ml_collections import FrozenConfigDict\n" + HEAD
        + "  return FrozenConfigDict({'sed': 3})\n", "sed"),
    "preset of a file without presets": Case(
        ("--config={here}/mine.py:minpro", "--workdir={here}/new"), ("mine.py",),
        files={"mine.py": BASE.replace("*arguments", "") + END}),
    "two presets": Case(("--config=configs/quickstart.py:minpro:ctpo", "--workdir={here}/new"),
                        ("minpro:ctpo",)),
    "config without its ending": Case(("--config=configs/quickstart", "--workdir={here}/new"),
                                      ("configs/quickstart",)),
    "config of another kind": Case(("--config=README.md", "--workdir={here}/new"), ("README.md",)),
    "empty config": Case(("--config=", "--workdir={here}/new"), ("--config",)),
    "config twice, the last not there": Case(
        ("--config=configs/quickstart.py", "--config=none.py", "--workdir={here}/new"),
        ("none.py",)),
}
