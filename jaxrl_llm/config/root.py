"""The root section: one run."""

import dataclasses
import math

from jaxrl_llm import registry
from jaxrl_llm.config.evaluation import CheckpointConfig, EvaluationConfig
from jaxrl_llm.config.model import ModelConfig
from jaxrl_llm.config.objective import (
  AdvantageConfig,
  AggregationConfig,
  BatchConfig,
  CorrectionConfig,
  CriticConfig,
  EntropyConfig,
  EstimatorConfig,
  KLConfig,
  LossConfig,
  TeacherConfig,
  TermConfig,
  VocabularyConfig,
)
from jaxrl_llm.config.rollout import (
  DynamicSamplingConfig,
  RolloutConfig,
  RolloutFilesConfig,
  ServerConfig,
)
from jaxrl_llm.config.sections import (
  MeshConfig,
  OptimizerConfig,
  ParametersConfig,
  ShapingConfig,
  StepConfig,
  TransformConfig,
  UpdateConfig,
  WarmStartConfig,
  WriterConfig,
)
from jaxrl_llm.config.task import EnvironmentConfig, RewardConfig, TaskConfig, ToolConfig
from jaxrl_llm.fields import ConfigError, option
from jaxrl_llm.registry import ADVANTAGES

BIN_TILE, LONG_ROW = 128, 1024  # tokens; kernels of attention want long rows in full tiles


@dataclasses.dataclass(frozen=True)
class Config:
  """One run.

  Jitted functions get sections of it, never all of it, so that a new seed does not recompile.
  """

  seed: int = option(0, "seed of parameters, problems and sampling", low=0, high=2**31 - 1)
  iterations: int = option(100, "rollout batches", low=0)
  plugins: tuple = option((), "files or modules, imported before any name is looked up; they may "
                          "register methods; several are separated by commas")
  profile: tuple = option((), "iterations that jax.profiler traces into profile/, such as 3,4",
                          of=int)
  pretrained: str = option("", "Hugging Face checkpoint directory, GGUF file, adapter of PEFT or "
                           "hub name to start from; it sets the model's shapes")
  warnings: str = option("all", "lines about signs that the run cannot learn, by "
                         "experiments/report/symptoms.py",
                         choices=("all", "none"))
  model: ModelConfig = ModelConfig()
  task: TaskConfig = TaskConfig()
  reward: RewardConfig = RewardConfig()
  tool: ToolConfig = ToolConfig()
  environment: EnvironmentConfig = EnvironmentConfig()
  rollout: RolloutConfig = RolloutConfig()
  rollouts: RolloutFilesConfig = RolloutFilesConfig()
  server: ServerConfig = ServerConfig()
  dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
  shaping: ShapingConfig = ShapingConfig()
  estimator: EstimatorConfig = EstimatorConfig()
  advantage: AdvantageConfig = AdvantageConfig()
  aggregation: AggregationConfig = AggregationConfig()
  correction: CorrectionConfig = CorrectionConfig()
  kl: KLConfig = KLConfig()
  teacher: TeacherConfig = TeacherConfig()
  entropy: EntropyConfig = EntropyConfig()
  critic: CriticConfig = CriticConfig()
  term: TermConfig = TermConfig()
  vocabulary: VocabularyConfig = VocabularyConfig()
  transform: TransformConfig = TransformConfig()
  updates: UpdateConfig = UpdateConfig()
  parameters: ParametersConfig = ParametersConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  warm_start: WarmStartConfig = WarmStartConfig()
  evaluation: EvaluationConfig = EvaluationConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  writer: WriterConfig = WriterConfig()
  mesh: MeshConfig = MeshConfig()

  def check(self, cfg) -> None:
    """Refuses iterations to trace that the run does not have."""
    del cfg
    if any(not 1 <= iteration <= self.iterations for iteration in self.profile):
      raise ConfigError(
          f"profile = {self.profile}: iterations of this run are 1 to {self.iterations}. Fix: "
          "choose among them, such as --config.profile=3,4.")

  @property
  def bin_tokens(self) -> int:
    """Returns the tokens of a bin that rows are packed into.

    They are the tokens of the longest row or, with shared prompts, of a group as far as it is
    within the budget; where that is long, in tiles, and bins take all tiles of the budget.
    """
    r = self.rollout
    tile = math.lcm(BIN_TILE if r.row_length >= LONG_ROW else 1, self.mesh.sequence)
    tiles = -(-r.row_length // tile)
    room = self.updates.token_budget // tile
    if self.updates.shared_prompts:
      tiles = max(tiles, min(-(-r.group_tokens // tile), room))
    elif r.row_length >= LONG_ROW:
      tiles = max(tiles, room // max(1, room // tiles))
    return tiles * tile

  @property
  def has_critic(self) -> bool:
    """Returns whether the advantage needs values, so that a value head is trained."""
    entry = ADVANTAGES[self.advantage.name]
    return "values" in entry.required(ADVANTAGES.numbers(self.advantage, strict=False))

  @property
  def samples_heldout(self) -> bool:
    """Returns whether completions of any held-out problem are sampled."""
    return self.evaluation.samples > 0 or any(set_cfg.samples
                                              for _, set_cfg in self.evaluation.sets)

  @property
  def reads_teacher(self) -> bool:
    """Returns whether the advantage or a loss term reads the teacher's log-probs."""
    entry = ADVANTAGES[self.advantage.name]
    needs = entry.required(ADVANTAGES.numbers(self.advantage, strict=False))
    return "teacher_log_probs" in needs.union(self.term_columns)

  @property
  def has_mtp(self) -> bool:
    """Returns whether a loss term trains the module that predicts two tokens ahead."""
    return any("mtp_log_probs" in entry.stats
               for entry in self.term.table.parts(self.term.name).values())

  @property
  def loss(self) -> LossConfig:
    """Returns what the loss reads, without the task's `stop_ids`."""
    return LossConfig(self.estimator, self.kl, self.entropy, self.rollout.temperature,
                      self.correction, self.critic if self.has_critic else None,
                      pruning=tuple(self.vocabulary.rules_of("trainer").items()),
                      num_experts=self.model.num_experts,
                      min_new_tokens=self.rollout.min_new_tokens,
                      max_new_tokens=self.rollout.max_new_tokens,
                      term=self.term if self.term.name != "none" else None)

  @property
  def step(self) -> StepConfig:
    """Returns what an update reads, without the task's `stop_ids`."""
    transform = self.transform if self.transform.name != "none" else None
    return StepConfig(self.loss, self.updates.micro_batches, self.parameters, transform)

  @property
  def batch(self) -> BatchConfig:
    """Returns what `optimizer_batches` reads."""
    # An interpolated anchor moves with the policy: the loss finds its correction.
    correction = (CorrectionConfig() if self.updates.anchor == "interpolated" else self.correction)
    return BatchConfig(self.rollout.group_size, self.updates.optimizer_batches, self.advantage,
                       self.aggregation, correction, self.kl, self.term_columns)

  @property
  def term_columns(self) -> tuple[str, ...]:
    """Returns the columns with a pass that loss terms, the estimator and update transforms read,
    sorted.
    """
    parts = self.term.table.parts(self.term.name).values()
    transforms = self.transform.table.parts(self.transform.name).values()
    table = self.estimator.table
    of_estimator = table[self.estimator.name].required(table.numbers(self.estimator))
    passes = frozenset(name for name in of_estimator if name in registry.COLUMNS)
    of_transforms = (getattr(entry.function, "columns", frozenset()) for entry in transforms)
    return tuple(sorted(passes.union(*(entry.columns for entry in parts), *of_transforms)))
