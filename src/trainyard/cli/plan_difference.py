"""`trainyard plan --against`: what a change of a pipeline means, compared with the files of a git revision.

The revision is laid out in a temporary folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError, UserError
from trainyard.git import GitAnswer, NoGit, ask_git, repository_top
from trainyard.lint.config import computes_for
from trainyard.plan import difference_reporters
from trainyard.plan.difference import PlanDifference
from trainyard.plan.job_plans import Plan
from trainyard.plan.pipeline_settings import Setting, changes_between, settings_of
from trainyard.plan.planner import plan as plan_pipeline
from trainyard.plan.planner import without_jobs
from trainyard.project_files import limit_reading
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.terminal import short

# What a pipeline reads is text; of anything larger only its name matters.
_LARGEST_BYTES = 1024 * 1024
_SYMBOLIC_LINK, _SUBMODULE = "120000", "160000"
_MISSING = "BAD"
"""What git prints for the size of an object that it does not have."""


@dataclass(frozen=True)
class Revision:
    """A commit's files below `root`, where `top` is the repository's own folder; `commit` is abbreviated by git."""

    ref: str
    commit: str
    top: Path
    root: Path

    def __str__(self) -> str:
        is_its_beginning = self.ref.startswith(self.commit) or self.commit.startswith(self.ref)
        return self.ref if is_its_beginning else f"{self.ref} ({self.commit})"

    def place_of(self, file: Path) -> Path:
        """Return where a file of the repository is, or would be, in the revision."""
        return self.root / file.resolve().relative_to(self.top)

    def yaml_files(self) -> list[Path]:
        """Return all YAML files, relative to the top: those here that git does not ignore, and the revision's."""
        listed = _git(self.top, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.yml", "*.yaml")
        here = listed.output.decode("utf-8", "surrogateescape").split("\0")
        then = (path.relative_to(self.root) for ending in ("*.yml", "*.yaml") for path in self.root.rglob(ending))
        return sorted({*(Path(name) for name in here if name), *then})


@contextmanager
def revision_of(folder: Path, ref: str) -> Iterator[Revision]:
    """Lay out all files of a revision of the repository that a folder is in.

    Nothing in the repository changes: no checkout, no worktree, no filter runs. UsageError outside a repository and for
    an unknown revision; UserError without git.
    """
    try:
        top = repository_top(folder)
    except NoGit:
        raise UserError("--against needs git, which is not on the PATH") from None
    if top is None:
        raise UsageError(f"{folder} is not in a git repository; --against compares with a version that git knows")
    commit = _commit(folder, ref)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as temporary:
        root = Path(temporary).resolve()
        _lay_out(top, commit, root)
        # What git ignores, such as data, is of no revision: it is as it is here.
        ignored = _git(top, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory").output
        for name in ignored.decode("utf-8", "surrogateescape").split("\0"):
            if name.endswith("/") and (root / name).parent.is_dir() and not (root / name).exists():
                (root / name).symlink_to(top / name)
        yield Revision(ref, _git(top, "rev-parse", "--short", commit).text, top, root)


def _commit(folder: Path, ref: str) -> str:
    """Return the full name of the commit that a branch, a tag or an expression such as HEAD~1 means."""
    answer = ask_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if answer.succeeded:
        return answer.text
    shallow = ask_git(folder, "rev-parse", "--is-shallow-repository").text == "true"
    hint = "this clone is shallow: fetch its history, such as `git fetch --unshallow`, or `fetch-depth: 0` in CI"
    raise UsageError(
        f"unknown git revision {ref!r}; {hint if shallow else 'expected a branch, a tag, a commit or HEAD~1'}"
    )


def _lay_out(top: Path, commit: str, root: Path) -> None:
    """Write every file of a commit; those that are too large to be read as YAML are empty."""
    listed = _git(top, "ls-tree", "-r", "-z", "--long", "--full-tree", commit).text
    entries = [_entry(line) for line in listed.split("\0") if line]
    wanted = [each for each in entries if each[0] != _SUBMODULE and each[2] <= _LARGEST_BYTES]
    objects = "".join(f"{name}\n" for _, name, _, _ in wanted).encode()
    contents = _contents(_git(top, "cat-file", "--batch", given=objects).output)
    for mode, name, size, path in entries:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if mode == _SUBMODULE:
            target.mkdir(exist_ok=True)
        elif mode == _SYMBOLIC_LINK:
            _link(target, contents[name].decode("utf-8", "surrogateescape"), root)
        else:
            target.write_bytes(contents[name] if size <= _LARGEST_BYTES else b"")


def _link(link: Path, aim: str, root: Path) -> None:
    """Make a symbolic link, unless it would lead out of the folder: a revision is read, not followed elsewhere."""
    if Path(aim).is_absolute() or not (link.parent / aim).resolve().is_relative_to(root):
        return
    link.symlink_to(aim)


def _entry(line: str) -> tuple[str, str, int, str]:
    """Return mode, object, size and path of `<mode> <type> <object> <size>\\t<path>`."""
    facts, _, path = line.partition("\t")
    mode, _, name, size = facts.split()
    if size == _MISSING:
        raise UserError(f"{path} is missing from this repository, as in a partial clone; run `git fetch --refetch`")
    return mode, name, 0 if size == "-" else int(size), path


def _contents(batch: bytes) -> dict[str, bytes]:
    """Return the contents by object of what `git cat-file --batch` prints: `<object> <type> <size>\\n<content>\\n`."""
    found: dict[str, bytes] = {}
    place = 0
    while place < len(batch):
        end = batch.index(b"\n", place)
        name, _, size = batch[place:end].decode().split()
        found[name] = batch[end + 1 : end + 1 + int(size)]
        place = end + 2 + int(size)
    return found


def _git(folder: Path, *arguments: str, given: bytes = b"") -> GitAnswer:
    """Return git's answer. UsageError with git's own last line where it fails."""
    answer = ask_git(folder, *arguments, given=given)
    if not answer.succeeded:
        raise UsageError(f"git {arguments[0]} failed in {folder}: {answer.error}")
    return answer


@dataclass(frozen=True)
class Compared:
    """What to print of pipelines that were compared, and the plans, as they are now, of those that changed.

    `left_out` has a line for each pipeline that could not be planned at the revision either; `broken` for those that
    could, and now cannot.
    """

    text: str
    plans: Sequence[Plan]
    left_out: Sequence[str] = ()
    broken: Sequence[str] = ()


def plan_against(file: Path, output_format: str, ref: str) -> Compared:
    """Return how a pipeline differs from its version at a git revision."""
    with revision_of(file.resolve().parent, ref) as revision:
        if not revision.place_of(file).is_file():
            raise UsageError(
                f"{short(file)} does not exist at {revision}; a pipeline that is new has nothing to compare with: "
                "run `trainyard plan` without --against"
            )
        limit_reading(revision.top, revision.root)
        difference = _difference(file, revision)
    if output_format == "html":
        from trainyard.report.plan_page import difference_as_html

        return Compared(difference_as_html(difference), [difference.after])
    return Compared(difference_reporters.FORMATTERS[output_format](difference), [difference.after])


def plan_all_against(output_format: str, ref: str) -> Compared:
    """Return how the pipelines of the working directory's repository differ from a git revision, if they do.

    A pipeline that is new, or is there no more, is compared with one without jobs.
    """
    found: list[PlanDifference] = []
    left_out: list[str] = []
    broken: list[str] = []
    with revision_of(Path.cwd(), ref) as revision:
        limit_reading(revision.top, revision.root)
        for file in (revision.top / name for name in revision.yaml_files()):
            if file.is_relative_to(Path.cwd()) and (_is_pipeline(file) or _is_pipeline(revision.place_of(file))):
                try:
                    found.append(_difference(file, revision))
                except (SpecError, UserError) as error:
                    said = str(error).splitlines()[0].replace(f"{Path.cwd()}{os.sep}", "")
                    (broken if _can_be_planned(revision.place_of(file)) else left_out).append(said)
    changed = [each for each in found if not each.is_empty]
    text = difference_reporters.several(changed, str(revision), output_format, broken)
    return Compared(text, [each.after for each in changed], left_out, broken)


def _can_be_planned(file: Path) -> bool:
    with suppress(SpecError, UserError):
        return bool(planned_with_settings(file, []))
    return False


def _difference(file: Path, revision: Revision) -> PlanDifference:
    """Return how a pipeline differs from its version at a revision. UserError where that cannot be planned."""
    after, after_settings = planned_with_settings(file, [revision.top])
    place = revision.place_of(file)
    try:
        before, before_settings = planned_with_settings(place, [revision.root])
    except (SpecError, UsageError) as error:
        told = str(error).replace(f"{revision.root}{os.sep}", "").splitlines()[0]
        raise UserError(f"cannot plan {short(file)} as it is at {revision}: {told}") from None
    return PlanDifference(before, after, str(revision), tuple(changes_between(before_settings, after_settings)))


def _is_pipeline(file: Path) -> bool:
    try:
        return file.is_file() and kind_of(DocumentStore().read_mapping(file)) == "pipeline"
    except SpecError:
        return False


def planned_with_settings(file: Path, roots: Sequence[Path]) -> tuple[Plan, list[Setting]]:
    """Return a pipeline's plan without what runs measured, and its settings, with paths relative to some folders.

    A file that does not exist has no jobs.
    """
    if not file.is_file():
        return without_jobs(file), []
    store = DocumentStore()
    pipeline = load_job(file, store, strict=True, on_azure=True)
    return plan_pipeline(pipeline, Computes(store, computes_for([file]))), settings_of(pipeline, store, roots)
