/** Puts the parts together. All knowledge of jobs is raytrain_debug's: it is asked by `python -m raytrain_debug ... --json`. */

import * as vscode from "vscode";
import { Actions, DOCUMENT, guard } from "./actions";
import { RankBreakpoints } from "./breakpoints";
import { Compare } from "./compare";
import { Adapters, Configurations, TYPE } from "./configuration";
import { Panels } from "./panels";
import { Runs } from "./runs";
import { JobEnd, Sessions } from "./sessions";
import { Node, RunsView } from "./view";

export function activate({ subscriptions, workspaceState }: vscode.ExtensionContext): void {
  const configurations = new Configurations(workspaceState);
  const sessions = new Sessions(subscriptions);
  const runs = new Runs(subscriptions, sessions);
  const panels = new Panels(subscriptions);
  const actions = new Actions(runs, sessions, panels);
  const compare = new Compare(runs, sessions, actions, panels);
  const breakpoints = new RankBreakpoints(subscriptions);
  new RunsView(subscriptions, runs, sessions);
  const dynamic = vscode.DebugConfigurationProviderTriggerKind.Dynamic;
  subscriptions.push(
    vscode.debug.registerDebugConfigurationProvider(TYPE, configurations),
    vscode.debug.registerDebugConfigurationProvider(TYPE, { provideDebugConfigurations: () => configurations.offers() }, dynamic),
    vscode.debug.registerDebugAdapterDescriptorFactory(TYPE, new Adapters()),
    vscode.languages.registerHoverProvider("python", compare),
    vscode.workspace.registerTextDocumentContentProvider(DOCUMENT, actions),
    sessions.onDidEndJob((end) => void guard(() => afterJob(end, actions))),
    register("raytrain.debugFile", () => configurations.debugOpenScript()),
    register("raytrain.compare", () => compare.command()),
    register("raytrain.breakpointOnRanks", (at) => breakpoints.command(at as never)),
    ...Object.entries(actions.commands).map(([name, action]) => register(name, (node) => action(node as Node | undefined))),
  );
}

function register(name: string, action: (argument?: unknown) => Promise<unknown>): vscode.Disposable {
  return vscode.commands.registerCommand(name, (argument?: unknown) => guard(() => action(argument)));
}

/** A job that failed by itself leaves a report. */
async function afterJob({ session, run, directory, exitCode, stopped }: JobEnd, actions: Actions): Promise<void> {
  const isWanted = vscode.workspace.getConfiguration("raytrain").get("openReportOnFailure", true);
  if (stopped || !exitCode || !isWanted) return;
  await actions.report(vscode.Uri.file(session.configuration["cwd"]), directory, run);
}
