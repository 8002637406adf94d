"""What reads the numbers of the transform; tests/test_config_reads.py calls it."""

import numpy as np

from experiments.papers.pipo import replay


def call(tiny):
  del tiny
  replay.progress(np.array([0.2, 0.4], np.float32), 2, 0.1, replay.Pipo(history=2))
