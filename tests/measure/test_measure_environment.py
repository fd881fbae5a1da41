"""Provenance: what is recorded names no host, user or absolute path, and says which commit it was."""

import os
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from profiling.case import InputError
from profiling.measure.environment import (
    check_device,
    git_state,
    relative_arguments,
    with_provenance,
    worker_environment,
)
from profiling.records import Environment

HERE = Environment(device_kind="cpu", device_name="a CPU")


class TestArguments:
    """The recorded command line."""

    @pytest.mark.parametrize(
        ("word", "kept"),
        [
            ("run", "run"),
            ("--device", "--device"),
            ("cuda:0", "cuda:0"),
            ("{root}/data/sweeps/quick.toml", "data/sweeps/quick.toml"),
            ("{root}", "."),
            ("/home/someone/out", "out"),
            ("--out=/home/someone/out", "--out=out"),
            ("--out={root}/data/runs", "--out=data/runs"),
            ("../elsewhere/x.toml", "x.toml"),
            ("~/runs", "runs"),
            ("naive,flash", "naive,flash"),
            ("data/sweeps/quick.toml", "data/sweeps/quick.toml"),
        ],
    )
    def test_paths(self, tmp_path, word, kept):
        """Paths inside the checkout become relative to it, others keep their last name only."""
        argv = ["/usr/bin/python", word.format(root=tmp_path)]
        assert relative_arguments(argv, tmp_path, tmp_path) == ["flashscope", kept]

    def test_from_another_folder(self, tmp_path):
        """A path relative to where the command was typed is written relative to the checkout."""
        folder = tmp_path / "data" / "sweeps"
        folder.mkdir(parents=True)
        (folder / "a.toml").touch()
        found = relative_arguments(["x", "a.toml", "../../data"], tmp_path, folder)
        assert found == ["flashscope", "data/sweeps/a.toml", "data"]


class TestGit:
    """The recorded commit."""

    @pytest.fixture
    def checkout(self, tmp_path):
        """A repository with one commit."""

        def git(*arguments):
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(
                ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True
            )

        git("init")
        (tmp_path / "a").write_text("1")
        git("add", "a")
        git("commit", "-m", "x")
        return tmp_path

    def test_a_clean_and_a_changed_tree(self, checkout):
        """The commit is git's; a change is seen."""
        commit, clean = git_state(checkout)
        assert len(commit) == 40
        assert clean is True
        (checkout / "a").write_text("2")
        assert git_state(checkout) == (commit, False)

    def test_without_git(self, tmp_path):
        """No .git: nothing is known, and nothing is claimed."""
        assert git_state(tmp_path) == ("", None)

    def test_a_given_commit_stands_in(self, tmp_path):
        """--git-commit is recorded where there is no .git; whether the tree was clean stays unknown."""
        found = with_provenance(HERE, ["x"], "ABCDEF1234", tmp_path)
        assert (found.git_commit, found.git_clean) == ("abcdef1234", None)

    def test_a_given_commit_must_agree_with_git(self, checkout):
        """A commit that is not the checkout's is refused; a prefix of the right one is not."""
        commit, _ = git_state(checkout)
        assert with_provenance(HERE, ["x"], commit[:10], checkout).git_commit == commit
        with pytest.raises(InputError, match="not this checkout's"):
            with_provenance(HERE, ["x"], "0123456789", checkout)

    @pytest.mark.parametrize("text", ["", "main", "12345", "g" * 40, "a" * 41])
    def test_a_given_commit_must_be_one(self, tmp_path, text):
        """A branch's name is no commit."""
        with pytest.raises(InputError, match="7 to 40 hex digits"):
            with_provenance(HERE, ["x"], text, tmp_path)


def test_the_cpu_environment_is_anonymous():
    """Versions and the processor are there; host, user and absolute paths are nowhere."""
    found = worker_environment(torch.device("cpu"))
    assert found.device_kind == "cpu"
    assert found.torch_version == torch.__version__
    assert found.cpu_count >= 1
    text = found.model_dump_json()
    assert socket.gethostname() not in text.replace(found.device_name, "")
    assert str(Path.home()) not in text
    assert os.getcwd() not in text


@pytest.mark.parametrize(("name", "full"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:3", "cuda:3")])
def test_device_names(name, full):
    """`cuda` is `cuda:0`."""
    assert check_device(name) == full


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cpu:0", "mps", "CUDA:0"])
def test_unknown_devices(name):
    """What is no device is refused in one sentence that says what is."""
    with pytest.raises(InputError, match="must be cpu or cuda:0"):
        check_device(name)
