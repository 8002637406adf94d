"""Digests of files: right, and made again when the file may be another one."""

import hashlib
import os

import pytest

from jaxrl_llm.store import cache, contents


@pytest.fixture
def shared(monkeypatch, tmp_path):
  monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "shared"))
  monkeypatch.setattr(contents, "KEPT_FROM", 1)
  monkeypatch.setattr(contents, "SETTLED", -1.0)  # files of a test are new
  return tmp_path / "shared" / cache.DIGESTS


@pytest.fixture
def reads(monkeypatch):
  """Counts how often a file is digested."""
  count, digest = [], hashlib.file_digest
  monkeypatch.setattr(hashlib, "file_digest", lambda *a: count.append(1) or digest(*a))
  return count


def sha256(text):
  return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_that_stays_is_digested_once(shared, reads, tmp_path):
  (tmp_path / "a").write_text("one")
  assert [contents.digest(tmp_path / "a") for _ in range(3)] == [sha256("one")] * 3
  assert len(reads) == 1 and len(list(shared.iterdir())) == 1
  (tmp_path / "b").write_text("two")
  files = [tmp_path / "b", tmp_path / "a", tmp_path / "b"]
  assert contents.digests(files) == {files[0]: sha256("two"), files[1]: sha256("one")}
  assert len(reads) == 2


def rewritten(file, before):
  file.write_text("two")  # as long as before
  os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(file, before):
  file.with_name("new").write_text("two")
  os.utime(file.with_name("new"), ns=(before.st_atime_ns, before.st_mtime_ns))
  os.replace(file.with_name("new"), file)


@pytest.mark.parametrize("change", [rewritten, replaced])
def test_the_same_size_and_time_of_writing_do_not_deceive(shared, tmp_path, change):
  file = tmp_path / "a"
  file.write_text("one")
  assert contents.digest(file) == sha256("one")
  before = file.stat()
  change(file, before)
  while (after := file.stat()).st_ctime_ns == before.st_ctime_ns:  # until the clock has ticked
    change(file, before)
  # What is rejected: size and time of writing alone.
  assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
  assert contents.digest(file) == sha256("two")


def test_a_file_that_was_written_just_now_is_not_kept(shared, monkeypatch, tmp_path):
  """A second write within the resolution of the clock would not show."""
  monkeypatch.setattr(contents, "SETTLED", 600.0)
  (tmp_path / "a").write_text("one")
  contents.digest(tmp_path / "a")
  assert not list(shared.iterdir())


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"sha256": 1}', '{"sha256": "forged"}'])
def test_a_damaged_note_is_no_digest(shared, tmp_path, content):
  (tmp_path / "a").write_text("one")
  contents.digest(tmp_path / "a")
  next(shared.iterdir()).write_text(content)
  assert contents.digest(tmp_path / "a") == sha256("one")


def test_small_files_and_no_folder_leave_nothing(shared, monkeypatch, tmp_path):
  (tmp_path / "a").write_text("one")
  monkeypatch.setattr(contents, "KEPT_FROM", 4)
  assert contents.digest(tmp_path / "a") == sha256("one") and not shared.exists()
  monkeypatch.setattr(contents, "KEPT_FROM", 1)
  monkeypatch.setenv(cache.VARIABLE, "")
  assert contents.digest(tmp_path / "a") == sha256("one") and not shared.exists()
