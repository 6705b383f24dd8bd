"""Language modelling: what is counted, what is saved, what is refused, and the evaluation's figures and sample."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from forked_ranks import forked_ranks
from rank_processes import training_arguments
from safetensors.torch import load_file, save_file
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import trainyard
from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.steps import evaluate, prepare_text, train_ddp
from trainyard.steps.data.dataset.manifest import ArrayType, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.engines.shared_model import without_memory
from trainyard.steps.training.models_without_weights import model_without_weights
from trainyard.steps.training.tasks.language_modeling import LanguageModeling
from trainyard.steps.training.tasks.task import SampleRequest

LENGTH = 32
TINY_GPT2 = '{"n_layer": 1, "n_embd": 16, "n_head": 2}'
TINY_LLAMA = '{"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}'


def train(data: Path, out: Path, *more: object) -> int:
    flags = training_arguments(data, out, "language_modeling", "--max-steps", 3, *more)
    return train_ddp.main([str(flag) for flag in flags])


@pytest.fixture(scope="module")
def model(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    assert train(text, out, "--model-type", "gpt2", "--model-overrides", TINY_GPT2) == 0
    return out / "model"


def task_for(data: Path, model_type: str = "gpt2", overrides: str | None = TINY_GPT2) -> LanguageModeling:
    return LanguageModeling(
        read_manifest(data), LanguageModelingSettings(model_type=model_type, model_overrides=overrides)
    )


def rows(data: Path, split: str) -> torch.Tensor:
    manifest = read_manifest(data)
    reader = SplitReader(data, manifest, split)
    return torch.from_numpy(reader.gather(np.arange(manifest.splits[split].samples))["tokens"].astype(np.int64))


class NoNumberIsRead(TorchDispatchMode):
    """Fails where the host asks for a number, for which it would have to wait for a GPU."""

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        assert operation is not torch.ops.aten._local_scalar_dense.default, "a number is read"
        return operation(*arguments, **(named or {}))


@pytest.mark.parametrize(("model_type", "overrides"), [("gpt2", TINY_GPT2), ("llama", TINY_LLAMA)])
def test_the_loss_and_its_gradient_wait_for_no_device(text: Path, model_type: str, overrides: str) -> None:
    task = task_for(text, model_type, overrides)
    model = task.new_model()
    with NoNumberIsRead():
        task.loss(model, {"tokens": rows(text, "train")[:2]}).backward()


def test_the_loss_is_the_sum_over_tokens_and_padding_counts_nothing(text: Path) -> None:
    task = task_for(text)
    model = task.new_model().eval()
    tokens = rows(text, "validation")
    padding = read_manifest(text).text.padding  # type: ignore[union-attr]
    assert (tokens[-1] == padding).any()
    with torch.no_grad():
        expected = []
        for row in tokens:
            kept = row[row != padding]
            logits = model(input_ids=kept[None, :-1]).logits[0]
            expected.append(functional.cross_entropy(logits, kept[1:], reduction="sum").item())
        batch = {"tokens": tokens.to(torch.uint16)}
        assert task.loss(model, batch).item() == pytest.approx(sum(expected), rel=1e-5)
        sums = task.measure(model, batch)
    assert float(sums["loss_sum"]) == pytest.approx(sum(expected), rel=1e-5)
    assert int(sums["tokens"]) == read_manifest(text).text.tokens["validation"]  # type: ignore[union-attr]

    figures = task.summarise(sums, "validation")
    text_bytes = read_manifest(text).text.text_bytes["validation"]  # type: ignore[union-attr]
    assert figures["loss"] == pytest.approx(sum(expected) / int(sums["tokens"]), rel=1e-5)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["bits_per_byte"] == pytest.approx(sum(expected) / math.log(2) / text_bytes, rel=1e-5)


def test_training_rows_are_full_and_each_token_is_a_term_of_the_loss(text: Path) -> None:
    task = task_for(text)
    tokens = rows(text, "train")
    assert (tokens < 320).all()
    assert task.loss_terms({"tokens": tokens[:5]}) == 5 * LENGTH
    assert not task.loss_terms_vary
    assert task.tokens_per_sample == LENGTH


def test_a_training_may_end_by_tokens(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = ("--global-batch-size", 4, "--micro-batch-size", 4)
    model = ("--model-type", "gpt2", "--model-overrides", TINY_GPT2)
    assert train(text, tmp_path, *model, *batch, "--max-tokens", 4 * LENGTH + 1) == 0
    assert "trained 2 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model_type", "overrides", "dropout"),
    [("gpt2", TINY_GPT2, "attn_pdrop"), ("llama", TINY_LLAMA, "attention_dropout")],
)
def test_models_take_their_sizes_from_the_dataset_and_no_dropout_unless_it_is_asked_for(
    text: Path, model_type: str, overrides: str, dropout: str
) -> None:
    config: Any = task_for(text, model_type, overrides).new_model().config
    assert (config.vocab_size, config.max_position_embeddings) == (320, LENGTH)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 0, None)
    assert getattr(config, dropout) == 0.0
    with_dropout = json.dumps({**json.loads(overrides), dropout: 0.1})
    config = task_for(text, model_type, with_dropout).new_model().config
    assert getattr(config, dropout) == 0.1


def test_the_same_words_for_every_architecture(text: Path) -> None:
    config: Any = task_for(text, "gpt2", '{"num_hidden_layers": 1, "hidden_size": 16, "n_head": 2}').new_model().config
    assert (config.n_layer, config.n_embd) == (1, 16)
    with pytest.raises(StepError, match=r"gpt2 has no setting 'n_layers'; did you mean n_layer\?"):
        task_for(text, "gpt2", '{"n_layers": 1}').new_model()
    with pytest.raises(StepError, match="n_layer is -1; expected a number of at least 0"):
        task_for(text, "gpt2", '{"n_layer": -1}').new_model()


def test_what_a_training_leaves_is_what_transformers_reads(text: Path, model: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.decode(tokenizer("The if statement")["input_ids"]) == "The if statement"
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|endoftext|>", LENGTH)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    assert loaded.generation_config.eos_token_id == loaded.generation_config.pad_token_id == 0
    written = loaded.generate(**tokenizer("The", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert written.shape[1] > 1

    task = task_for(text)
    batch = {"tokens": rows(text, "test")[:4]}
    assert torch.equal(task.loss(loaded.eval(), batch), task.loss(task.load_model(model).eval(), batch))


def test_training_goes_on_from_a_folder_with_weights(text: Path, model: Path, tmp_path: Path) -> None:
    assert train(text, tmp_path, "--model-type", model, "--learning-rate", 0) == 0
    before, after = (task_for(text).load_model(folder).state_dict() for folder in (model, tmp_path / "model"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_rank_that_is_brought_the_weights_does_not_read_them(text: Path, model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"nothing to read")

    def described(module: torch.nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
        tensors = [*module.named_parameters(), *module.named_buffers()]
        return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors}

    brought = without_memory(task_for(text, str(folder), None).new_model)
    assert all(tensor.is_meta for tensor in [*brought.parameters(), *brought.buffers()])
    assert described(brought) == described(task_for(text, str(model), None).new_model())


def test_models_and_datasets_that_do_not_fit(text: Path, model: Path, digits: Path, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"needs tokens; this dataset holds labelled_images"):
        task_for(digits)
    with pytest.raises(StepError, match=r"'gtp2': unknown causal language model .*; did you mean gpt2"):
        task_for(text, "gtp2").new_model()

    def prepared(name: str, *flags: str) -> Path:
        assert prepare_text.main(["--prepared", str(tmp_path / name), *flags]) == 0
        return tmp_path / name

    longer = prepared("longer", "--tokenizer", str(model), "--sequence-length", "33")
    with pytest.raises(StepError, match=r"takes at most 32 tokens at once; the dataset's rows have 33\. Prepare"):
        task_for(longer, str(model), None).new_model()
    larger = prepared("larger", "--vocabulary-size", "330", "--sequence-length", "32")
    with pytest.raises(StepError, match=r"is not the dataset's: prepare the text .*--tokenizer"):
        task_for(larger).load_model(model)
    nameless = shutil.copytree(model, tmp_path / "nameless", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(StepError, match=r"has 320 tokens; the dataset has 330\. Prepare"):
        task_for(larger, str(nameless), None).new_model()


def altered(model: Path, copy: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a model with other weights."""
    shutil.copytree(model, copy)
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def test_weights_that_are_missing_are_not_made_up(text: Path, model: Path, tmp_path: Path) -> None:
    name = "transformer.h.0.attn.c_attn.weight"
    lacking = altered(model, tmp_path / "lacking", lambda weights: weights.pop(name))
    for load in (lambda: task_for(text).load_model(lacking), task_for(text, str(lacking), None).new_model):
        with pytest.raises(
            StepError, match=rf"lacking: {name} is missing in the weights of the model that config.json"
        ):
            load()


def test_a_language_model_without_its_output_head_is_refused_unless_the_head_is_tied(
    text: Path, tmp_path: Path
) -> None:
    llama = task_for(text, "llama", TINY_LLAMA)
    llama.save_model(llama.new_model(), tmp_path / "whole")
    headless = altered(tmp_path / "whole", tmp_path / "headless", lambda weights: weights.pop("lm_head.weight"))
    for load in (task_for(text, str(headless), None).new_model, lambda: llama.load_model(headless)):
        with pytest.raises(StepError, match=r"headless: lm_head.weight is missing in the weights"):
            load()

    def renamed(weights: dict[str, torch.Tensor]) -> None:
        weights["embed_out.weight"] = weights.pop("lm_head.weight")

    other = altered(tmp_path / "whole", tmp_path / "renamed", renamed)
    with pytest.raises(StepError, match=r"lm_head.weight is missing .*the weights have embed_out.weight, which"):
        task_for(text, str(other), None).new_model()

    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    tied: Any = task_for(text, str(headless), None).new_model()
    assert tied.lm_head.weight is tied.model.embed_tokens.weight


def test_weights_that_the_model_lacks_are_named(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama = task_for(text, "llama", TINY_LLAMA)
    llama.save_model(llama.new_model(), tmp_path / "whole")
    extra = {"critic.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    for build in ("built", "left in its files"):
        more = altered(tmp_path / "whole", tmp_path / build, lambda weights: weights.update(extra))
        new_model = task_for(text, str(more), None).new_model
        if build == "built":
            new_model()
        else:
            model_without_weights(new_model)
        assert f"warning: {more} has critic.weight, which the model lacks: not used" in capsys.readouterr().out


def test_weights_over_several_files_are_read(text: Path, model: Path, tmp_path: Path) -> None:
    whole: Any = task_for(text).load_model(model)
    whole.save_pretrained(tmp_path, max_shard_size="10KB")
    assert not (tmp_path / "model.safetensors").exists()
    parts = task_for(text).load_model(tmp_path).state_dict()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.state_dict().items())


def test_a_folder_whose_weights_are_a_pickle_is_refused(text: Path, model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(StepError, match=r"pytorch_model.bin is not read, because a pickle can run code: let transform"):
        task_for(text, str(folder), None).new_model()


def test_code_in_a_models_folder_is_neither_run_nor_passed_on(
    text: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if whoever sits at the terminal says yes."""
    folder = Path(shutil.copytree(model, tmp_path / "planted"))
    (folder / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for name, classes in (
        ("config.json", ("AutoConfig", "AutoModelForCausalLM")),
        ("tokenizer_config.json", ("AutoTokenizer",)),
    ):
        settings = json.loads((folder / name).read_text())
        settings["auto_map"] = dict.fromkeys(classes, "planted.Planted")
        (folder / name).write_text(json.dumps(settings))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    data, out = tmp_path / "data", tmp_path / "out"
    flags = ("--tokenizer", str(folder), "--sequence-length", "32")
    assert prepare_text.main(["--prepared", str(data), *flags]) == 0
    assert train(data, out, "--model-type", folder) == 0
    assert not (tmp_path / "ran").exists()
    assert not any(b"auto_map" in file.read_bytes() for file in (out / "model").iterdir())


def test_everywhere_transformers_is_told_to_run_no_code_of_a_models_folder() -> None:
    root, told = Path(trainyard.__file__).parent, 0
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".from_pretrained", ".from_config")):
                if ast.unparse(node.func).startswith("PeftModel"):  # it reads adapters beside a model that is there
                    continue
                named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert named.get("trust_remote_code") == "False", f"{file}:{node.lineno}"
                told += 1
    assert told >= 7


@pytest.mark.parametrize("place", ["../weights.safetensors", "/weights.safetensors", "weights.bin", 3])
def test_an_index_of_weights_names_files_of_its_own_folder(
    text: Path, model: Path, tmp_path: Path, place: object
) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "model.safetensors").rename(tmp_path / "weights.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": place}}))
    with pytest.raises(StepError, match=r"index.json: lm_head.weight is in .*; expected the name of a .safetensors fi"):
        task_for(text, str(folder), None).new_model()


@pytest.mark.parametrize("broken", ["[" * 100_000, "9" * 5_000, "{", "\xff"])
def test_a_broken_configuration_is_one_line(text: Path, model: Path, tmp_path: Path, broken: str) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "config.json").write_bytes(broken.encode("latin-1"))
    with pytest.raises(StepError, match=r"model: its config.json cannot be used: "):
        task_for(text, str(folder), None).new_model()


def test_a_moved_model_is_the_same_and_a_changed_one_is_not(
    text: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert train(text, out, "--model-type", model) == 0
    moved = Path(shutil.copytree(model, tmp_path / "moved"))
    assert train(text, out, "--model-type", moved) == 0
    changed = altered(model, tmp_path / "changed", lambda weights: weights["transformer.ln_f.bias"].add_(1))
    assert train(text, out, "--model-type", changed) == 1
    assert "belongs to another training, with model_type 'a folder with the SHA-256 " in capsys.readouterr().err


def test_a_base_model_may_lie_within_an_mlflow_model(text: Path, model: Path, tmp_path: Path) -> None:
    within = tmp_path / "mlflow" / "artifacts" / "model"
    shutil.copytree(model, within)
    flags = ("--base-model", tmp_path / "mlflow", "--learning-rate", 0.0, "--matmul-precision", "high")
    assert train(text, tmp_path / "out", *flags) == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "out" / "model"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert train(text, tmp_path / "none", "--base-model", text) == 1


def test_experts_are_trained_with_the_loss_of_their_routers(text: Path) -> None:
    overrides = {"num_local_experts": 4, "router_aux_loss_coef": 0.5, **json.loads(TINY_LLAMA)}
    overrides["num_key_value_heads"] = 2
    task = task_for(text, "mixtral", json.dumps(overrides))
    mixtral: Any = task.new_model().train()
    tokens = torch.tensor(SplitReader(text, read_manifest(text), "train").gather(np.arange(3))["tokens"].astype(int))
    expected = mixtral(input_ids=tokens[:, :-1], labels=tokens[:, :-1], output_router_logits=True)
    cross_entropies = functional.cross_entropy(expected.logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    loss = task.loss(mixtral, {"tokens": tokens})
    assert expected.aux_loss > 0
    torch.testing.assert_close(loss, cross_entropies + 0.5 * expected.aux_loss * 3 * LENGTH)


@pytest.mark.parametrize("packed", [False, True])
def test_padding_is_not_routed_to_experts_as_far_as_their_loss_is_concerned(text: Path, *, packed: bool) -> None:
    overrides = {"num_local_experts": 4, "router_aux_loss_coef": 0.5, **json.loads(TINY_LLAMA)}
    found, tokens = read_manifest(text), 20
    shape = found.arrays["tokens"].shape
    arrays = {**found.arrays, "answers": ArrayType("bool", shape)}
    if packed:
        arrays["documents"] = ArrayType("uint16", shape)
    settings = LanguageModelingSettings(
        model_type="mixtral", model_overrides=json.dumps({**overrides, "num_key_value_heads": 2})
    )
    task = LanguageModeling(dataclasses.replace(found, content="conversations", arrays=arrays), settings)
    mixtral: Any = task.new_model().train()
    rows = torch.tensor(SplitReader(text, found, "train").gather(np.arange(3))["tokens"].astype(int))
    assert found.text is not None
    rows[:, tokens:] = found.text.padding
    read = rows[:, :tokens]
    alone = mixtral(input_ids=read, output_router_logits=True)
    cross_entropies = functional.cross_entropy(
        alone.logits[:, :-1].flatten(0, 1), read[:, 1:].flatten(), reduction="sum"
    )
    is_token = rows != found.text.padding
    batch = {"tokens": rows, "answers": is_token} | ({"documents": is_token.long()} if packed else {})
    loss = task.loss(mixtral, batch)
    torch.testing.assert_close(loss, cross_entropies + 0.5 * alone.aux_loss * 3 * (tokens - 1))


def test_overrides_that_do_not_fit_the_dataset(text: Path) -> None:
    with pytest.raises(StepError, match=r'--model-overrides {.*"vocab_size": 9}: the model has 9 tokens; the dataset'):
        task_for(text, "gpt2", TINY_GPT2[:-1] + ', "vocab_size": 9}').new_model()
    with pytest.raises(StepError, match=r"the model takes at most 31 tokens at once; the dataset's rows have 32\."):
        task_for(text, "gpt2", TINY_GPT2[:-1] + ', "n_positions": 31}').new_model()


def test_a_folder_that_happens_to_be_called_like_a_type_of_model(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert task_for(text, "gpt2").new_model() is not None
    with pytest.raises(StepError, match=r"--model-type mine: expected a folder with a config.json"):
        task_for(text, "mine").new_model()


def test_the_datasets_tokeniser_is_checked_before_training_needs_it(text: Path, model: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(text, tmp_path / "data"))
    other = (data / "tokenizer.json").read_text().replace("the", "hte")
    (data / "tokenizer.json").write_text(other)
    with pytest.raises(StepError, match=r"data/tokenizer.json is not what was written: its SHA-256 differs"):
        task_for(data)
    (data / "tokenizer.json").unlink()
    with pytest.raises(StepError, match=r"data/tokenizer.json is missing: a dataset of tokens has it beside its mani"):
        task_for(data)
    broken = Path(shutil.copytree(model, tmp_path / "model"))
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(StepError, match=r"is not a tokenizer that the package tokenizers reads: EOF"):
        task_for(text).load_model(broken)


def run(data: Path, model: Path, out: Path, *more: object) -> int:
    flags = ["--data", data, "--model", model, "--evaluation", out, *more]
    return evaluate.main([str(flag) for flag in flags])


def test_what_an_evaluation_leaves(text: Path, model: Path, tmp_path: Path) -> None:
    assert run(text, model, tmp_path, "--sample-prompt", "The if", "--sample-tokens", 40) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    manifest = read_manifest(text)
    assert manifest.text is not None
    assert (found["split"], found["samples"]) == ("test", manifest.splits["test"].samples)
    assert found["tokens"] == manifest.text.tokens["test"]
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    bits = found["loss"] * found["tokens"] / math.log(2)
    assert found["bits_per_byte"] == pytest.approx(bits / manifest.text.text_bytes["test"])
    assert found["sample"]["prompt"] == "The if"
    assert found["sample"]["text"].startswith("The if")
    assert (tmp_path / "sample.txt").read_bytes().decode() == found["sample"]["text"] + "\n"
    assert not (tmp_path / "confusion_matrix.json").exists()


def test_samples_are_the_same_each_time(text: Path, model: Path) -> None:
    task = task_for(text)
    loaded = task.load_model(model)
    split = SplitReader(text, read_manifest(text), "test")
    drawn = [task.sample(loaded, SampleRequest(split, tokens=50)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    likeliest = task.sample(loaded, SampleRequest(split, tokens=50, temperature=0))
    assert likeliest != drawn[0]
    assert likeliest.prompt == drawn[0].prompt  # the beginning of the split's first row


class Recites(torch.nn.Module):
    """Always goes on as a row does."""

    def __init__(self, row: torch.Tensor) -> None:
        super().__init__()
        self._row = row

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=functional.one_hot(self._row[1 : input_ids.shape[1] + 1], 257)[None].float())


def test_a_sample_begins_with_its_prompt_though_that_ends_within_a_character(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("日本語の文章" * 99, encoding="utf-8")
    flags = ["--source", str(tmp_path), "--validation-fraction", "0", "--test-fraction", "0"]
    sizes = ["--vocabulary-size", "257", "--sequence-length", "32"]  # every byte is a token
    assert prepare_text.main(["--prepared", str(tmp_path / "data"), *flags, *sizes]) == 0
    task = task_for(tmp_path / "data")
    split = SplitReader(tmp_path / "data", read_manifest(tmp_path / "data"), "train")
    sample = task.sample(Recites(rows(tmp_path / "data", "train")[0]), SampleRequest(split, tokens=8, temperature=0))
    assert sample.prompt == "日本語の文"  # and the first byte of the next character
    assert sample.text == "日本語の文章日本"


def test_a_perplexity_above_the_maximum_fails_after_the_results(
    text: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(text, model, tmp_path, "--maximum-perplexity", 1.5, "--sample-tokens", 0) == 1
    perplexity = json.loads((tmp_path / "evaluation.json").read_text())["perplexity"]
    assert capsys.readouterr().err.splitlines() == [
        f"trainyard.steps.evaluate: error: perplexity {perplexity:.4f} on test is above --maximum-perplexity 1.5; "
        f"the results are in {tmp_path}"
    ]
    assert not (tmp_path / "sample.txt").exists()
    assert run(text, model, tmp_path, "--minimum-accuracy", 0.5) == 1
    assert "a limit of accuracy is set, but the task language_modeling has no accuracy" in capsys.readouterr().err


@pytest.mark.slow
def test_two_ranks_find_what_one_finds(text: Path, model: Path, tmp_path: Path) -> None:
    """Each with the whole model, or with a part of every weight."""
    assert run(text, model, tmp_path / "one", "--micro-batch-size", 7) == 0
    for name, shard in (("two", "false"), ("sharded", "true")):
        flags = ["--data", text, "--model", model, "--evaluation", tmp_path / name, "--shard-model", shard]
        exit_codes, outputs = forked_ranks().run("evaluate", flags, 2)
        assert exit_codes == [0, 0], outputs
        one, two = (json.loads((tmp_path / each / "evaluation.json").read_text()) for each in ("one", name))
        assert one.pop("loss") == pytest.approx(two.pop("loss"), rel=1e-6)
        for figure in ("perplexity", "bits_per_byte"):
            assert one.pop(figure) == pytest.approx(two.pop(figure), rel=1e-5)
        assert one == two
