"""The server itself: the Language Server Protocol over standard input and output, spoken by pygls.

Source: https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

import trainyard
from trainyard.editor import edits
from trainyard.editor.checker import Checker
from trainyard.editor.completions import Completion, completions
from trainyard.editor.edits import Action, Edit
from trainyard.editor.hovers import hover
from trainyard.editor.positions import Places, path_of
from trainyard.editor.symbols import Symbol, Symbols, outline_of
from trainyard.editor.workspace import Checked, EditorWorkspace, Found
from trainyard.project_files import is_yaml
from trainyard.spec.diagnostic import Diagnostic, Severity, Span

CHECK_COMMAND = "trainyard.check"
FIX_ALL = "source.fixAll.trainyard"
# What findings depend on: Azure ML's files, scripts, settings, templates, environments and ignore files.
_WATCHED = ("**/*.{yaml,yml,py,json,toml,txt,j2}", "**/{Dockerfile,.amlignore,.gitignore}")
_SEVERITIES: Mapping[Severity, types.DiagnosticSeverity] = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}


def serve() -> None:
    """Serve one editor over standard input and output, until it ends the session."""
    handler = logging.StreamHandler()
    handler.addFilter(_without_foreign_traceback)
    logging.getLogger().addHandler(handler)
    TrainyardServer().start_io()


class TrainyardServer(LanguageServer):
    """One session with an editor."""

    def __init__(self) -> None:
        # The whole text is sent with each change: pygls and editors differ on what ends a line.
        super().__init__("trainyard", trainyard.__version__, types.TextDocumentSyncKind.Full)
        self.files = EditorWorkspace()
        self.checker = Checker(self.files, self._publish_later, self._report_later)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uris: dict[Path, str] = {}
        self._findings: Found = {}
        self._shown: dict[Path, tuple[list[types.Diagnostic], int | None]] = {}
        self._told: set[str] = set()
        for register in (_register_changes, _register_answers, _register_edits):
            register(self)

    # Opening and changing ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start checking the folders that the editor has open."""
        self._loop = asyncio.get_running_loop()
        self.take_folders()
        capabilities = self.client_capabilities.workspace
        watching = capabilities.did_change_watched_files if capabilities is not None else None
        if watching is not None and watching.dynamic_registration:
            options = types.DidChangeWatchedFilesRegistrationOptions(list(map(types.FileSystemWatcher, _WATCHED)))
            registration = types.Registration("files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
            self.client_register_capability(types.RegistrationParams([registration]))
        self.checker.start()
        self.checker.check_all()

    def take_folders(self) -> None:
        """Check the folders that the editor has open now."""
        found = (path_of(folder.uri) for folder in self.workspace.folders.values())
        self.files.folders = tuple(path for path in found if path is not None)

    def hold(self, uri: str, version: int, text: str) -> None:
        """Use this text in place of a file's on disk."""
        file = path_of(uri)
        if file is None or not is_yaml(file.name):
            return
        self._uris[file] = uri
        # JSON can hold half a character, which no file can.
        text = text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")
        self.files.buffers[file] = text.removeprefix("\ufeff")
        self.files.versions[file] = version
        self.checker.changed([file])

    def release(self, uri: str) -> None:
        """Read a file from disk again."""
        file = path_of(uri)
        if file is not None and self.files.buffers.pop(file, None) is not None:
            self.files.versions.pop(file, None)
            self.checker.changed([file])

    def changed_on_disk(self, uris: Iterable[str]) -> None:
        """Check files that were changed outside this editor's buffers."""
        files = [file for uri in uris if (file := path_of(uri)) is not None]
        if any(not is_yaml(file.name) or "profiles" in file.parts for file in files):
            self.files.forget_other_files()
        self.checker.changed(file for file in files if is_yaml(file.name))

    # Publishing --------------------------------------------------------------------------------------------------

    def _publish_later(self, checked: Checked) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._publish, checked)

    def _publish(self, checked: Checked) -> None:
        known = {**({} if checked.is_full else self._findings), **checked.found}
        gone = [file for file in self._findings if file not in known]
        self._findings = known
        for file in (*checked.found, *gone):
            self._show(file, checked)
        for problem in self.files.problems:
            if problem not in self._told:
                self._told.add(problem)
                self.window_show_message(types.ShowMessageParams(types.MessageType.Error, problem))

    def _show(self, file: Path, checked: Checked) -> None:
        version = checked.versions.get(file)
        diagnostics = [self.as_diagnostic(each, checked.texts) for each in self._findings.get(file, ())]
        if self._shown.get(file, ([], None)) == (diagnostics, version):
            return
        self._shown[file] = diagnostics, version
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(self.uri_of(file), diagnostics, version=version)
        )

    def _report_later(self, error: Exception) -> None:
        assert self._loop is not None
        text = "".join(traceback.format_exception(error))
        message = types.LogMessageParams(types.MessageType.Error, f"a bug in Trainyard; please report it:\n{text}")
        self._loop.call_soon_threadsafe(self.window_log_message, message)

    # Conversions -------------------------------------------------------------------------------------------------

    def uri_of(self, file: Path) -> str:
        """Return a file's URI, as the editor writes it if it has the file open."""
        return self._uris.get(file) or file.as_uri()

    def places(self, file: Path, texts: Mapping[Path, str] = MappingProxyType({})) -> Places:
        """Return what converts places of a file's present text, or of the one in `texts`."""
        text = texts.get(file)
        encoding = types.PositionEncodingKind(self.workspace.position_encoding or "utf-16")
        return Places(self.files.text_of(file) if text is None else text, encoding.value)

    def range_of(self, span: Span, texts: Mapping[Path, str] = MappingProxyType({})) -> types.Range:
        """Return a span in the protocol's form."""
        return self.places(span.file, texts).range_of(span)

    def location_of(self, span: Span, texts: Mapping[Path, str] = MappingProxyType({})) -> types.Location:
        """Return a span with its file."""
        return types.Location(self.uri_of(span.file), self.range_of(span, texts))

    def as_diagnostic(self, finding: Diagnostic, texts: Mapping[Path, str] = MappingProxyType({})) -> types.Diagnostic:
        """Return a finding as editors show it; its places are those of `texts`, else of the present ones."""
        related = [
            types.DiagnosticRelatedInformation(self.location_of(each.span, texts), each.message)
            for each in finding.related
        ]
        return types.Diagnostic(
            range=self.range_of(finding.span, texts),
            message="\n".join(filter(None, (finding.message, finding.hint))),
            severity=_SEVERITIES[finding.severity],
            code=finding.rule,
            source="trainyard",
            related_information=related,
        )

    def as_changes(self, by_file: Mapping[Path, Sequence[Edit]]) -> types.WorkspaceEdit:
        """Return edits of several files."""
        return types.WorkspaceEdit(
            changes={
                self.uri_of(file): [types.TextEdit(self.range_of(edit.span), edit.text) for edit in changes]
                for file, changes in by_file.items()
            }
        )

    def findings_in(self, file: Path) -> list[Diagnostic]:
        """Return the findings in the present text of a file."""
        return self.files.check_quickly([file]).found.get(file, [])

    def symbol_at(
        self, uri: str, position: types.Position, *, everywhere: bool = False
    ) -> tuple[Symbol | None, Symbols]:
        """Return the name at a place, and all names of its file and of those that it names, or of all files."""
        file, line, column = self.place(uri, position)
        parsed, store = self.files.read_all() if everywhere else self.files.read([file])
        symbols = Symbols(parsed, store, self.files.settings(file).computes)
        return symbols.at(file, line, column), symbols

    def place(self, uri: str, position: types.Position) -> tuple[Path, int, int]:
        """Return the file, line and column of a place."""
        file = path_of(uri)
        if file is None:
            raise JsonRpcInvalidParams(f"not a file: {uri}")
        return (file, *self.places(file).place_of(position))


def _register_changes(server: TrainyardServer) -> None:
    @server.feature(types.INITIALIZED)
    def initialized(params: types.InitializedParams) -> None:
        server.begin()

    @server.feature(types.SHUTDOWN)
    def shutdown(params: None) -> None:
        server.checker.stop()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: types.DidOpenTextDocumentParams) -> None:
        document = params.text_document
        server.hold(document.uri, document.version, document.text)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: types.DidChangeTextDocumentParams) -> None:
        # Each change has the whole text, as the server asks for.
        text = params.content_changes[-1].text if params.content_changes else None
        if text is not None:
            server.hold(params.text_document.uri, params.text_document.version, text)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def did_save(params: types.DidSaveTextDocumentParams) -> None:
        server.changed_on_disk([params.text_document.uri])

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        server.release(params.text_document.uri)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_watched_files(params: types.DidChangeWatchedFilesParams) -> None:
        server.changed_on_disk(change.uri for change in params.changes)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def did_change_folders(params: types.DidChangeWorkspaceFoldersParams) -> None:
        server.take_folders()
        server.checker.check_all()

    @server.command(CHECK_COMMAND)
    async def check() -> int:
        """Check every file now; return the number of findings, once they were published."""
        loop = asyncio.get_running_loop()
        is_done: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            loop.call_soon_threadsafe(is_done.set_result, None)

        server.files.forget_other_files()
        server.checker.check_all(done)
        await is_done
        return sum(map(len, server._findings.values()))


def _register_answers(server: TrainyardServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def on_hover(params: types.HoverParams) -> types.Hover | None:
        file, line, column = server.place(params.text_document.uri, params.position)
        found = hover(server.files, file, line, column, server.findings_in(file))
        if found is None:
            return None
        text, span = found
        content = types.MarkupContent(types.MarkupKind.Markdown, text)
        return types.Hover(content, server.range_of(span) if span is not None else None)

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["{", ".", ":", " ", "/"])
    )
    def on_completion(params: types.CompletionParams) -> list[types.CompletionItem]:
        file, _, _ = server.place(params.text_document.uri, params.position)
        text = server.files.text_of(file)
        places = server.places(file)
        offset = places.offset_of(params.position)
        return [_as_item(each, places, offset) for each in completions(server.files, file, text, offset)]

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def on_document_symbol(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        file = path_of(params.text_document.uri)
        document = server.files.read([file])[1].find(file) if file is not None else None
        # What is not YAML has no outline.
        return outline_of(document.root, server.range_of) if document is not None else []

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def on_definition(params: types.DefinitionParams) -> list[types.Location]:
        symbol, _ = server.symbol_at(params.text_document.uri, params.position)
        if symbol is None:
            return []
        targets = symbol.places if symbol.kind == "code" else (symbol.target,)
        return [server.location_of(target) for target in targets]

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def on_references(params: types.ReferenceParams) -> list[types.Location]:
        symbol, symbols = server.symbol_at(params.text_document.uri, params.position, everywhere=True)
        if symbol is None:
            return []
        names = [
            each for each in symbols.of(symbol.target) if params.context.include_declaration or not each.is_declaration
        ]
        found = [each.span for each in names]
        if symbol.kind == "flag" and params.context.include_declaration:
            found.append(symbol.target)
        return [server.location_of(span) for span in found]


def _register_edits(server: TrainyardServer) -> None:
    kinds = [types.CodeActionKind.QuickFix, FIX_ALL]

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds))
    def on_code_action(params: types.CodeActionParams) -> list[types.CodeAction]:
        uri, only = params.text_document.uri, params.context.only
        file = path_of(uri)
        if file is None or file not in server.files.buffers:
            return []
        text = server.files.text_of(file)
        findings = server.findings_in(file)
        places = server.places(file)
        here = [each for each in findings if _touches(places.range_of(each.span), params.range)]
        offered: list[types.CodeAction] = []
        if _is_wanted(types.CodeActionKind.QuickFix, only):
            actions: list[Action] = list(edits.fixes(here, text))
            # What is not YAML has no places for comments.
            if (document := server.files.read([file])[1].find(file)) is not None:
                actions += edits.ignore_comments(here, document)
            offered += [_as_code_action(server, each) for each in actions]
        every = edits.all_fixes(findings, text)
        if every and _is_wanted(FIX_ALL, only):
            change = server.as_changes({file: every})
            offered.append(types.CodeAction("Fix all that is safe to fix in this file", kind=FIX_ALL, edit=change))
        return offered

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def on_prepare_rename(params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder | None:
        found, _ = server.symbol_at(params.text_document.uri, params.position)
        symbol = edits.renamable(found)
        return types.PrepareRenamePlaceholder(server.range_of(symbol.span), symbol.name)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def on_rename(params: types.RenameParams) -> types.WorkspaceEdit:
        found, symbols = server.symbol_at(params.text_document.uri, params.position, everywhere=True)
        symbol = edits.renamable(found)
        changes = edits.rename(server.files, symbols, symbol, params.new_name)
        templates = sorted({t for each in changes if (t := edits.template_of(server.files.text_of(each))) is not None})
        if templates:
            names = ", ".join(f"templates/{name}" for name in templates)
            message = f"these files are rendered: rename '{symbol.name}' in {names} too, or it returns"
            server.window_show_message(types.ShowMessageParams(types.MessageType.Warning, message))
        return server.as_changes(changes)


def _without_foreign_traceback(record: logging.LogRecord) -> bool:
    """Keep a refusal, which the editor shows, out of the log; of a message that is not one, keep a line."""
    if str(record.msg).startswith("Unable to deserialize message"):
        return False  # followed by another record of the same
    error = record.exc_info[1] if record.exc_info is not None else None
    if isinstance(error, JsonRpcInvalidParams) and error.__cause__ is None:
        return False
    if error is not None and not _passed_through_us(error):
        record.msg, record.args, record.exc_info = "not a valid message: %s", (type(error).__name__,), None
    return True


def _passed_through_us(error: BaseException | None) -> bool:
    while error is not None:
        modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
        if any(module.startswith("trainyard.") for module in modules):
            return True
        error = error.__cause__
    return False


def _as_item(completion: Completion, places: Places, offset: int) -> types.CompletionItem:
    replaced = types.Range(places.position_of(offset - completion.replaced), places.position_of(offset))
    documentation = types.MarkupContent(types.MarkupKind.Markdown, completion.documentation)
    return types.CompletionItem(
        completion.label,
        kind=completion.kind,
        detail=completion.detail or None,
        documentation=documentation if completion.documentation else None,
        filter_text=completion.label,
        text_edit=types.TextEdit(replaced, completion.insert or completion.label),
    )


def _as_code_action(server: TrainyardServer, action: Action) -> types.CodeAction:
    file = action.finding.span.file
    return types.CodeAction(
        action.title,
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[server.as_diagnostic(action.finding)],
        is_preferred=action.is_fix,
        edit=server.as_changes({file: action.edits}),
    )


def _is_wanted(kind: str, only: Sequence[str] | None) -> bool:
    return only is None or any(kind == each or kind.startswith(f"{each}.") for each in only)


def _touches(first: types.Range, second: types.Range) -> bool:
    return first.start <= second.end and second.start <= first.end
