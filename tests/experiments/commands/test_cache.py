"""What runs share on disk stays bounded and readable, and a broken folder never stops a run."""

import logging
import os
from pathlib import Path

import jax
import pytest

from experiments.commands import cache


@pytest.fixture
def settings():
  """JAX's own settings, without a folder; after the test as they were."""
  names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
           "jax_persistent_cache_min_entry_size_bytes")
  before = {name: getattr(jax.config, name) for name in names}
  jax.config.update("jax_compilation_cache_dir", None)
  yield jax.config
  for name, value in before.items():
    jax.config.update(name, value)


def test_the_folder_is_the_users_unless_the_environment_names_one(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  monkeypatch.delenv(cache.VARIABLE)
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  assert cache.root() == tmp_path / ".cache/jaxrl_llm"
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
  assert cache.root() == tmp_path / ".cache/jaxrl_llm"
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
  assert cache.root() == tmp_path / "x/jaxrl_llm"
  monkeypatch.setenv(cache.VARIABLE, "~/mine")
  assert cache.root() == tmp_path / "mine"
  monkeypatch.setenv(cache.VARIABLE, "")
  assert cache.root() is None and cache.programs_folder() is None


def test_a_folder_that_cannot_be_written_is_one_warning(monkeypatch, tmp_path, caplog, settings):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
  with caplog.at_level(logging.WARNING):
    cache.keep_programs()
  assert settings.jax_compilation_cache_dir is None
  assert len(caplog.records) == 1 and cache.VARIABLE in caplog.text


def test_small_programs_are_kept_too(monkeypatch, tmp_path, settings):
  monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
  cache.keep_programs()
  assert settings.jax_compilation_cache_dir == str(tmp_path / "xla")
  assert settings.jax_persistent_cache_min_compile_time_secs == 0.0
  assert settings.jax_persistent_cache_min_entry_size_bytes == -1


def _entry(path: Path, size: int, age: float) -> Path:
  path.write_bytes(b"x" * size)
  os.utime(path, (1e9 - age, 1e9 - age))
  return path


def test_the_least_recently_used_entries_go_first(tmp_path):
  old, used, new = (_entry(tmp_path / name, 100, age)
                    for name, age in (("old", 9), ("used", 8), ("new", 1)))
  os.utime(used, (1e9, 1e9 - 8))  # read since
  cache.prune([new, used, old], 250)
  assert not old.exists() and used.exists() and new.exists()
  cache.prune([new, used, old], 100)
  assert used.exists() and not new.exists()
