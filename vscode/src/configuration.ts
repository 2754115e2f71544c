/** Debug configurations: what F5 offers without a launch.json, and what is filled in before a session starts. */

import * as path from "path";
import * as vscode from "vscode";
import { complain, interpreter, run, runJson } from "./python";
import { text } from "./text";
import { RunOverview } from "./types";

export const TYPE = "raytrain";
const LAST_RANKS = "raytrain.lastRanks";
const CHOICES = ["2", "4", "8", "gpu"];

export class Configurations implements vscode.DebugConfigurationProvider {
  private readonly checked = new Set<string>();

  constructor(private readonly memory: vscode.Memento) {}

  /** What the picker of debug configurations lists beside those of launch.json. */
  offers(): vscode.DebugConfiguration[] {
    const script = openScript();
    const launches = script ? [this.launch(script, this.memory.get(LAST_RANKS, "2")), this.launch(script, "")] : [];
    return [
      ...launches,
      { name: text.attachName, type: TYPE, request: "attach" },
      { name: text.postmortemName, type: TYPE, request: "postmortem" },
    ];
  }

  /** Debug the script in the active editor, asking for the number of ranks. */
  async debugOpenScript(): Promise<void> {
    const configuration = await this.askLaunch();
    const document = vscode.window.activeTextEditor?.document;
    if (configuration) await vscode.debug.startDebugging(document && vscode.workspace.getWorkspaceFolder(document.uri), configuration);
  }

  async resolveDebugConfiguration(
    folder: vscode.WorkspaceFolder | undefined,
    configuration: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    const resolved = configuration.request ? { ...configuration } : await this.askLaunch();
    if (!resolved) return undefined;
    if (resolved.request === "launch" && !resolved["program"] && !resolved["module"]) resolved["program"] = "${file}";
    // VS Code knows the requests "launch" and "attach" only.
    if (resolved.request === "postmortem") Object.assign(resolved, { request: "attach", postmortem: resolved["run"] ?? true });
    if (resolved["connect"]) return { ...resolved, justMyCode: resolved["justMyCode"] ?? false };
    if (isAnyLiveRun(resolved) && !resolved["cwd"] && vscode.workspace.workspaceFolders) return resolved;
    return fillIn(resolved, folder ?? activeFolder());
  }

  async resolveDebugConfigurationWithSubstitutedVariables(
    _folder: vscode.WorkspaceFolder | undefined,
    configuration: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (configuration["connect"]) return configuration;
    if (isAnyLiveRun(configuration)) return this.pickLiveRun(configuration);
    return (await this.isUsable(configuration)) ? configuration : undefined;
  }

  /** Whether raytrain_debug is there for the configuration's Python; complains if not. */
  private async isUsable(configuration: vscode.DebugConfiguration): Promise<boolean> {
    const python = configuration["python"];
    if (this.checked.has(python)) return true;
    try {
      await run(vscode.Uri.file(configuration["cwd"]), ["--help"], python);
    } catch (error) {
      void complain(error, python);
      return false;
    }
    this.checked.add(python);
    return true;
  }

  /** The configuration for the live run that there is, or the one that is chosen, in `cwd` or in any folder. */
  private async pickLiveRun(configuration: vscode.DebugConfiguration): Promise<vscode.DebugConfiguration | undefined> {
    const folders = configuration["cwd"] ? [undefined] : (vscode.workspace.workspaceFolders ?? []);
    const live: { overview: RunOverview; configuration: vscode.DebugConfiguration }[] = [];
    let usable = false;
    for (const folder of folders) {
      const filled = await fillIn(configuration, folder);
      if (!(await this.isUsable(filled))) continue;
      usable = true;
      for (const overview of await liveRuns(filled)) live.push({ overview, configuration: { ...filled, run: overview.run } });
    }
    if (live.length <= 1) {
      if (usable && !live.length) void vscode.window.showInformationMessage(text.noLiveRun);
      return live[0]?.configuration;
    }
    const items = live.map((each) => ({ ...each, label: each.overview.argv.join(" "), description: each.overview.run, detail: each.configuration["cwd"] }));
    return (await vscode.window.showQuickPick(items, { placeHolder: text.pickRun }))?.configuration;
  }

  private async askLaunch(): Promise<vscode.DebugConfiguration | undefined> {
    const script = openScript();
    if (!script) return void vscode.window.showInformationMessage(text.noScript);
    const last = this.memory.get(LAST_RANKS, "2");
    const choices = [last, ...CHOICES.filter((each) => each !== last), ""].filter((each, index, all) => all.indexOf(each) === index);
    const items = choices.map((ranks) => ({ label: ranks ? text.ranksAnswer(ranks) : text.singleProcess, ranks }));
    const other = { label: text.otherNumber, ranks: "?" };
    const chosen = await vscode.window.showQuickPick([...items, other], { placeHolder: text.askRanks });
    const ranks = chosen === undefined || chosen.ranks !== "?" ? chosen?.ranks : await askNumber();
    if (ranks === undefined) return undefined;
    await this.memory.update(LAST_RANKS, ranks);
    return this.launch(script, ranks);
  }

  private launch(script: string, ranks: string): vscode.DebugConfiguration {
    const shown = ranks ? text.ranksAnswer(ranks) : text.singleProcess;
    const nprocPerNode = ranks === "" ? {} : { nprocPerNode: /^\d+$/.test(ranks) ? Number(ranks) : ranks };
    return { name: text.configurationName(path.basename(script), shown), type: TYPE, request: "launch", program: script, ...nprocPerNode };
  }
}

/** A job's session talks to our adapter; a rank's straight to its port. */
export class Adapters implements vscode.DebugAdapterDescriptorFactory {
  createDebugAdapterDescriptor({ configuration }: vscode.DebugSession): vscode.DebugAdapterDescriptor {
    const connect = configuration["connect"];
    if (connect) return new vscode.DebugAdapterServer(Number(connect.port), connect.host ?? "127.0.0.1");
    return new vscode.DebugAdapterExecutable(configuration["python"], ["-m", "raytrain_debug", "adapter"], { cwd: configuration["cwd"] });
  }
}

function openScript(): string | undefined {
  const document = vscode.window.activeTextEditor?.document;
  return document?.languageId === "python" && document.uri.scheme === "file" ? document.uri.fsPath : undefined;
}

function activeFolder(): vscode.WorkspaceFolder | undefined {
  const document = vscode.window.activeTextEditor?.document;
  return (document && vscode.workspace.getWorkspaceFolder(document.uri)) ?? vscode.workspace.workspaceFolders?.[0];
}

async function askNumber(): Promise<string | undefined> {
  const validateInput = (value: string) => (/^([1-9]\d*|gpu|cpu|auto)$/.test(value) ? undefined : text.notANumber);
  return vscode.window.showInputBox({ prompt: text.askRanks, validateInput });
}

/** Whether the configuration is to take up a live run without saying which. */
function isAnyLiveRun(configuration: vscode.DebugConfiguration): boolean {
  return configuration.request === "attach" && !configuration["run"] && !configuration["postmortem"] && !configuration["connect"];
}

/** The configuration with what it does not say taken from the folder's settings. */
async function fillIn(configuration: vscode.DebugConfiguration, folder: vscode.WorkspaceFolder | undefined): Promise<vscode.DebugConfiguration> {
  return {
    ...configuration,
    cwd: configuration["cwd"] || (folder ? folder.uri.fsPath : "${fileDirname}"),
    runRoot: configuration["runRoot"] ?? vscode.workspace.getConfiguration("raytrain", folder?.uri).get<string>("runRoot"),
    python: configuration["python"] || (await interpreter(folder?.uri ?? vscode.window.activeTextEditor?.document.uri)),
  };
}

/** The live runs that are recorded where the configuration says, the newest first. */
async function liveRuns(configuration: vscode.DebugConfiguration): Promise<RunOverview[]> {
  const root = configuration["runRoot"];
  const args = ["runs", ...(root ? ["--run-root", root] : [])];
  try {
    const { runs } = await runJson<{ runs: RunOverview[] }>(vscode.Uri.file(configuration["cwd"]), args, configuration["python"]);
    return runs.filter((each) => each.state === "running").reverse();
  } catch (error) {
    void complain(error, configuration["python"]);
    return [];
  }
}
