"""Several processes of one run: how they find each other, what they tell each other, how they end.

  start_up.py   `jax.distributed` from flags or from the engine that launched the processes
  roll_call.py  a connection of each process to process 0, which shows who is missing or has died
  exchanges.py  values of the host, from each process to all

Arrays cross in `parallel`. Everything here is cheap and harmless with a single process.
"""

from jaxrl_llm.parallel.exchanges import count, deal, exchange, from_main, index, is_main, share
from jaxrl_llm.parallel.start_up import fail, finish, start

__all__ = ["count", "deal", "exchange", "fail", "finish", "from_main", "index", "is_main", "share",
           "start"]
