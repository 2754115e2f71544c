/** The interpreter that is selected for a folder, and `python -m raytrain_debug` in it. */

import { execFile } from "child_process";
import * as vscode from "vscode";
import { text } from "./text";

/** The Python extension's selection for `scope` when that extension is there, else the setting `raytrain.python`. */
export async function interpreter(scope: vscode.Uri | undefined): Promise<string> {
  const extension = vscode.extensions.getExtension("ms-python.python");
  if (extension) {
    try {
      const { environments } = await extension.activate();
      const chosen = await environments.resolveEnvironment(environments.getActiveEnvironmentPath(scope));
      const path = chosen?.executable?.uri?.fsPath;
      if (path) return path;
    } catch {
      // An extension that is broken or speaks another version of its API selects nothing.
    }
  }
  const setting = vscode.workspace.getConfiguration("raytrain", scope).get<string>("python") || "python3";
  const folder = scope && vscode.workspace.getWorkspaceFolder(scope);
  return folder ? setting.replace("${workspaceFolder}", folder.uri.fsPath) : setting;
}

/** What a command of ours complained about, in its own words. */
export class CommandFailed extends Error {}

/** Run `python -m raytrain_debug ARGUMENTS` in `folder`; its stdout. Raises CommandFailed. */
export async function run(folder: vscode.Uri, args: string[], python?: string): Promise<string> {
  const program = python ?? (await interpreter(folder));
  return new Promise((resolve, reject) => {
    const options = { cwd: folder.fsPath, maxBuffer: 256 * 1024 * 1024, timeout: 300_000 };
    execFile(program, ["-m", "raytrain_debug", ...args], options, (error, stdout, stderr) => {
      // `print --json` says with its exit code that no rank gave a value: the JSON is there all the same.
      if (!error || stdout.startsWith("{")) return resolve(stdout);
      if (typeof error.code !== "number") return reject(new CommandFailed(text.cannotRun(program, error.message)));
      if (/No module named '?raytrain_debug/.test(stderr)) return reject(new CommandFailed(text.noModule(program)));
      reject(new CommandFailed(stderr.trim().replace(/^raytrain_debug: /, "") || error.message));
    });
  });
}

export async function runJson<T>(folder: vscode.Uri, args: string[], python?: string): Promise<T> {
  const output = await run(folder, [...args.slice(0, 1), "--json", ...args.slice(1)], python); // before a `--`
  try {
    return JSON.parse(output) as T;
  } catch {
    throw new CommandFailed(text.notJson);
  }
}

/** Show why a command failed, and offer the remedy when raytrain_debug is not installed. */
export async function complain(error: unknown, python?: string): Promise<void> {
  const message = error instanceof Error ? error.message : String(error);
  if (python === undefined || message !== text.noModule(python)) return void vscode.window.showErrorMessage(message);
  if ((await vscode.window.showErrorMessage(message, text.install)) === text.install) {
    const terminal = vscode.window.createTerminal("raytrain_debug");
    terminal.show();
    // For the user to complete with the clone's directory: no index has a package of that name that is known to be ours.
    terminal.sendText(`"${python}" -m pip install -e `, false);
  }
}
