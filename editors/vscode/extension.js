// The client of `trainyard lsp`: it starts the server; VS Code and the server do the rest.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

// The program: the setting, else the folder's own environment, else the one on the PATH.
function program() {
  const named = vscode.workspace.getConfiguration("trainyard").get("path");
  if (named) return named;
  const inFolder = process.platform === "win32" ? ".venv/Scripts/trainyard.exe" : ".venv/bin/trainyard";
  const folders = (vscode.workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath);
  return folders.map((folder) => path.join(folder, inFolder)).find(fs.existsSync) ?? "trainyard";
}

async function start() {
  const command = program();
  client = new LanguageClient("trainyard", "Trainyard", { command, args: ["lsp"] }, {
    documentSelector: [{ scheme: "file", language: "yaml" }, { scheme: "file", language: "azure-pipelines" }],
  });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    const advice = "Install it with `pip install 'trainyard-azureml[lsp]'`, or set `trainyard.path`.";
    vscode.window.showErrorMessage(`${command} does not start: ${error.message}. ${advice}`);
  }
}

async function activate(context) {
  const restart = vscode.commands.registerCommand("trainyard.restart", async () => {
    await client?.stop();
    await start();
  });
  context.subscriptions.push(restart);
  await start();
}

module.exports = { activate, deactivate: () => client?.stop() };
