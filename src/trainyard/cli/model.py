"""`trainyard model`: a model of the Hugging Face Hub, downloaded at one commit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from trainyard.cli import working_folder
from trainyard.cli.parameters import PathOf, VerbGroup
from trainyard.errors import UserError
from trainyard.settings.quantities import counted
from trainyard.terminal import print_facts, print_next, short

# What a training reads. A repository may have the same weights again: as a pickle, for other programs, in folders.
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
_OTHERS = re.compile(
    r"(generation_|preprocessor_)?config\.json|chat_template\.\w+|merges\.txt|"
    r"(tokenizer|special_tokens|added_tokens|vocab|spiece|sentencepiece)[\w.-]{0,40}\.(json|txt|model)"
)


@click.group(cls=VerbGroup)
def model() -> None:
    """Get a model to start from.

    \b
    Example:
      trainyard model fetch HuggingFaceTB/SmolLM-135M
    """


@model.command("fetch")
@click.argument("name")
@click.option("--revision", metavar="REF", help="A branch, tag or commit.  [default: main]")
@click.option("--into", type=PathOf("folder"), metavar="DIR", help="[default: the project's models/ and the name]")
def model_fetch(name: str, revision: str | None, into: Path | None) -> None:
    """Download a model of the Hugging Face Hub: weights as safetensors, configuration and tokenizer, no code.

    The revision is resolved to a commit first, of which all files are; the commit and what goes into a profile are
    printed. HF_TOKEN and HF_ENDPOINT are the Hub's own variables.

    \b
    Examples:
      trainyard model fetch HuggingFaceTB/SmolLM-135M
      trainyard model fetch meta-llama/Llama-3.1-8B-Instruct --revision main --into models/llama-8b
    """
    root = working_folder.private_folder().parent
    folder = into or root / "models" / name.rpartition("/")[2].lower()
    with _explaining(name, revision):
        from huggingface_hub import HfApi, hf_hub_download

        endpoint = os.environ.get("HF_ENDPOINT")
        found = HfApi(endpoint=endpoint).model_info(name, revision=revision)
        listed = [file.rfilename for file in found.siblings or ()]
        weights = [file for file in listed if _WEIGHTS.fullmatch(file)]
        if not weights or "config.json" not in listed:
            raise UserError(f"{name} has no {'config.json' if weights else 'model.safetensors'}: choose another model")
        if others := [file.name for file in folder.glob("model*.safetensors") if file.name not in weights]:
            raise UserError(f"{folder} has weights of another model ({others[0]}); choose another folder with --into")
        files = [*weights, *filter(_OTHERS.fullmatch, listed)]
        for file in files:
            hf_hub_download(name, file, revision=found.sha, local_dir=folder, endpoint=endpoint)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes, which would be uploaded too
    place = folder.absolute()
    shown = place.relative_to(root) if place.is_relative_to(root) else place
    print_facts(
        [("model", f"{name}, commit {found.sha}"), ("folder", f"{short(folder)}: {counted(len(files), 'file')}")]
    )
    print_facts([("in a profile", f"base_model: {shown.as_posix()}")])
    create = f"az ml model create --name {folder.name} --version 1 --type custom_model --path {short(folder)}"
    print_next((create, f"for the cluster; then base_model: azureml:{folder.name}:1"))


@contextmanager
def _explaining(name: str, revision: str | None) -> Iterator[None]:
    """Raise UserError, in one line, for what the Hub or the way there refuses."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise UserError("huggingface_hub is not installed: pip install 'trainyard-azureml[train]'") from None
    # Of the HTTP library, which differs from version to version: the class of all its errors, of connections too.
    of_http: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except errors.HFValidationError:
        raise UserError(f"{name} is not a name of the Hub; expected OWNER/MODEL") from None
    except errors.GatedRepoError:
        advice = "accept its terms on its page, then give a token: HF_TOKEN=…, or `hf auth login`"
        raise UserError(f"{name} is only for those who have accepted its terms; {advice}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"unknown model {name}; check the name, or give a token if it is private: HF_TOKEN=…") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name} has no revision {revision}") from None
    except (of_http, ConnectionError, errors.LocalEntryNotFoundError) as error:
        said = str(error).strip().partition("\n")[0]
        advice = "check the network, a proxy (HTTPS_PROXY), HF_ENDPOINT and HF_HUB_OFFLINE"
        raise UserError(f"no answer from the Hub: {said}; {advice}") from None
