"""Several processes of one run: what they tell each other (exchanges.py).

Commands start and end them (experiments/commands/start_up.py); anything that calls
`jax.distributed.initialize` may. Arrays cross in `parallel`. Everything here is cheap and harmless
with a single process.
"""

from jaxrl_llm.parallel.exchanges import count, deal, exchange, from_main, index, is_main, share

__all__ = ["count", "deal", "exchange", "from_main", "index", "is_main", "share"]
