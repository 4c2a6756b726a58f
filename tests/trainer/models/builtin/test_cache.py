"""One folder for each recipe, built once, whole or not at all."""

import json

import pytest

from llmgym_trainer.models.builtin.cache import cached_model


def writer(text, built):
    def build(folder):
        built.append(folder)
        (folder / "weights").write_text(text)

    return build


def test_a_recipe_is_built_once_and_another_recipe_again(tmp_path):
    built = []
    first = cached_model("toy", {"seed": 1, "lr": 0.5}, writer("one", built), cache_dir=tmp_path)
    again = cached_model("toy", {"lr": 0.5, "seed": 1}, writer("never", built), cache_dir=tmp_path)
    other = cached_model("toy", {"seed": 2, "lr": 0.5}, writer("two", built), cache_dir=tmp_path)
    assert first == again != other
    assert len(built) == 2
    assert (first / "weights").read_text() == "one"
    assert (other / "weights").read_text() == "two"
    assert json.loads((first / "recipe.json").read_text()) == {"seed": 1, "lr": 0.5}


def test_the_folder_comes_from_the_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMGYM_CACHE", str(tmp_path / "models"))
    assert cached_model("toy", {}, writer("x", [])).parent == tmp_path / "models"


def test_a_failed_build_leaves_nothing_and_the_next_one_starts_afresh(tmp_path):
    def fails(folder):
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_model("toy", {}, fails, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    folder = cached_model("toy", {}, writer("whole", []), cache_dir=tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["recipe.json", "weights"]


def test_of_two_builds_at_once_the_first_to_finish_stays(tmp_path):
    def slow(folder):
        cached_model("toy", {}, writer("first", []), cache_dir=tmp_path)
        (folder / "weights").write_text("second")

    folder = cached_model("toy", {}, slow, cache_dir=tmp_path)
    assert (folder / "weights").read_text() == "first"
    assert list(tmp_path.iterdir()) == [folder]
